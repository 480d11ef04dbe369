// Package zone has the rules of the world's time zones as this program was built with them.
//
// # Guarantee
//
// All programs of one version have the same rules, whatever Go they were built with and
// whatever the machine has installed: nothing is read but what is in the program. A zone that
// was found is the same one for as long as the process runs. Finding one again takes no lock
// and allocates nothing.
//
// # Picture
//
//	"Europe/Berlin" ─▶ Find ─▶ ID, a small number of this process ─▶ Location
//	                            └─▶ Name, which is what others are told
//
// # Non-guarantee
//
// An ID means nothing to another process: a later version may know more zones. "Local" is no
// zone.
package zone

import (
	"archive/zip"
	_ "embed"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// rules is the IANA time zone database, release Release, which is in the public domain: each zone a
// file, as lib/time/zoneinfo.zip of a Go distribution has them.
//
//go:embed zoneinfo.zip
var rules string

// Release is that of the database.
const Release = "2025c"

// ID is a zone. The zero ID is UTC.
type ID uint16

// Bits is how many bits an ID has at most.
const Bits = 12

// UTC is the name of the zero ID.
const UTC = "UTC"

// index is all zones there are.
type index struct {
	names []string // by ID
	ids   map[string]ID
	files map[string]*zip.File
	known []atomic.Pointer[time.Location] // by ID, once somebody asked
}

var all = sync.OnceValue(func() *index {
	r, err := zip.NewReader(strings.NewReader(rules), int64(len(rules)))
	if err != nil {
		panic("zone: the rules in this program cannot be read: " + err.Error())
	}
	x := &index{names: []string{UTC}, ids: map[string]ID{}, files: map[string]*zip.File{}}
	for _, f := range r.File {
		if x.files[f.Name] = f; f.Name != UTC && !strings.HasSuffix(f.Name, "/") && f.Name != "Factory" {
			x.names = append(x.names, f.Name)
		}
	}
	slices.Sort(x.names[1:])
	if len(x.names) > 1<<Bits {
		panic("zone: there are more zones than fit into an ID")
	}
	for i, name := range x.names {
		x.ids[name] = ID(i)
	}
	x.known = make([]atomic.Pointer[time.Location], len(x.names))
	x.known[0].Store(time.UTC)
	return x
})

// Find returns the zone of an IANA name, such as Europe/Berlin, in its own spelling. "" is UTC.
func Find(name string) (id ID, ok bool) {
	if name == "" {
		return 0, true
	}
	id, ok = all().ids[name]
	return id, ok
}

// Known reports whether there is such a zone.
func (id ID) Known() bool { return int(id) < len(all().names) }

// Name returns the name by which Find finds the zone.
func (id ID) Name() string { return all().names[id] }

// Location returns the rules of the zone.
func (id ID) Location() *time.Location {
	x := all()
	if l := x.known[id].Load(); l != nil {
		return l
	}
	name := x.names[id]
	f, err := x.files[name].Open()
	if err != nil {
		panic("zone: " + name + ": " + err.Error())
	}
	data, err := io.ReadAll(f)
	if err != nil {
		panic("zone: " + name + ": " + err.Error())
	}
	l, err := time.LoadLocationFromTZData(name, data)
	if err != nil {
		panic("zone: " + name + ": " + err.Error())
	}
	x.known[id].CompareAndSwap(nil, l)
	return x.known[id].Load()
}

// Names returns the names of all zones, UTC first, then in order.
func Names() []string { return slices.Clone(all().names) }
