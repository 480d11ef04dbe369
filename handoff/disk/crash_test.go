package disk

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// small makes tables so small that a few hundred objects are flushed and merged.
func small(o *pebble.Options) {
	o.MemTableSize = 32 << 10
	o.TargetFileSizes[0] = 8 << 10
	o.LBaseMaxBytes = 32 << 10
	o.MaxManifestFileSize = 4 << 10
	o.L0CompactionThreshold = 2
}

// work is a series of batches, and what a store has to hold after each of them.
type work struct {
	rnd    *rand.Rand
	states []map[string]string // by number of batches
}

func newWork(seed uint64) *work {
	return &work{rnd: rand.New(rand.NewPCG(seed, 7)), states: []map[string]string{{}}}
}

// next fills a batch.
func (w *work) next(b *Batch) {
	n := len(w.states)
	m := maps.Clone(w.states[n-1])
	for range 1 + w.rnd.IntN(20) {
		hash := uint64(w.rnd.IntN(40)) << 58
		key, name := fmt.Appendf(nil, "key %d", w.rnd.IntN(4)), fmt.Appendf(nil, "%d", w.rnd.IntN(2))
		id := fmt.Sprintf("o %d %q %q", hash, key, name)
		switch w.rnd.IntN(12) {
		case 0, 1:
			b.Delete(hash, key, name)
			delete(m, id)
		case 2:
			if w.rnd.IntN(5) > 0 {
				continue
			}
			after, upTo := hash, uint64(w.rnd.IntN(40))<<58
			b.DeleteRange(after, upTo)
			maps.DeleteFunc(m, func(k, _ string) bool {
				var h uint64
				_, err := fmt.Sscanf(k, "o %d ", &h)
				return err == nil && (after == upTo || h-after-1 < upTo-after)
			})
		default:
			v := value(fmt.Sprintf("%d %s", n, strings.Repeat("x", w.rnd.IntN(800))))
			b.Put(hash, key, name, v)
			m[id] = string(v)
		}
	}
	b.SetHead(Head{Node: "n", Round: uint64(n)})
	m["head"] = fmt.Sprintf("%+v", Head{Node: "n", Round: uint64(n)})
	entry := fmt.Sprintf("entry of %d", n)
	b.Log(int64(n)*Bucket/3, []byte(entry))
	if n%10 == 0 {
		b.DropLog(int64(n-5) * Bucket / 3)
		maps.DeleteFunc(m, func(k, _ string) bool { return strings.HasPrefix(k, "i ") })
		i := 0
		for j := 1; j <= n; j++ {
			if int64(j)*Bucket/3/Bucket >= int64(n-5)*Bucket/3/Bucket {
				m[fmt.Sprint("i ", i)] = fmt.Sprintf("%d entry of %d", int64(j)*Bucket/3, j)
				i++
			}
		}
	} else {
		i := 0
		for k := range m {
			if strings.HasPrefix(k, "i ") {
				i++
			}
		}
		m[fmt.Sprint("i ", i)] = fmt.Sprintf("%d %s", int64(n)*Bucket/3, entry)
	}
	w.states = append(w.states, m)
}

// check fails unless the store holds what it held after one of the batches, from the least to the last.
func (w *work) check(t *testing.T, s *Store, least int, what string) {
	t.Helper()
	got := mustContent(t, s)
	h, _ := s.Head()
	n := int(h.Round)
	if n < least || n >= len(w.states) {
		t.Fatalf("%s: the store is that of batch %d; %d had been synced, %d begun", what, n, least, len(w.states)-1)
	}
	if want := w.states[n]; !maps.Equal(got, want) {
		for k, v := range want {
			if got[k] != v {
				t.Errorf("%s: batch %d: %s is %.30q, not %.30q", what, n, k, got[k], v)
			}
		}
		t.Fatalf("%s: batch %d: it holds %d, not %d", what, n, len(got), len(want))
	}
}

// within fails the test if f does not return: every wait of a store has an end.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		b := make([]byte, 1<<20)
		t.Fatalf("%s hangs\n%s", what, b[:runtime.Stack(b, true)])
	}
}

// TestCrashes: at any moment at which the machine stops, all that had been synced is there, and
// what is there is the state after one of the batches. What was not synced is lost in part.
func TestCrashes(t *testing.T) {
	for seed := range uint64(40) {
		rnd, moments := rand.New(rand.NewPCG(seed, 1)), rand.New(rand.NewPCG(seed, 2))
		mem := vfs.NewCrashableMem()
		var mu sync.Mutex // guards what follows
		acked, clones := 0, []*vfs.MemFS(nil)
		var least []int
		left := moments.IntN(40)
		inject := errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			if left--; left < 0 && len(clones) < 12 {
				left = moments.IntN(60)
				least = append(least, acked)
				clones = append(clones, mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: int(seed*13) % 101, RNG: rand.New(rand.NewPCG(seed, uint64(len(clones))))}))
			}
			return nil
		})
		w := newWork(seed)
		var s *Store
		for range 2 {
			var err error
			if s, err = Open("d", Options{FS: errorfs.Wrap(mem, inject), tune: small}); err != nil {
				t.Fatal(err)
			}
			for range 60 {
				b := s.NewBatch()
				mu.Lock()
				w.next(b)
				mu.Unlock()
				sync := rnd.IntN(3) == 0
				mustCommit(t, s, b, sync)
				if !sync && rnd.IntN(5) == 0 { // a batch with nothing in it syncs those before it
					mustCommit(t, s, s.NewBatch(), true)
					sync = true
				}
				if sync {
					mu.Lock()
					acked = len(w.states) - 1
					mu.Unlock()
				}
			}
			w.check(t, s, len(w.states)-1, "before the end")
			mustClose(t, s)
			mu.Lock()
			acked = len(w.states) - 1
			mu.Unlock()
		}
		mu.Lock()
		least = append(least, acked)
		clones = append(clones, mem.CrashClone(vfs.CrashCloneCfg{}))
		mu.Unlock()
		for i, c := range clones {
			what := fmt.Sprintf("seed %d, crash %d", seed, i)
			if i%2 == 0 {
				c, what = again(c, seed+uint64(i)), what+", and another while it is opened"
			}
			r, err := Open("d", Options{FS: c, tune: small})
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			w.check(t, r, least[i], what)
			if err := r.Close(); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
}

// again opens what a crash has left, and returns what another crash leaves at some moment of that.
func again(c *vfs.MemFS, seed uint64) (left *vfs.MemFS) {
	rnd := rand.New(rand.NewPCG(seed, 5))
	var mu sync.Mutex // guards what follows
	at, n := rnd.IntN(60), 0
	inject := errorfs.InjectorFunc(func(op errorfs.Op) error {
		mu.Lock()
		defer mu.Unlock()
		if n++; left == nil && n > at && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			left = c.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rnd.IntN(101), RNG: rnd})
		}
		return nil
	})
	if s, err := Open("d", Options{FS: errorfs.Wrap(c, inject), tune: small}); err == nil {
		_ = s.Close()
	}
	mu.Lock()
	defer mu.Unlock()
	if left == nil {
		return c
	}
	return left
}

// TestMarkers: before a marker is made, what it names is in the directory for good; and so is the new one
// before the old one goes.
func TestMarkers(t *testing.T) {
	var mu sync.Mutex // guards what follows
	var unsettled []string
	made, gone := 0, 0
	inject := errorfs.InjectorFunc(func(op errorfs.Op) error {
		mu.Lock()
		defer mu.Unlock()
		name := op.Path[strings.LastIndexByte(op.Path, '/')+1:]
		marker := strings.HasPrefix(name, "marker.")
		switch {
		case op.Kind == errorfs.OpFileSync && op.Path == "d":
			unsettled = nil
		case op.Kind == errorfs.OpCreate && marker:
			if made++; slices.ContainsFunc(unsettled, func(n string) bool { return strings.HasSuffix(name, n) }) {
				t.Errorf("%s is made, and may be there without what it names", name)
			}
			unsettled = append(unsettled, name)
		case op.Kind == errorfs.OpCreate:
			unsettled = append(unsettled, name)
		case op.Kind == errorfs.OpRemove && marker:
			kind := "marker." + strings.Split(name, ".")[1] + "."
			if gone++; slices.ContainsFunc(unsettled, func(n string) bool { return strings.HasPrefix(n, kind) }) {
				t.Errorf("%s is removed, and the one that takes its place may be missing", name)
			}
		}
		return nil
	})
	s, w := begun(t, errorfs.Wrap(vfs.NewMem(), inject), newWork(1)), newWork(2)
	for range 50 {
		b := s.NewBatch()
		w.next(b)
		mustCommit(t, s, b, false)
	}
	mustClose(t, s)
	mu.Lock()
	defer mu.Unlock()
	if made < 10 || gone < 10 {
		t.Errorf("%d markers are made, %d removed", made, gone)
	}
}
