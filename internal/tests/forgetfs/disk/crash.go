package disk

import (
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// Torn says what survives of what was not synced: nothing, unless On.
type Torn struct {
	On   bool
	Seed uint64 // the same of the same disk: the same survives
}

// Crash cuts the power: what is asked from now on fails with EIO, and the backing
// directory is what it is, for a later Open.
func (d *Disk) Crash(t Torn) error {
	d.gate.crash()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.crashed {
		return nil
	}
	var err error
	if t.On {
		err = d.tear(rand.New(rand.NewPCG(t.Seed, 0)))
	}
	d.crashed = true
	return errors.Join(err, os.RemoveAll(filepath.Join(d.backing, shelf)))
}

// tear keeps some of what was not synced.
func (d *Disk) tear(r *rand.Rand) error {
	var err error
	done := map[*Inode]bool{}
	for _, n := range d.directories() {
		if done[n] {
			continue
		}
		group := n.group()
		steps := d.steps(group)
		var until uint64 // the last change that survives
		if i := r.IntN(len(steps) + 1); i > 0 {
			until = steps[i-1]
		}
		want := map[*Inode]map[string]*Inode{}
		for _, m := range group {
			done[m] = true
			want[m] = m.after(until)
		}
		err = errors.Join(err, d.place(want))
	}
	for _, n := range d.replaced {
		err = errors.Join(err, n.flush())
	}
	for _, n := range d.sorted() {
		if !n.Dir && n.held > 0 && (n.sized || n.dirty.count() > 0) {
			err = errors.Join(err, n.tear(r))
		}
	}
	return err
}

// steps returns the moments at which names of some directories changed, in order.
func (d *Disk) steps(dirs []*Inode) []uint64 {
	at := map[uint64]bool{}
	for _, n := range dirs {
		for _, c := range n.log {
			at[c.step] = true
		}
	}
	var steps []uint64
	for s := uint64(1); s <= d.step && len(at) > 0; s++ {
		if at[s] {
			steps = append(steps, s)
		}
	}
	return steps
}

// after returns the names that a directory has on the disk if the changes until a moment
// have come there.
func (n *Inode) after(until uint64) map[string]*Inode {
	names := maps.Clone(n.kept)
	for _, c := range n.log {
		switch {
		case c.step > until:
		case c.to == nil:
			delete(names, c.name)
		default:
			names[c.name] = c.to
		}
	}
	return names
}

// tear keeps some of what is dirty of a file, in pieces of one size or the other, and one
// of the sizes that the file may have had.
func (n *Inode) tear(r *rand.Rand) error {
	grain := int64(1)
	if r.IntN(2) == 0 {
		grain = 4096 / Sector
	}
	var some pieces
	for from := int64(0); from < sectors(int64(len(n.data))); from += grain {
		survives := r.IntN(2) == 0
		for i := from; survives && i < from+grain; i++ {
			if n.dirty.has(i) {
				some.add(i, i+1)
			}
		}
	}
	size := int64(0) // as it is on the shelf
	if info, err := os.Stat(n.d.shelf(n)); err == nil {
		size = info.Size()
	}
	switch now := int64(len(n.data)); {
	case r.IntN(3) == 0 && now > size: // some of what was appended
		size += r.Int64N(now - size + 1)
	case r.IntN(2) == 0:
		size = now
	default: // The old size. What was cut off is still there.
		if now < size {
			return nil
		}
	}
	return n.shelve(some, size)
}
