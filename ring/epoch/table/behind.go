package table

import "strings"

// Behind are those that an answer still waits for: at most two processes, their disks, and the
// disk of this node. They stand in front; the zero value is none.
type Behind [5]Holder

// OwnDisk stands for the disk of this node among them. No process has this name: each has an
// incarnation.
var OwnDisk = Holder{Node: "disk"}

// diskOf begins the name that stands for the disk of another process. No node has a space in its name.
const diskOf = "disk of "

// DiskOf stands for the disk of another process.
func DiskOf(h Holder) Holder { return Holder{Node: diskOf + h.Node, Incarnation: h.Incarnation} }

// MayBehind reports whether an answer may wait for it: it is a member, the disk of one, or this
// node's own.
func (t *Table) MayBehind(h Holder) bool {
	if h == OwnDisk {
		return true
	}
	h.Node = strings.TrimPrefix(h.Node, diskOf)
	return t.Holds(h)
}

// Next returns what is left when the first one has all.
func (b Behind) Next() (next Behind) {
	copy(next[:], b[1:])
	return next
}

// Has reports whether it is among them.
func (b Behind) Has(h Holder) bool {
	for _, x := range b {
		if x == h {
			return true
		}
	}
	return false
}
