package reqid

import (
	"testing"

	"pgregory.net/rapid"
)

// A table that was loaded, in parts, with what another one remembers of an object
// answers like it from then on, also when clients and ids are evicted.
func TestLoadedTableAnswersAlike(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := Config{Window: 100 * second, ClientsPerObject: 3, IDsPerClient: 3}
		a, b := NewTable(cfg), NewTable(cfg)
		var refA, refB uint32
		now := 1000 * second
		loaded := false
		step := func() {
			now += rapid.SampledFrom([]int64{0, 1, second, 15 * second}).Draw(t, "pause")
			id := ID{Client: Client{Hi: rapid.Uint64Range(1, 5).Draw(t, "client")}, Sequence: rapid.Uint64Range(1, 12).Draw(t, "sequence"),
				Age: rapid.SampledFrom([]int64{0, 1, 30 * second}).Draw(t, "age")}
			if rapid.Bool().Draw(t, "settles") {
				id.Settled = rapid.Uint64Range(1, id.Sequence).Draw(t, "settled")
			}
			verdict, out, age := a.Judge(refA, &id, 7, 0, now)
			if loaded {
				if v, o, g := b.Judge(refB, &id, 7, 0, now); v != verdict || o != out || g != age {
					t.Fatalf("at %d, %+v: %d %+v %d, loaded %d %+v %d", now, id, verdict, out, age, v, o, g)
				}
			}
			if verdict == New {
				refA = a.Note(refA, 1, &id, Outcome{Print: 7, A: now}, now)
				if loaded {
					refB = b.Note(refB, 1, &id, Outcome{Print: 7, A: now}, now)
				}
			}
		}
		for range rapid.IntRange(0, 40).Draw(t, "before") {
			step()
		}
		var k Kept
		var at Cursor
		for done := false; !done; {
			at, done = a.Save(refA, at, rapid.IntRange(1, 5).Draw(t, "part"), &k)
			if err := k.Valid(now); err != nil {
				t.Fatal(err)
			}
			refB = b.Load(refB, 1, &k, now, false)
		}
		loaded = true
		for range rapid.IntRange(0, 40).Draw(t, "after") {
			step()
		}
	})
}

func TestKeptIsChecked(t *testing.T) {
	for name, k := range map[string]Kept{
		"too few":       {Clients: []KeptClient{{Ops: 2}}, Ops: []KeptOp{{Sequence: 1}}},
		"too many":      {Clients: []KeptClient{{Ops: 0}}, Ops: []KeptOp{{Sequence: 1}}},
		"negative":      {Clients: []KeptClient{{Ops: 2}, {Ops: -1}}, Ops: []KeptOp{{Sequence: 1}}},
		"no sequence":   {Clients: []KeptClient{{Ops: 1}}, Ops: []KeptOp{{}}},
		"seen later":    {Clients: []KeptClient{{Seen: 2}}},
		"linked later":  {Clients: []KeptClient{{Seen: 0, Linked: 1}}},
		"linked before": {Clients: []KeptClient{{Linked: minMoment - 1}}},
		"done later":    {Clients: []KeptClient{{Ops: 1}}, Ops: []KeptOp{{Sequence: 1, At: 2}}},
		"done before":   {Clients: []KeptClient{{Ops: 1}}, Ops: []KeptOp{{Sequence: 1, At: minMoment - 1}}},
		"evicted later": {Evicted: 2},
	} {
		if k.Valid(1) == nil {
			t.Errorf("%s: taken", name)
		}
	}
}
