package table

// Behind are those that an answer still waits for: at most two processes, and the disk of
// this node. They stand in front; the zero value is none.
type Behind [3]Holder

// OwnDisk stands for the disk of this node among them. No process has this name: each has an
// incarnation.
var OwnDisk = Holder{Node: "disk"}

// Next returns what is left when the first one has all.
func (b Behind) Next() Behind { return Behind{b[1], b[2]} }

// Has reports whether it is among them.
func (b Behind) Has(h Holder) bool { return b[0] == h || b[1] == h || b[2] == h }
