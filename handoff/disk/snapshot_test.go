package disk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/keystead/keystead/handoff/disk/statefile"
)

// pair puts two objects of each key that have the same number.
func pair(t *testing.T, s *Store, number uint64) {
	t.Helper()
	b := s.NewBatch()
	for key := range uint64(200) {
		value := binary.BigEndian.AppendUint64(make([]byte, 8, 1<<10), number)
		b.Put(key, []byte(fmt.Sprint(key)), []byte("a"), value)
		b.Put(key, []byte(fmt.Sprint(key)), []byte("b"), append(value, make([]byte, 1000)...))
	}
	b.Log(int64(number)*Bucket, []byte("entry"))
	b.SetHead(Head{Node: "n", Epoch: 7, Round: number})
	if err := s.Commit(b, true); err != nil {
		t.Fatal(err)
	}
}

// TestSnapshotOfOneMoment: what is read piece by piece is what was there at the beginning, whatever is written
// meanwhile.
func TestSnapshotOfOneMoment(t *testing.T) {
	s, err := Open("d", Options{FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	pair(t, s, 1)
	p, err := s.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	n, round := 0, uint64(1)
	for more := true; more; round++ {
		pair(t, s, round+1)
		more, err = p.Read(10_000, func(k, v []byte) error {
			if n++; k[0] == objectPrefix && binary.BigEndian.Uint64(v[8:]) != 1 {
				return fmt.Errorf("%q is of round %d", k, binary.BigEndian.Uint64(v[8:]))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if n != 402 || round < 10 || p.head.Round != 1 {
		t.Errorf("%d items in %d pieces, of round %d", n, round, p.head.Round)
	}
	p.Close()
	p.Close()
	if _, err := p.Read(1, nil); !errors.Is(err, ErrExpired) {
		t.Errorf("read after its end: %v", err)
	}
}

// TestSnapshotAtTheEnd: a store that ends does not wait for its reader.
func TestSnapshotAtTheEnd(t *testing.T) {
	s, err := Open("d", Options{FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	pair(t, s, 1)
	p, err := s.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Read(1000, func([]byte, []byte) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := p.Read(1000, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("read after the end of the store: %v", err)
	}
	p.Close()
}

// backupOf returns a backup of a store.
func backupOf(t *testing.T, s *Store) []byte {
	t.Helper()
	p, err := s.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var file bytes.Buffer
	if err := p.Backup(&file, []byte("policies")); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

// TestBackupRestored: a store that was made of a backup has all of it but its head, which is changed, and a backup of
// that is the same; what fails on the way leaves nothing that counts.
func TestBackupRestored(t *testing.T) {
	files := vfs.NewMem()
	s, err := Open("d", Options{FS: files})
	if err != nil {
		t.Fatal(err)
	}
	pair(t, s, 3)
	file := backupOf(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	got := ""
	same := func(h Head) Head { return h }
	if err := RestoreBackup(bytes.NewReader(file), "r", Options{FS: files}, same, func(b []byte) error { got = string(b); return nil }); err != nil || got != "policies" {
		t.Fatalf("%v, policies %q", err, got)
	}
	if s, err = Open("r", Options{FS: files}); err != nil {
		t.Fatal(err)
	}
	if again := backupOf(t, s); !bytes.Equal(again, file) || s.rounds.Load() == 0 {
		t.Errorf("the backup of what was restored has %d bytes, and it was %d", len(again), len(file))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := RestoreBackup(bytes.NewReader(file), "r", Options{FS: files}, same, nil); err == nil {
		t.Error("a store that is there is overwritten")
	}
	if err := RestoreBackup(bytes.NewReader(file[:len(file)-1]), "torn", Options{FS: files}, same, nil); !errors.Is(err, ErrBackupDamaged) {
		t.Errorf("a torn one: %v", err)
	}
	if s, err = Open("torn", Options{FS: files}); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, whole := s.Head(); whole {
		t.Error("what is restored of a torn one counts")
	}
}

// TestBackupOfLargeValues: an object is backed up however much it has, such as a queue of many.
func TestBackupOfLargeValues(t *testing.T) {
	s, err := Open("d", Options{FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	sizes := []int{0, 1, statefile.MaxRecord - 100, statefile.MaxRecord, statefile.MaxRecord + 1, 5 * statefile.MaxRecord, 10}
	b := s.NewBatch()
	for i, n := range sizes {
		b.Put(uint64(i), []byte("k"), []byte("n"), bytes.Repeat([]byte{byte(i + 1)}, n))
	}
	b.SetHead(Head{Node: "n", Epoch: 7})
	if err := s.Commit(b, true); err != nil {
		t.Fatal(err)
	}
	whole := backupOf(t, s)
	restored := vfs.NewMem()
	same := func(h Head) Head { return h }
	if err := RestoreBackup(bytes.NewReader(whole), "r", Options{FS: restored}, same, nil); err != nil {
		t.Fatal(err)
	}
	r, err := Open("r", Options{FS: restored})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	i := 0
	err = r.Objects(func(hash uint64, _, _, value []byte) error {
		if want := bytes.Repeat([]byte{byte(i + 1)}, sizes[i]); hash != uint64(i) || !bytes.Equal(value, want) {
			t.Errorf("object %d has %d bytes, want %d", hash, len(value), len(want))
		}
		i++
		return nil
	})
	if err != nil || i != len(sizes) {
		t.Errorf("%d objects, %v", i, err)
	}
}

// TestGoldenBackup: a backup of the first format is read, for ever, and written so.
func TestGoldenBackup(t *testing.T) {
	path := filepath.Join("testdata", "backup1")
	s, err := Open("d", Options{FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	b := s.NewBatch()
	b.Put(1<<60, []byte("key"), []byte("name"), []byte("the moment and a record"))
	b.Log(7*Bucket, []byte("entry"))
	b.SetHead(Head{Node: "n1", Epoch: 9, Versions: 5, Clock: 7*Bucket + 1, Round: 3, Written: 1_795_000_000_000_000_000, Durability: "interval", Version: "v"})
	if err := s.Commit(b, true); err != nil {
		t.Fatal(err)
	}
	file := backupOf(t, s)
	if *rewrite {
		if err := os.WriteFile(path, file, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(golden, file) {
		t.Errorf("%v; it is\n%q\nand was\n%q", err, file, golden)
	}
	objects, entries := 0, 0
	r := &Backup{Policies: func(b []byte) error { return nil },
		Object: func(uint64, []byte, []byte, []byte) error { objects++; return nil }, Entry: func(int64, []byte) error { entries++; return nil }}
	if err := ReadBackup(bytes.NewReader(golden), r); err != nil || objects != 1 || entries != 1 || r.Head.Node != "n1" {
		t.Errorf("%d objects, %d entries of %+v, %v", objects, entries, r.Head, err)
	}
}

// TestBackupOfARound: what a keeper's snapshot has is what its objects are, though no round has seen them yet.
func TestBackupOfARound(t *testing.T) {
	l := begin(t, vfs.NewMem(), 1, "always")
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		l.step(rng)
	}
	l.k.work.Go(l.k.run)
	p, err := l.k.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	if err := p.Backup(&file, nil); err != nil {
		t.Fatal(err)
	}
	p.Close()
	other := vfs.NewMem()
	if err := RestoreBackup(&file, StoreDir("disk", 1), Options{FS: other}, func(h Head) Head { return h }, nil); err != nil {
		t.Fatal(err)
	}
	begin(t, other, rng.Int64N(1<<40), "always").same(l.objects(), "restored")
}

// FuzzBackup: any bytes are read without a panic.
func FuzzBackup(f *testing.F) {
	if golden, err := os.ReadFile(filepath.Join("testdata", "backup1")); err == nil {
		f.Add(golden)
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		_ = ReadBackup(bytes.NewReader(file), &Backup{})
	})
}
