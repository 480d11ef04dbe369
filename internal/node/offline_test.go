package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/handoff/disk"
	"github.com/keystead/keystead/handoff/record"
	"github.com/keystead/keystead/owner"
	"google.golang.org/grpc"
)

// offline opens a data directory for reading.
func offline(t *testing.T, dir string) *Offline {
	t.Helper()
	o, err := OpenOffline(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.Close() })
	return o
}

// TestOffline: what a node has left is read, with its states, and nothing changes; a directory in use is refused, by
// either.
func TestOffline(t *testing.T) {
	dir := t.TempDir()
	n := startDurable(t, dir, "always", nil)
	u := use(t, n)
	token, _ := given(t, n, "a-lock")
	if _, err := OpenOffline(dir); !errors.Is(err, ErrInUse) {
		t.Errorf("a directory in use: %v", err)
	}
	n.Kill()
	o := offline(t, dir)
	if _, err := Start(Config{ID: n.cfg.ID, DataDir: dir, GRPCAddr: "127.0.0.1:0"}); err == nil {
		t.Error("a node starts while its directory is read")
	}
	x := o.Counting()
	if x == nil || !x.Whole || x.Head.Clean || x.Head.Node != n.cfg.ID || x.Head.Written == 0 || o.Unused != "" {
		t.Fatalf("it is %+v, unused %q", o.Stores, o.Unused)
	}
	keys, entries := map[string]int{}, 0
	err := x.Read(t.Context(), Items{
		Object: func(r *owner.Record, _ int) error { keys[string(r.Key)]++; return nil },
		Entry:  func(*owner.Record, int) error { entries++; return nil },
	})
	if err != nil || keys["a-lock"] != 1 || entries == 0 {
		t.Errorf("%v, %d entries, %v", keys, entries, err)
	}
	dial, stop, found, err := x.ServeKey("a-lock")
	if err != nil || found != 1 {
		t.Fatalf("%d objects, %v", found, err)
	}
	defer stop()
	c, err := client.Config{DialOptions: []grpc.DialOption{grpc.WithContextDialer(dial)}}.Dial(t.Context(), OfflineAddr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	k, err := c.Admin().InspectKey(t.Context(), "a-lock")
	if err != nil || len(k.Objects) != 1 || k.Objects[0].Lock == nil || k.Objects[0].Lock.Holder == nil || k.Objects[0].Lock.Holder.Token != token {
		t.Errorf("the lock is %+v, %v, and its token was %d", k.Objects, err, token)
	}
	last := 0.0
	r, err := x.Verify(t.Context(), func(part float64) { last = max(last, part) })
	if err != nil || r.Objects == 0 || last == 0 || last > 1 {
		t.Errorf("verified %+v, %v, %v done", r, err, last)
	}
	if err := o.Close(); err != nil {
		t.Error(err)
	}
	if n = startDurable(t, dir, "always", nil); !u.again(t, n) {
		t.Error("what was read is gone")
	}
}

// store makes a store of a data directory by hand.
func store(t *testing.T, dir string, number int, fill func(b *disk.Batch)) {
	t.Helper()
	s, err := disk.Open(disk.StoreDir(filepath.Join(dir, diskDirectory), number), disk.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if fill != nil {
		b := s.NewBatch()
		fill(b)
		if err := s.Commit(b, true); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestOfflineStores: of several stores the last whole one counts, and none if one behind it cannot be opened.
func TestOfflineStores(t *testing.T) {
	dir := t.TempDir()
	whole := func(b *disk.Batch) { b.SetHead(disk.Head{Node: "n", Epoch: 7}) }
	if err := os.MkdirAll(filepath.Join(dir, diskDirectory), 0o700); err != nil {
		t.Fatal(err)
	}
	store(t, dir, 1, whole)
	store(t, dir, 2, whole)
	store(t, dir, 3, nil)
	o := offline(t, dir)
	if x := o.Counting(); x == nil || x.Number != 2 || len(o.Stores) != 3 {
		t.Errorf("%+v", o.Stores)
	}
	write(t, filepath.Join(disk.StoreDir(o.Dir, 3), "format"), "something")
	if o = offline(t, dir); o.Counting() != nil || !errors.Is(o.Stores[2].Err, disk.ErrDamaged) {
		t.Errorf("%+v", o.Stores)
	}
}

// TestOfflineUnused: it is told when a node would not go on from what is there.
func TestOfflineUnused(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, diskDirectory), 0o700); err != nil {
		t.Fatal(err)
	}
	store(t, dir, 1, func(b *disk.Batch) { b.SetHead(disk.Head{Node: "n", Epoch: 7}) })
	write(t, epochPath(dir), `{"version":1,"epoch":9,"node":"n"}`)
	if o := offline(t, dir); !strings.Contains(o.Unused, "did not keep a store") {
		t.Errorf("it says %q", o.Unused)
	}
	for name, want := range map[string]string{"epoch.json": "ran with --durability none", "raft/log": "of a cluster", "": "no node has served there"} {
		dir := t.TempDir()
		if name != "" {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, name), "x")
		}
		if _, err := OpenOffline(dir); !errors.Is(err, ErrNoDisk) || !strings.Contains(err.Error(), want) {
			t.Errorf("with %q: %v", name, err)
		}
	}
}

// TestOfflineDamage: an object in another's place is found, though all checksums are right.
func TestOfflineDamage(t *testing.T) {
	r := &owner.Record{Kind: owner.KindCounter, Key: []byte("k"), Name: []byte("n"), Version: 1}
	value := record.AppendAt(record.Level, make([]byte, 8), r, 0)
	for name, put := range map[string]func(b *disk.Batch){
		"another name": func(b *disk.Batch) { b.Put(owner.Hash("k"), []byte("k"), []byte("m"), value) },
		"another key":  func(b *disk.Batch) { b.Put(owner.Hash("l"), []byte("l"), []byte("n"), value) },
		"no place":     func(b *disk.Batch) { b.Put(1, []byte("k"), []byte("n"), value) },
		"no record":    func(b *disk.Batch) { b.Put(owner.Hash("k"), []byte("k"), []byte("n"), value[:9]) },
		"too short":    func(b *disk.Batch) { b.Put(owner.Hash("k"), []byte("k"), []byte("n"), value[:7]) },
		"no entry":     func(b *disk.Batch) { b.Log(1, value) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.MkdirAll(filepath.Join(dir, diskDirectory), 0o700); err != nil {
				t.Fatal(err)
			}
			store(t, dir, 1, func(b *disk.Batch) { put(b); b.SetHead(disk.Head{Node: "n", Epoch: 7}) })
			o := offline(t, dir)
			if _, err := o.Counting().Verify(context.Background(), func(float64) {}); !errors.Is(err, disk.ErrDamaged) {
				t.Errorf("verified: %v", err)
			}
		})
	}
}
