package reqid

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

const second = int64(1e9)

var small = Config{Window: 100 * second, ClientsPerObject: 3, IDsPerClient: 4}

func id(client, seq, settled uint64, age int64) *ID {
	return &ID{Client: Client{client, ^client}, Sequence: seq, Settled: settled, Age: age}
}

func out(n int64) Outcome { return Outcome{Print: 7, Code: 1, A: n} }

func TestJudge(t *testing.T) {
	type step struct {
		at      int64
		id      *ID
		print   uint32 // 0 = 7
		verdict Verdict
		first   int64 // of a replay
		age     int64
	}
	tests := []struct {
		name  string
		steps []step // what is New is noted
	}{
		{"a retry is a replay with its age", []step{
			{at: 200 * second, id: id(1, 1, 0, 0)},
			{at: 205 * second, id: id(1, 1, 0, 5*second), verdict: Replay, first: 200, age: 5 * second},
			{at: 206 * second, id: id(1, 1, 0, 0), verdict: Replay, first: 200, age: 6 * second},
		}},
		{"sequences and clients are apart", []step{
			{at: 200 * second, id: id(1, 1, 0, 0)},
			{at: 200 * second, id: id(1, 2, 0, 0)},
			{at: 200 * second, id: id(2, 1, 0, 0)},
		}},
		{"another operation under the same id", []step{
			{at: 200 * second, id: id(1, 1, 0, 0)},
			{at: 200 * second, id: id(1, 1, 0, 0), print: 8, verdict: Reused},
		}},
		{"a late copy of what is settled", []step{
			{at: 200 * second, id: id(1, 1, 0, 0)},
			{at: 200 * second, id: id(1, 2, 2, 0)},
			{at: 200 * second, id: id(1, 1, 0, 0), verdict: TooOld},
		}},
		{"settled is learnt from a replay as well", []step{
			{at: 200 * second, id: id(1, 1, 0, 0)},
			{at: 200 * second, id: id(1, 2, 0, 0)},
			{at: 200 * second, id: id(1, 2, 2, 0), verdict: Replay, first: 200},
			{at: 200 * second, id: id(1, 1, 0, 0), verdict: TooOld},
		}},
		{"first sent before the process started", []step{
			{at: 3 * second, id: id(1, 1, 0, 4*second), verdict: TooOld},
		}},
		{"a retry older than half of the window", []step{
			{at: 200 * second, id: id(1, 1, 0, 50*second), verdict: TooOld},
			{at: 200 * second, id: id(1, 1, 0, 49*second)},
		}},
		{"more ids than are remembered of a client", []step{
			{at: 200 * second, id: id(1, 1, 0, 0)},
			{at: 201 * second, id: id(1, 2, 0, 0)},
			{at: 202 * second, id: id(1, 3, 0, 0)},
			{at: 203 * second, id: id(1, 4, 0, 0)},
			{at: 204 * second, id: id(1, 5, 0, 0)}, // evicts 1
			{at: 205 * second, id: id(1, 1, 0, 5*second), verdict: TooOld},
			{at: 205 * second, id: id(1, 2, 0, 4*second), verdict: Replay, first: 201, age: 4 * second},
			{at: 210 * second, id: id(1, 6, 0, 2*second)}, // first sent after the eviction
		}},
		{"more clients than are remembered of an object", []step{
			{at: 200 * second, id: id(1, 1, 0, 0)},
			{at: 201 * second, id: id(2, 1, 0, 0)},
			{at: 202 * second, id: id(3, 1, 0, 0)},
			{at: 203 * second, id: id(1, 2, 0, 0)},
			{at: 204 * second, id: id(4, 1, 0, 0)}, // evicts client 2, idle longest
			{at: 205 * second, id: id(2, 1, 0, 4*second), verdict: TooOld},
			{at: 205 * second, id: id(1, 1, 0, 5*second), verdict: Replay, first: 200, age: 5 * second},
		}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			tab := NewTable(small)
			var ref uint32
			for i, s := range tc.steps {
				print := max(s.print, 7)
				verdict, o, age := tab.Judge(ref, s.id, print, 0, s.at)
				if verdict != s.verdict {
					t.Fatalf("step %d: verdict %d, want %d", i, verdict, s.verdict)
				}
				if verdict == Replay && (o.A != s.first || age != s.age) {
					t.Fatalf("step %d: replay of %d aged %d, want %d aged %d", i, o.A, age, s.first, s.age)
				}
				if verdict == New {
					ref = tab.Note(ref, 1, s.id, out(s.at/second), s.at)
				}
			}
		})
	}
}

func TestExpireForgetsIdleClientsAndTellsTheOwner(t *testing.T) {
	tab := NewTable(small)
	a := tab.Note(0, 11, id(1, 1, 0, 0), out(1), 10*second)
	b := tab.Note(0, 22, id(1, 1, 0, 0), out(1), 20*second)
	tab.Note(a, 11, id(2, 1, 0, 0), out(1), 30*second)
	var emptied []uint32
	for _, now := range []int64{110, 121, 131} {
		tab.Expire(now*second, 100, func(owner uint32) { emptied = append(emptied, owner) })
		emptied = append(emptied, 0)
	}
	if want := []uint32{0, 22, 0, 11, 0}; !slices.Equal(emptied, want) {
		t.Errorf("emptied %v, want %v", emptied, want)
	}
	_ = b
	if n := tab.clients.Len() + tab.ops.Len() + tab.objects.Len(); n != 0 {
		t.Errorf("%d cells left", n)
	}
}

// Whatever is sent, repeated, delayed and reordered: no operation is done twice,
// as long as nothing is evicted for want of room or the client sends settled.
func TestNothingIsDoneTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := Config{Window: 100 * second, ClientsPerObject: 8, IDsPerClient: 64}
		tab := NewTable(cfg)
		refs := map[int]uint32{}
		done := map[string]int64{}
		type sent struct {
			object int
			id     ID
			first  int64
		}
		var log []sent
		now := 200 * second
		next := map[uint64]uint64{}
		unsettled := map[uint64]uint64{} // lowest sequence that the client may still send
		deliver := func(m sent, late bool) {
			ref := refs[m.object]
			key := fmt.Sprint(m.object, m.id.Client, m.id.Sequence)
			verdict, o, _ := tab.Judge(ref, &m.id, 7, 0, now)
			before, was := done[key]
			switch {
			case verdict == New && was:
				t.Fatalf("%s would be done again", key)
			case verdict == New:
				done[key] = now
				refs[m.object] = tab.Note(ref, uint32(m.object), &m.id, out(now), now)
			case verdict == Replay && (!was || o.A != before):
				t.Fatalf("%s: replay of %d, done at %d", key, o.A, before)
			case verdict == TooOld && !late:
				t.Fatalf("%s refused although it was sent in time", key)
			}
		}
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			now += rapid.Int64Range(0, second/2).Draw(t, "pause")
			c := rapid.Uint64Range(1, 4).Draw(t, "client")
			switch k := rapid.IntRange(0, 9).Draw(t, "kind"); {
			case k < 5 || len(log) == 0: // a new operation
				next[c]++
				if rapid.Bool().Draw(t, "settle") {
					unsettled[c] = next[c] - min(next[c]-1, rapid.Uint64Range(0, 3).Draw(t, "open"))
				}
				m := sent{rapid.IntRange(0, 2).Draw(t, "object"), *id(c, next[c], unsettled[c], 0), now}
				log = append(log, m)
				if k > 0 { // else it is lost on the way, or late
					deliver(m, false)
				}
			case k < 8: // a retry with its age
				m := rapid.SampledFrom(log).Draw(t, "which")
				m.id.Age = now - m.first
				deliver(m, true)
			default: // a late copy of the first attempt
				deliver(rapid.SampledFrom(log).Draw(t, "which"), true)
			}
			if k := rapid.IntRange(0, 19).Draw(t, "expire"); k == 0 {
				tab.Expire(now, 10, func(owner uint32) { delete(refs, int(owner)) })
			}
		}
	})
}

func TestEachListsWhatIsRemembered(t *testing.T) {
	tab := NewTable(small)
	ref := tab.Note(0, 1, id(1, 1, 0, 0), out(1), 1)
	tab.Note(ref, 1, id(2, 5, 0, 0), out(2), 2)
	tab.Note(ref, 1, id(1, 3, 2, 0), out(3), 3)
	var got []string
	tab.Each(ref, func(id ID, o Outcome, at int64) {
		got = append(got, fmt.Sprintf("%d/%d≥%d=%d@%d", id.Client.Hi, id.Sequence, id.Settled, o.A, at))
	})
	if want := []string{"1/3≥2=3@3", "2/5≥0=2@2"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	tab := NewTable(Config{Window: 100 * second, ClientsPerObject: 4, IDsPerClient: 16})
	var ref uint32
	var seq uint64
	step := func() {
		seq++
		i := ID{Client: Client{1, 2}, Sequence: seq, Settled: seq}
		if v, _, _ := tab.Judge(ref, &i, 7, 0, int64(seq)); v != New {
			t.Fatal(v)
		}
		ref = tab.Note(ref, 1, &i, out(1), int64(seq))
	}
	for range 1000 {
		step()
	}
	if n := testing.AllocsPerRun(1000, step); n != 0 {
		t.Errorf("%v allocations per operation", n)
	}
}

func BenchmarkJudgeAndNote(b *testing.B) {
	tab := NewTable(Config{Window: 100 * second, ClientsPerObject: 1024, IDsPerClient: 1024})
	var ref uint32
	b.ReportAllocs()
	for seq := uint64(1); b.Loop(); seq++ {
		i := ID{Client: Client{seq % 64, 2}, Sequence: seq, Settled: seq - min(seq, 32)}
		if v, _, _ := tab.Judge(ref, &i, 7, 0, int64(seq)); v == New {
			ref = tab.Note(ref, 1, &i, out(1), int64(seq))
		}
	}
}
