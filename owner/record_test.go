package owner

import (
	"fmt"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/reqid"
)

// mirror is what a copy would hold that installs every record: the last state
// of each object, and every request id.
type mirror struct {
	t       *rapid.T
	objects map[Ref]copied
	ids     map[string]reqid.Outcome
	version map[uint64]uint64 // last one by shard, known by the top bit of the hash
}

type copied struct {
	kind    Kind
	limit   limit.State
	marks   string
	counter counter.State
	lock    hold.State
}

func copyOf(r *Record) copied {
	c := copied{kind: r.Kind, counter: r.Counter()}
	var marks []limit.Mark
	c.limit, marks = r.Limit()
	c.marks = fmt.Sprint(marks)
	if l := r.Hold(); l != nil {
		c.lock = l.Clone()
	}
	return c
}

func (m *mirror) Changed(r *Record) {
	ref := Ref{Key: string(r.Key), Name: string(r.Name)}
	if r.Hash != Hash(ref.Key) {
		m.t.Fatalf("%v: hash %x", ref, r.Hash)
	}
	shard := r.Hash >> 63
	if r.Version < m.version[shard] {
		m.t.Fatalf("version %d after %d", r.Version, m.version[shard])
	}
	m.version[shard] = r.Version
	m.objects[ref] = copyOf(r)
	for _, d := range r.Done {
		m.ids[fmt.Sprint(ref, d.ID.Client, d.ID.Sequence)] = d.Outcome
	}
}

// What the sink was told is what the store holds: a store that installs the
// records has the same objects and request ids.
func TestRecordsSayEverything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &mirror{t, map[Ref]copied{}, map[string]reqid.Outcome{}, map[uint64]uint64{}}
		s, err := New(Config{Rule: &testRule{epoch: 1}, Shards: 2, Sink: m}, 0)
		if err != nil {
			t.Fatal(err)
		}
		now, seq := 200*second, uint64(0)
		var tokens []uint64
		var waits []*Wait[GrantAnswer]
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now += rapid.SampledFrom([]int64{0, second / 3, 3 * second}).Draw(t, "pause")
			key := fmt.Sprintf("key-%d", rapid.IntRange(0, 2).Draw(t, "key"))
			rid := noID
			if rapid.Bool().Draw(t, "with id") {
				seq++
				rid = id(max(1, seq-rapid.Uint64Range(0, 1).Draw(t, "repeat")))
			}
			switch rapid.IntRange(0, 9).Draw(t, "kind") {
			case 9:
				op := perSecond(9)
				op.Algorithm = limit.Algorithm(rapid.IntRange(1, 2).Draw(t, "algorithm"))
				if rapid.IntRange(0, 3).Draw(t, "refunds") == 0 {
					op.Cost, op.Refund = 0, 2
				}
				_, err = s.Check(now+rapid.Int64Range(0, 9).Draw(t, "a little later"), Ref{Key: key, Name: "window"}, rid, op)
			case 0:
				_, err = s.Check(now, Ref{Key: key, Name: "limit"}, rid, perSecond(2))
			case 1:
				_, err = s.Add(now, Ref{Key: key, Name: "counter"}, rid, counter.AddOp{Delta: 1, Max: 3, HasMax: true, IdleTTL: 2 * second})
			case 2:
				_, err = s.Get(now, Ref{Key: key, Name: "counter"})
			case 3:
				_, err = s.Reset(now, Ref{Key: key, Name: "counter"}, rid)
			case 4, 5:
				var a GrantAnswer
				var w *Wait[GrantAnswer]
				a, w, err = s.Acquire(now, Ref{Key: key, Name: "lock"}, rid, asks("h", 4*second, rapid.SampledFrom([]int64{0, 5 * second}).Draw(t, "wait")))
				if a.Acquired {
					tokens = append(tokens, a.Token)
				}
				if w != nil {
					waits = append(waits, w)
				}
			case 6:
				if len(tokens) > 0 {
					_, err = s.Release(now, Ref{Key: key, Name: "lock"}, rid, rapid.SampledFrom(tokens).Draw(t, "token"))
				}
			case 7:
				if len(waits) > 0 {
					rapid.SampledFrom(waits).Draw(t, "wait").GiveUp(now)
				}
			case 8:
				s.Wake(now)
				_, err = s.Inspect(now, Ref{Key: key, Name: "lock"}, 5)
			}
			if r := reason(err); err != nil && r != failure.RequestIDReused && r != failure.RequestTooOld {
				t.Fatal(err)
			}
			m.compare(s)
		}
	})
}

func (m *mirror) compare(s *Store) {
	ids := 0
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		for pos := range sh.index.Span() {
			slot := sh.index.Slot(pos)
			if slot == 0 {
				continue
			}
			e := sh.entryLocked(slot)
			text := e.text()
			ref := Ref{Key: string(text[:e.keyLen()]), Name: string(text[e.keyLen():])}
			r := sh.recordLocked(slot, Hash(ref.Key), false)
			want := copyOf(r)
			if got := m.objects[ref]; !same(got, want) {
				m.t.Fatalf("%v:\nrecorded %+v\n    held %+v", ref, got, want)
			}
			sh.ids.Each(e.ids, func(id reqid.ID, out reqid.Outcome, _ int64) {
				ids++
				if got := m.ids[fmt.Sprint(ref, id.Client, id.Sequence)]; got != out {
					m.t.Fatalf("%v id %d: recorded %+v, held %+v", ref, id.Sequence, got, out)
				}
			})
		}
		sh.mu.Unlock()
	}
	if ids != len(m.ids) {
		m.t.Fatalf("%d ids are held, %d recorded", ids, len(m.ids))
	}
}

func same(a, b copied) bool {
	if a.lock.Queue.Len() == 0 && b.lock.Queue.Len() == 0 {
		a.lock.Queue.Places, b.lock.Queue.Places = nil, nil
	}
	return reflect.DeepEqual(a, b)
}
