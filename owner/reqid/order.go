package reqid

import "github.com/keystead/keystead/owner/internal/flat"

// links are neighbours in an order; 0 = none.
type links struct{ older, newer uint32 }

// order is a list of clients, or of keys, by the time they were last put in order.
type order struct{ oldest, newest uint32 }

// add puts one last; of is its links in this order.
func add[T any](o *order, in *flat.Slab[T], c uint32, of func(*T) *links) {
	*of(in.At(c)) = links{older: o.newest}
	if o.newest != 0 {
		of(in.At(o.newest)).newer = c
	} else {
		o.oldest = c
	}
	o.newest = c
}

func remove[T any](o *order, in *flat.Slab[T], c uint32, of func(*T) *links) {
	l := *of(in.At(c))
	if l.older != 0 {
		of(in.At(l.older)).newer = l.newer
	} else {
		o.oldest = l.newer
	}
	if l.newer != 0 {
		of(in.At(l.newer)).older = l.older
	} else {
		o.newest = l.older
	}
}

func inObject(c *client) *links { return &c.inObject }
func inTable(c *client) *links  { return &c.inTable }

// link puts a client last among those of its object and those of the table.
func (t *Table) link(c uint32) {
	add(&t.objects.At(t.clients.At(c).object).order, &t.clients, c, inObject)
	add(&t.order, &t.clients, c, inTable)
}

func (t *Table) unlink(c uint32) {
	remove(&t.objects.At(t.clients.At(c).object).order, &t.clients, c, inObject)
	remove(&t.order, &t.clients, c, inTable)
}
