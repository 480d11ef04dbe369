package reqid

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestKeyIDsDiffer(t *testing.T) {
	seen := map[ID]string{}
	keys := []string{"a", "b", "a\x00", strings.Repeat("a", MaxKey), strings.Repeat("a", MaxKey-1)}
	for i := range 1000 {
		keys = append(keys, fmt.Sprint("order-", i))
	}
	for _, k := range keys {
		id := KeyID(k)
		if was, is := seen[id]; is || !id.Keyed() || !id.Given() || IsMark(id.Client, id.Sequence) || id != KeyID(k) {
			t.Errorf("%q: %+v, as %q", k, id, was)
		}
		seen[id] = k
	}
	// It is the same in every version: keys are sent again across upgrades.
	if got, want := KeyID("order-7"), (ID{Client: Client{0xdf8cf80227ec3237, 0x922df0ecd88385c5}, Sequence: KeySequence}); got != want {
		t.Errorf("%x", got.Client)
	}
}

// Whatever is sent under keys, repeated, delayed and reordered, and whatever is forgotten
// with its objects: within Window of its first attempt none is done twice, and one that was
// done on another body is refused. What cannot be known is refused, and only that.
func TestKeysAreDoneOnce(t *testing.T) {
	const window = 100 * second
	rapid.Check(t, func(t *rapid.T) {
		tab := NewTable(Config{Window: window, ClientsPerObject: 2, IDsPerClient: 2})
		type done struct {
			at    int64
			print uint32
		}
		refs := map[uint32]uint32{} // object → reference
		was := map[string]done{}
		lost := map[uint32]int64{} // object → when its memory was lost
		now, since := 1000*second, int64(math.MinInt64)
		for range rapid.IntRange(1, 150).Draw(t, "steps") {
			now += rapid.SampledFrom([]int64{0, 1, second, 30 * second, window}).Draw(t, "pause")
			object := rapid.Uint32Range(1, 3).Draw(t, "object")
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0: // the memory of an object goes with a move; the next table knows since when
				var k Kept
				if ref := refs[object]; ref != 0 && rapid.Bool().Draw(t, "carried") {
					var c Cursor
					var parts []Kept
					for over := false; !over; {
						c, over = tab.Save(ref, c, rapid.IntRange(1, 3).Draw(t, "most"), &k)
						parts = append(parts, Kept{k.Evicted, slices.Clone(k.Clients), slices.Clone(k.Ops)})
						if err := k.Valid(now); err != nil {
							t.Fatal(err)
						}
					}
					tab.Drop(ref)
					refs[object] = 0
					for i := range parts {
						refs[object] = tab.Load(refs[object], object, &parts[i], now, false)
					}
					continue
				}
				if refs[object] != 0 {
					tab.Drop(refs[object])
				}
				k = Kept{Evicted: math.MinInt64}
				k.AddMark(now)
				refs[object], lost[object] = tab.Load(0, object, &k, now, false), now
			case 1: // the process begins with nothing
				if rapid.IntRange(0, 4).Draw(t, "all") == 0 {
					tab, refs, since = NewTable(tab.cfg), map[uint32]uint32{}, now
					clear(lost)
				}
			case 2:
				for tab.Expire(now, rapid.IntRange(1, 5).Draw(t, "budget"), func(o uint32) { delete(refs, o) }) {
				}
			case 3: // clients with request ids come and go beside them
				id := ID{Client: Client{Hi: rapid.Uint64Range(1, 4).Draw(t, "client")}, Sequence: uint64(now)}
				refs[object] = tab.Note(refs[object], object, &id, Outcome{}, now)
			default:
				key := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "key")
				id, print := KeyID(key), rapid.Uint32Range(1, 2).Draw(t, "print")
				verdict, out, age := tab.Judge(refs[object], &id, print, since, now)
				name := fmt.Sprint(object, key)
				d, known := was[name]
				known = known && now-d.at <= window
				forgot := max(lost[object], since)
				unknown := forgot > 0 && forgot+window >= now // what was done then may be meant
				remembered := known && d.at > forgot
				switch {
				case verdict == New && (known || unknown):
					t.Fatalf("%s is new, and was done %d ns ago; lost %d ns ago", name, now-d.at, now-forgot)
				case verdict == Replay && (!known || d.print != print || age != now-d.at || out.A != d.at):
					t.Fatalf("%s: replay of %+v aged %d, done as %+v", name, out, age, d)
				case verdict == Reused && (!known || d.print == print):
					t.Fatalf("%s is reused", name)
				case verdict == Unsure && (!unknown || remembered || age != forgot+window-now+1):
					t.Fatalf("%s is unsure for %d, lost %d ns ago", name, age, now-forgot)
				case verdict == New:
					was[name] = done{now, print}
					refs[object] = tab.Note(refs[object], object, &id, Outcome{Print: print, A: now}, now)
				}
			}
			n := 0
			for _, ref := range refs {
				n += tab.Keys(ref)
			}
			if n != tab.AllKeys() {
				t.Fatalf("%d keys of objects, %d in all", n, tab.AllKeys())
			}
		}
		for o, ref := range refs {
			if ref != 0 {
				tab.Drop(ref)
				delete(refs, o)
			}
		}
		if n := tab.keys.Len() + tab.byKey.Len() + tab.clients.Len() + tab.objects.Len(); n != 0 {
			t.Fatalf("%d cells are left", n)
		}
	})
}

// A copy that has a key of a window ago takes the next use of the key for what counts.
func TestKeyUsedAgainAfterItsWindow(t *testing.T) {
	tab, id := NewTable(small), KeyID("k")
	ref := tab.Note(0, 1, &id, out(1), 10*second)
	later := 10*second + small.Window + 1
	if v, _, _ := tab.Judge(ref, &id, 7, math.MinInt64, later); v != New {
		t.Fatalf("after the window: %d", v)
	}
	if tab.Knows(ref, &id) {
		t.Error("a record of the next use would not be taken in")
	}
	tab.Note(ref, 1, &id, out(2), later)
	tab.Note(ref, 1, &id, out(1), 10*second) // a late record
	if v, o, _ := tab.Judge(ref, &id, 7, math.MinInt64, later+small.Window); v != Replay || o.A != 2 || tab.AllKeys() != 1 {
		t.Errorf("verdict %d of %+v, %d keys", v, o, tab.AllKeys())
	}
}

func TestKeysAllocateNothing(t *testing.T) {
	tab := NewTable(small)
	ref, now := uint32(0), int64(0)
	step := func() {
		now += second
		id := KeyID("order-1234567890")
		id.Client.Lo = uint64(now)
		if v, _, _ := tab.Judge(ref, &id, 7, math.MinInt64, now); v != New {
			t.Fatal(v)
		}
		ref = tab.Note(ref, 1, &id, out(1), now)
		tab.Expire(now, 10, func(uint32) { ref = 0 })
	}
	for range 2000 {
		step()
	}
	if n := testing.AllocsPerRun(1000, step); n != 0 {
		t.Errorf("%v allocations per operation", n)
	}
}

func BenchmarkKey(b *testing.B) {
	tab := NewTable(Config{Window: 100 * second, ClientsPerObject: 1024, IDsPerClient: 1024})
	var ref uint32
	b.ReportAllocs()
	for now := int64(0); b.Loop(); now += second / 100 {
		id := KeyID("01J9ZQ5V7M8E2C3T4R6P0KXNBD")
		id.Client.Lo = uint64(now)
		if v, _, _ := tab.Judge(ref, &id, 7, math.MinInt64, now); v == New {
			ref = tab.Note(ref, 1, &id, out(1), now)
		}
		tab.Expire(now, 2, func(uint32) { ref = 0 })
	}
}
