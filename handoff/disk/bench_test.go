package disk

import (
	"encoding/binary"
	"fmt"
	"os"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const benchObjects = 1_000_000

// fill puts objects like those of limits and counters: 24 bytes of key, 60 of value.
func fill(b *Batch, from, n int, key, val []byte) {
	for i := from; i < from+n; i++ {
		hash := uint64(i) * 0x9e3779b97f4a7c15
		copy(key, "tenant/0000/")
		binary.BigEndian.PutUint64(key[16:], hash)
		binary.BigEndian.PutUint64(val[8:], uint64(i))
		b.Put(hash, key, nil, val)
	}
}

// BenchmarkRounds puts a million objects again and again, in rounds of 100,000 of parts of 8,192.
func BenchmarkRounds(b *testing.B) {
	s := mustOpen(b, vfs.Default, b.TempDir()+"/disk")
	key, val := make([]byte, 24), make([]byte, 60)
	b.ResetTimer()
	at := 0
	for done := 0; done < b.N; {
		const round, part = 100_000, 8192
		for i := 0; i < round && done < b.N; {
			n := min(part, round-i, b.N-done)
			batch := s.NewBatch()
			fill(batch, at%benchObjects, n, key, val)
			last := i+n == round || done+n == b.N
			if last {
				batch.SetHead(Head{Node: "n", Clock: int64(done)})
			}
			mustCommit(b, s, batch, last)
			i, done, at = i+n, done+n, at+n
		}
	}
	b.StopTimer()
	st := s.Stats()
	b.ReportMetric(st.Amplification(), "bytes/byte")
	b.ReportMetric(float64(st.DiskBytes)/(1<<20), "MiB")
}

// BenchmarkSync is a commit of some small objects that is synced.
func BenchmarkSync(b *testing.B) {
	for _, n := range []int{1, 64, 256} {
		b.Run(fmt.Sprint("objects=", n), func(b *testing.B) {
			s := mustOpen(b, vfs.Default, b.TempDir()+"/disk")
			key, val := make([]byte, 24), make([]byte, 60)
			at := 0
			for b.Loop() {
				batch := s.NewBatch()
				fill(batch, at, n, key, val)
				mustCommit(b, s, batch, true)
				at = (at + n) % benchObjects
			}
		})
		b.Run(fmt.Sprint("raw=", n), func(b *testing.B) { raw(b, n*(objectHead+24+60)) })
	}
}

// raw appends so many bytes to a file, and syncs it: what the machine can do.
func raw(b *testing.B, n int) {
	f, err := os.Create(b.TempDir() + "/raw")
	if err != nil {
		b.Fatal(err)
	}
	v, err := vfs.Default.OpenReadWrite(f.Name(), vfs.WriteCategoryUnspecified)
	if err != nil || f.Close() != nil {
		b.Fatal(err)
	}
	defer v.Close()
	if err := v.Preallocate(0, 32<<20); err != nil { // as the engine's log has
		b.Log(err)
	}
	buf := make([]byte, n)
	for b.Loop() {
		if _, err := v.Write(buf); err != nil {
			b.Fatal(err)
		}
		if err := v.SyncData(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkLoad opens a store of a million objects and reads them all.
func BenchmarkLoad(b *testing.B) {
	dir := b.TempDir() + "/disk"
	s := mustOpen(b, vfs.Default, dir)
	key, val := make([]byte, 24), make([]byte, 60)
	for i := 0; i < benchObjects; i += 8000 {
		batch := s.NewBatch()
		fill(batch, i, 8000, key, val)
		mustCommit(b, s, batch, false)
	}
	mustClose(b, s)
	for b.Loop() {
		s := mustOpen(b, vfs.Default, dir)
		n := 0
		if err := s.Objects(func(uint64, []byte, []byte, []byte) error { n++; return nil }); err != nil || n != benchObjects {
			b.Fatal(n, err)
		}
		mustClose(b, s)
	}
}
