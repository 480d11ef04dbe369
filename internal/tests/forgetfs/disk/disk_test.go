package disk

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
)

// plain is a file as one would tell of it: what it is, and a copy of what was synced.
type plain struct {
	at          *Inode
	live, saved []byte
}

// model is two directories of such files.
type model struct {
	t      *testing.T
	r      *rand.Rand
	d      *Disk
	dirs   [2]*Inode
	live   [2]map[string]*plain
	saved  [2]map[string]*plain
	joined bool // a rename between them is not kept
}

func (m *model) open(dir string, ext4 bool) {
	d, err := Open(dir, Options{Ext4: ext4})
	if err != nil {
		m.t.Fatal(err)
	}
	m.d = d
	for i, name := range []string{"a", "b"} {
		at, e := d.root.Lookup(name)
		if e != 0 {
			at, _ = d.root.Create(name, true, 0o700)
		}
		m.dirs[i] = at
	}
	d.root.Sync()
}

// step does one thing, to the disk and to the model.
func (m *model) step() {
	i, name := m.r.IntN(2), fmt.Sprint("f", m.r.IntN(4))
	f := m.live[i][name]
	switch m.r.IntN(10) {
	case 0, 1:
		if f == nil {
			at, e := m.dirs[i].Create(name, false, 0o600)
			m.ok(e == 0)
			m.live[i][name] = &plain{at: at}
		}
	case 2, 3, 4:
		if f != nil {
			at, p := m.r.IntN(6000), bytes.Repeat([]byte{byte(m.r.IntN(256))}, 1+m.r.IntN(3000))
			_, e := f.at.Write(p, int64(at), false)
			m.ok(e == 0)
			f.grow(at + len(p))
			copy(f.live[at:], p)
		}
	case 5:
		if f != nil {
			size := m.r.IntN(6000)
			m.ok(f.at.Truncate(int64(size)) == 0)
			f.grow(size)
			f.live = f.live[:size:size]
		}
	case 6:
		if f != nil {
			m.ok(f.at.Sync() == 0)
			f.saved = bytes.Clone(f.live)
		}
	case 7:
		m.ok(m.dirs[i].Sync() == 0)
		m.saved[i] = maps.Clone(m.live[i])
		if m.joined {
			m.saved[1-i], m.joined = maps.Clone(m.live[1-i]), false
		}
	case 8:
		if f != nil {
			m.ok(m.dirs[i].Remove(name, false) == 0)
			delete(m.live[i], name)
		}
	case 9:
		j, to := m.r.IntN(2), fmt.Sprint("f", m.r.IntN(4))
		if f != nil && m.live[j][to] != f {
			m.ok(m.dirs[i].Rename(name, m.dirs[j], to, false) == 0)
			delete(m.live[i], name)
			m.live[j][to] = f
			m.joined = m.joined || i != j
		}
	}
}

func (f *plain) grow(size int) {
	f.live = append(f.live, make([]byte, max(0, size-len(f.live)))...)
}

func (m *model) ok(is bool) {
	m.t.Helper()
	if !is {
		m.t.Fatal("an operation failed")
	}
}

// same compares the disk with files, of which content says what they hold.
func (m *model) same(when string, want [2]map[string]*plain, content func(*plain) []byte) {
	m.t.Helper()
	for i, dir := range m.dirs {
		names, _ := dir.Names()
		if len(names) != len(want[i]) {
			m.t.Fatalf("%s, directory %d has %q, want %d names", when, i, names, len(want[i]))
		}
		for name, f := range want[i] {
			at, e := dir.Lookup(name)
			if e != 0 {
				m.t.Fatalf("%s, %d/%s: %v", when, i, name, e)
			}
			if !bytes.Equal(at.data, content(f)) {
				m.t.Fatalf("%s, %d/%s differs: %d bytes, want %d", when, i, name, len(at.data), len(content(f)))
			}
		}
	}
}

// Random operations leave what a naive copy says: live, after a crash, and after an orderly
// end. The size of all files is counted right.
func TestAgainstCopies(t *testing.T) {
	for seed := range uint64(150) {
		m := &model{t: t, r: rand.New(rand.NewPCG(seed, 0))}
		dir := t.TempDir()
		for i := range m.live {
			m.live[i], m.saved[i] = map[string]*plain{}, map[string]*plain{}
		}
		m.open(dir, false)
		for range 20 + m.r.IntN(200) {
			m.step()
		}
		live := func(f *plain) []byte { return f.live }
		m.same(fmt.Sprintf("seed %d, live", seed), m.live, live)
		bytes := int64(0)
		for i := range m.live {
			for _, f := range m.live[i] {
				bytes += int64(len(f.live))
			}
		}
		if is := m.d.Stats().Bytes; is != bytes {
			t.Fatalf("seed %d: %d bytes, want %d", seed, is, bytes)
		}
		if seed%3 == 0 {
			if err := m.d.Close(); err != nil {
				t.Fatal(err)
			}
			m.open(dir, false)
			m.same(fmt.Sprintf("seed %d, after an orderly end", seed), m.live, live)
			continue
		}
		if err := m.d.Crash(Torn{}); err != nil {
			t.Fatal(err)
		}
		m.open(dir, false)
		m.same(fmt.Sprintf("seed %d, after a crash", seed), m.saved, func(f *plain) []byte { return f.saved })
	}
}

// A torn crash of anything can be opened again, and the same seed leaves the same.
func TestTornTwice(t *testing.T) {
	for seed := range uint64(50) {
		var first string
		for range 2 {
			m := &model{t: t, r: rand.New(rand.NewPCG(seed, 1))}
			dir := t.TempDir()
			for i := range m.live {
				m.live[i], m.saved[i] = map[string]*plain{}, map[string]*plain{}
			}
			m.open(dir, seed%2 == 0)
			for range 20 + m.r.IntN(200) {
				m.step()
			}
			if err := m.d.Crash(Torn{On: true, Seed: seed}); err != nil {
				t.Fatal(err)
			}
			m.open(dir, false)
			left := ""
			for _, d := range m.dirs {
				names, _ := d.Names()
				for _, name := range names {
					at, _ := d.Lookup(name)
					left += fmt.Sprintf("%s %x\n", name, at.data)
				}
			}
			if first != "" && left != first {
				t.Fatalf("seed %d leaves two different things", seed)
			}
			first = left
		}
	}
}
