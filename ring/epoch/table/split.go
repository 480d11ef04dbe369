package table

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/keystead/keystead/ring"
)

// Bounds of splits.
const (
	// MaxSplits is how many objects may be split at a time: about 400 KB of table
	// with as many parts as there may be.
	MaxSplits = 100
	// MinParts and MaxParts are how many parts an object may have.
	MinParts = 2
	MaxParts = ring.MaxParts
	// FullWeight is what the weights of all parts together are at most.
	FullWeight = 1 << 16
	// maxSplitText bounds key and name together, and MaxReason the reason, in bytes.
	maxSplitText = 1 << 10
	MaxReason    = 200
)

// SplitPhase is how far a split is.
type SplitPhase uint8

// The phases. A process that acts in one has applied the commit that began it.
const (
	// Opening: the whole object is not served any more, and its parts are not yet. Its
	// home plants them.
	Opening SplitPhase = iota + 1
	// Open: the parts are served.
	Open
	// Closing: the parts are not served any more. The home puts the whole object
	// together.
	Closing
)

func (p SplitPhase) String() string {
	switch p {
	case Opening:
		return "opening"
	case Open:
		return "open"
	case Closing:
		return "closing"
	}
	return "unknown"
}

// Part is one of the parts of a split object: an object of its own, at a place of its
// own.
type Part struct {
	Salt   uint32 `json:"s"` // makes the place; see PartKey
	Weight uint32 `json:"w"` // of FullWeight: how much of a limit it may spend
}

// Split is an object that is divided into parts, which are served in its place. Its home
// is the owner of the row of its key.
type Split struct {
	ID      uint64     `json:"id"`   // epoch of the commit that began it
	Kind    string     `json:"kind"` // "limit" or "counter"
	Key     string     `json:"key"`
	Name    string     `json:"name"`
	Phase   SplitPhase `json:"phase"`
	Since   uint64     `json:"since"`            // epoch of the commit that began the phase
	Weighed uint64     `json:"weighed"`          // epoch of the commit that set the weights
	Base    int64      `json:"base,omitempty"`   // of a counter, from Open on: its value when it was divided
	Manual  bool       `json:"manual,omitempty"` // asked for by somebody: it stays until it is merged so
	Reason  string     `json:"reason,omitempty"` // for people: why it is as it is
	Parts   []Part     `json:"parts"`

	hashes []uint64 // positions of the parts
}

// PartKey returns the key of a part's own object. Keys of users do not begin with NUL.
func PartKey(id uint64, part int, salt uint32) string {
	b := append(make([]byte, 0, 32), 0)
	b = strconv.AppendUint(b, id, 36)
	b = strconv.AppendInt(append(b, '.'), int64(part), 36)
	return string(strconv.AppendUint(append(b, '.'), uint64(salt), 36))
}

// OfPart reads the key of a part: of which split it is, and which part.
func OfPart(key string) (id uint64, part int, ok bool) {
	text, ok := strings.CutPrefix(key, "\x00")
	fields := strings.Split(text, ".")
	if !ok || len(fields) != 3 {
		return 0, 0, false
	}
	id, err := strconv.ParseUint(fields[0], 36, 64)
	n, errPart := strconv.ParseUint(fields[1], 36, 16)
	_, errSalt := strconv.ParseUint(fields[2], 36, 32)
	return id, int(n), err == nil && errPart == nil && errSalt == nil
}

// PartKey returns the key of part i.
func (s *Split) PartKey(i int) string { return PartKey(s.ID, i, s.Parts[i].Salt) }

// PartHash returns the position of part i.
func (s *Split) PartHash(i int) uint64 { return s.hashes[i] }

// Weight returns the sum of the weights.
func (s *Split) Weight() (sum uint32) {
	for _, p := range s.Parts {
		sum += p.Weight
	}
	return sum
}

// Place finds salts by which the wanted ring gives part i of the next split to node
// nodes[i]. ok is false if one of them is not on that ring.
func (t *Table) Place(id uint64, nodes []string) (salts []uint32, ok bool) {
	const tries = 1 << 20 // far more than it takes with 128 nodes
	salts = make([]uint32, len(nodes))
	for i, node := range nodes {
		if !slices.Contains(t.nodes, node) {
			return nil, false
		}
		for ; ; salts[i]++ {
			if m, ok := t.WantedOwner(ring.Hash(PartKey(id, i, salts[i]))); ok &&
				m.Node == node { //guard:split-place
				break
			}
			if salts[i] == tries {
				return nil, false
			}
		}
	}
	return salts, true
}

// divided is what is derived from the splits.
type divided struct {
	filter [16]uint64     // positions of split objects and of parts, by their top bits
	at     map[object]int // of the splits
}

type object struct{ kind, key, name string }

// divide computes what is derived from the splits.
func (t *Table) divide() {
	t.divided = nil
	if len(t.Splits) == 0 {
		return
	}
	d := &divided{at: make(map[object]int, len(t.Splits))}
	mark := func(h uint64) { d.filter[h>>60] |= 1 << (h >> 54 & 63) }
	for i := range t.Splits {
		s := &t.Splits[i]
		d.at[object{s.Kind, s.Key, s.Name}] = i
		mark(ring.Hash(s.Key))
		s.hashes = make([]uint64, len(s.Parts))
		for p := range s.Parts {
			s.hashes[p] = ring.Hash(s.PartKey(p))
			//guard:split-filter
			mark(s.hashes[p])
		}
	}
	t.divided = d
}

// MaySplit reports whether a position may be that of a split object or of a part. It
// is false for nearly all others.
func (t *Table) MaySplit(h uint64) bool {
	return t.divided != nil && t.divided.filter[h>>60]>>(h>>54&63)&1 != 0
}

// Split finds an object that is split.
func (t *Table) Split(kind, key, name string) (*Split, bool) {
	if t.divided == nil {
		return nil, false
	}
	i, ok := t.divided.at[object{kind, key, name}]
	if !ok {
		return nil, false
	}
	return &t.Splits[i], true
}

// SplitOf finds a split by its id.
func (t *Table) SplitOf(id uint64) (*Split, bool) {
	i, ok := t.splitAt(id)
	if !ok {
		return nil, false
	}
	return &t.Splits[i], true
}

func (t *Table) splitAt(id uint64) (int, bool) {
	return slices.BinarySearchFunc(t.Splits, id, func(s Split, id uint64) int {
		switch {
		case s.ID < id:
			return -1
		case s.ID > id:
			return 1
		}
		return 0
	})
}

// OfSplits reports whether a command is about splits.
func (c *Command) OfSplits() bool {
	return c.BeginSplit != nil || c.OpenSplit != nil || c.Weigh != nil || c.CloseSplit != nil || c.EndSplit != nil
}

// divideBy does such a command.
func (t *Table) divideBy(c Command) (why *Refused) {
	switch {
	case c.BeginSplit != nil:
		why = t.beginSplit(c.BeginSplit)
	case c.OpenSplit != nil:
		why = t.openSplit(c.OpenSplit)
	case c.Weigh != nil:
		why = t.weigh(c.Weigh)
	case c.CloseSplit != nil:
		why = t.closeSplit(c.CloseSplit)
	case c.EndSplit != nil:
		why = t.endSplit(c.EndSplit)
	}
	if why == nil {
		t.divide()
	}
	return why
}

// home says why a process is not the home of a split.
func (t *Table) home(s *Split, h Holder) *Refused {
	// The index is not made yet.
	i, _ := row(t.Rows, ring.Hash(s.Key))
	if len(t.Rows) == 0 ||
		h.None() || //guard:split-home-nobody
		t.Rows[i%len(t.Rows)].Owner != h { //guard:split-home-process -> t.Rows[i%len(t.Rows)].Owner.Node != h.Node
		return refused("%s, incarnation %x, does not own the key of split %d", h.Node, h.Incarnation, s.ID)
	}
	return nil
}

// beginSplit divides an object.
func (t *Table) beginSplit(c *BeginSplit) *Refused {
	s := c.Split
	s.Phase, s.Since, s.Weighed, s.Base = Opening, t.Epoch, t.Epoch, 0
	s.Parts = slices.Clone(s.Parts)
	switch {
	//guard:split-epoch
	case s.ID != t.Epoch:
		return refused("split %d can not begin in epoch %d", s.ID, t.Epoch)
	case len(t.Splits) >= MaxSplits:
		return refused("%d objects are split; no more are allowed", len(t.Splits))
	case len(t.Rows) == 0:
		return refused("there are no rows yet")
	}
	//guard:split-once
	if i := slices.IndexFunc(t.Splits, func(o Split) bool { return o.Kind == s.Kind && o.Key == s.Key && o.Name == s.Name }); i >= 0 {
		return refused("it is split already, since epoch %d", t.Splits[i].ID)
	}
	if err := s.check(t.Epoch); err != nil {
		return refused("%v", err)
	}
	t.Splits = append(slices.Clone(t.Splits), s)
	return nil
}

// change returns a split that may be changed, in a copy of the list.
func (t *Table) change(id uint64) (*Split, *Refused) {
	i, ok := t.splitAt(id)
	if !ok {
		return nil, refused("there is no split %d", id)
	}
	//guard:split-list-copied
	t.Splits = slices.Clone(t.Splits)
	return &t.Splits[i], nil
}

// openSplit has the parts served.
func (t *Table) openSplit(c *OpenSplit) *Refused {
	s, why := t.change(c.ID)
	//guard:split-opened-by-home
	if why == nil {
		why = t.home(s, c.Home)
	}
	switch {
	case why != nil:
		return why
	//guard:split-opens-once -> s.Phase == Open
	case s.Phase != Opening:
		return refused("split %d is %s", s.ID, s.Phase)
	}
	s.Phase, s.Since, s.Base = Open, t.Epoch, c.Base
	return nil
}

// weigh changes the weights of the parts: it lowers some, or it raises some.
//
// Invariant: the weights that owners act by, however late they are, are FullWeight
// together at most. So a process that raises has heard from the owner of every part that it has
// applied the commit that set the weights before (Expect).
func (t *Table) weigh(c *Weigh) *Refused {
	s, why := t.change(c.ID)
	//guard:split-weighed-by-home
	if why == nil {
		why = t.home(s, c.Home)
	}
	switch {
	case why != nil:
		return why
	//guard:split-weighed-open -> s.Phase == Opening
	case s.Phase != Open:
		return refused("split %d is %s", s.ID, s.Phase)
	//guard:split-weights-expected
	case s.Weighed != c.Expect:
		return refused("the weights of split %d are those of epoch %d", s.ID, s.Weighed)
	case len(c.Weights) != len(s.Parts):
		return refused("%d weights for %d parts", len(c.Weights), len(s.Parts))
	}
	//guard:split-weights-copied slices.Clone(s.Parts) -> s.Parts
	parts, lower, higher := slices.Clone(s.Parts), false, false
	for i, w := range c.Weights {
		lower, higher = lower || w < parts[i].Weight, higher || w > parts[i].Weight
		parts[i].Weight = w
	}
	//guard:split-one-way
	if lower == higher {
		return refused("weights are lowered, or raised")
	}
	s.Parts, s.Weighed = parts, t.Epoch
	if err := s.check(t.Epoch); err != nil {
		return refused("%v", err)
	}
	return nil
}

// closeSplit has the parts not served any more.
func (t *Table) closeSplit(c *CloseSplit) *Refused {
	s, why := t.change(c.ID)
	switch {
	case why != nil:
		return why
	//guard:split-closes-open -> s.Phase == Closing
	case s.Phase != Open:
		return refused("split %d is %s", s.ID, s.Phase)
	case len(c.Reason) > MaxReason || !utf8.ValidString(c.Reason):
		return refused("a reason of %d bytes, or not UTF-8", len(c.Reason))
	}
	s.Phase, s.Since, s.Reason = Closing, t.Epoch, c.Reason
	return nil
}

// endSplit has the whole object served: it was put together again, or never divided.
func (t *Table) endSplit(c *EndSplit) *Refused {
	s, why := t.change(c.ID)
	//guard:split-ended-by-home
	if why == nil {
		why = t.home(s, c.Home)
	}
	switch {
	case why != nil:
		return why
	case s.Phase == Open || //guard:split-ends-served
		s.Since != c.Since: //guard:split-ends-late
		return refused("split %d is %s since epoch %d", s.ID, s.Phase, s.Since)
	}
	t.Splits = slices.DeleteFunc(t.Splits, func(o Split) bool { return o.ID == c.ID })
	return nil
}

// check says what is wrong with a split in an epoch.
func (s *Split) check(epoch uint64) error {
	switch {
	case s.ID == 0 || s.Since < s.ID || s.Since > epoch || s.Weighed < s.ID || s.Weighed > epoch:
		return fmt.Errorf("split %d of epochs %d and %d in epoch %d", s.ID, s.Since, s.Weighed, epoch)
	case s.Phase < Opening || s.Phase > Closing:
		return fmt.Errorf("split %d is in phase %d", s.ID, s.Phase)
	case s.Kind != "limit" && s.Kind != "counter":
		return fmt.Errorf("a %s cannot be split", s.Kind)
	case s.Key == "" || s.Key[0] == 0 || len(s.Key)+len(s.Name) > maxSplitText || len(s.Reason) > MaxReason:
		return fmt.Errorf("split %d has a key of %d bytes, a name of %d and a reason of %d", s.ID, len(s.Key), len(s.Name), len(s.Reason))
	case !utf8.ValidString(s.Key) || //guard:split-text
		!utf8.ValidString(s.Name) || !utf8.ValidString(s.Reason): // JSON would change it
		return fmt.Errorf("split %d has a key, a name or a reason that is not UTF-8", s.ID)
	case len(s.Parts) < MinParts || len(s.Parts) > MaxParts:
		return fmt.Errorf("%d parts; %d to %d are allowed", len(s.Parts), MinParts, MaxParts)
	}
	sum := uint64(0)
	for _, p := range s.Parts {
		if p.Weight == 0 {
			return fmt.Errorf("a part of split %d has no weight", s.ID)
		}
		sum += uint64(p.Weight)
	}
	//guard:split-whole-weight
	if sum > FullWeight {
		return fmt.Errorf("the weights of split %d are %d together; at most %d are allowed", s.ID, sum, FullWeight)
	}
	return nil
}

// checkSplits says what is wrong with the splits of a table.
func (t *Table) checkSplits() error {
	seen := map[object]bool{}
	for i := range t.Splits {
		s := &t.Splits[i]
		if err := s.check(t.Epoch); err != nil {
			return err
		}
		if o := (object{s.Kind, s.Key, s.Name}); seen[o] || i > 0 && s.ID <= t.Splits[i-1].ID {
			return fmt.Errorf("split %d is not in its place", s.ID)
		} else {
			seen[o] = true
		}
	}
	if len(t.Splits) > MaxSplits {
		return fmt.Errorf("%d objects are split", len(t.Splits))
	}
	return nil
}
