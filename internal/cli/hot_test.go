package cli

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
)

// The table aligns, whatever is in it, and nothing that callers wrote acts on the
// terminal.
func TestHotTable(t *testing.T) {
	v := &hotJSON{
		Nodes: []hotNodeJSON{
			{ID: "n1", Rate: 123456.7, Hot: 2, Floor: 1000, Factor: 10}, {ID: "n2", Rate: 0.26, LeftOut: 3, Floor: 1000, Factor: 2.5},
			{ID: "n3", Error: "cannot reach a node at 10.0.0.3:7400: refused"},
		},
		Keys: []hotKeyJSON{
			{Key: "tenant-42", Name: "api", Kind: "limit", Owner: "n1", Rate: 104938.2, Share: 0.85, Hot: true, HotFor: seconds(72*time.Second + 999e6)},
			{Key: "a\tb\n\x1b[2J", Kind: "lock", Owner: "n1", Rate: 999.6, Share: 0.0081, Hot: true, HotFor: seconds(12e9), Waiting: 31},
			{Key: strings.Repeat("ä", 60), Name: "x", Kind: "counter", Owner: "n2", Rate: 0.26, Share: 1},
		},
	}
	want := `2 nodes, 123457 operations a second, 2 keys hot: from 1000 a second and 10 times the average of the others, or 1000 a second and 2.5 times the average of the others; 3 times there was no room for another one
Nothing of n3: cannot reach a node at 10.0.0.3:7400: refused

KEY                                                NAME  KIND     OWNER    RATE   SHARE  QUEUE  STATE
tenant-42                                          api   limit    n1     104938   85.0%         hot 1m12s
a\tb\n\x1b[2J                                      -     lock     n1       1000    0.8%     31  hot 12s
` + strings.Repeat("ä", 48) + `…  x     counter  n2        0.3  100.0%
`
	if got := v.draw(canvas{}); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// What three nodes tell of split objects is one line for each.
func TestHotSplitTable(t *testing.T) {
	three := func(shares ...float64) (parts []*clusterpb.SplitPart) {
		for i, s := range shares {
			parts = append(parts, &clusterpb.SplitPart{Owner: fmt.Sprint("n", i%3+1), Share: s})
		}
		return parts
	}
	many := three(slices.Repeat([]float64{0.125}, 8)...)
	many[0].Owner = ""
	splits := []*clusterpb.Split{
		{Id: 7, Kind: commonpb.Kind_KIND_LIMIT, Key: "tenant", Name: "api", Phase: clusterpb.SplitPhase_SPLIT_PHASE_OPEN, Since: 8, Reason: "40000 a second\x1b", Parts: three(0.5, 0.3, 0.2)},
		{Id: 8, Kind: commonpb.Kind_KIND_COUNTER, Key: "calm", Name: "n", Phase: clusterpb.SplitPhase_SPLIT_PHASE_CLOSING, Manual: true, Reason: "asked for", Parts: three(0.5, 0.5)},
		{Id: 9, Kind: commonpb.Kind_KIND_LIMIT, Key: "new", Name: "limit", Phase: clusterpb.SplitPhase_SPLIT_PHASE_OPENING, Parts: many},
	}
	part := func(i int, rate float64, hot bool) *clusterpb.HotKey {
		return &clusterpb.HotKey{Key: "tenant", Name: "api", Kind: commonpb.Kind_KIND_LIMIT, RateMax: rate, RateMin: rate - 1, Hot: hot, SinceNs: int64(12 * time.Second), Parts: 3, Part: uint32(i)}
	}
	v := &hotJSON{}
	v.add("a:1", &clusterpb.ListHotResponse{Id: "n1", Epoch: 20, Rate: 1000, Hot: 1, Policy: &clusterpb.HotPolicy{Floor: 100, Factor: 10}, Splits: splits, Keys: []*clusterpb.HotKey{
		part(0, 500, true), {Key: "tenant", Name: "api", Kind: commonpb.Kind_KIND_COUNTER, RateMax: 90}, {Key: "door", Name: "lock", Kind: commonpb.Kind_KIND_LOCK, RateMax: 3, Waiting: 12},
	}})
	v.add("a:2", &clusterpb.ListHotResponse{Id: "n2", Epoch: 19, Rate: 1000, Hot: 1, Policy: &clusterpb.HotPolicy{Floor: 100, Factor: 10}, Splits: splits[:1], Keys: []*clusterpb.HotKey{
		part(1, 300, true), part(0, 20, false), {Key: "gone", Name: "n", Kind: commonpb.Kind_KIND_COUNTER, RateMax: 9, Parts: 2, Part: 1},
	}})
	v.add("a:3", &clusterpb.ListHotResponse{Id: "n3", Epoch: 19, Rate: 2000, Policy: &clusterpb.HotPolicy{Floor: 100, Factor: 10}, Keys: []*clusterpb.HotKey{
		{Key: "tenant", Name: "api", Kind: commonpb.Kind_KIND_LIMIT, RateMax: 80, RateMin: 1}, {Key: "gone", Name: "n", Kind: commonpb.Kind_KIND_COUNTER, RateMax: 7, Parts: 2, Part: 0},
	}})
	v.unite()
	v.sort(4)
	want := `3 nodes, 4000 operations a second, 1 key hot: from 100 a second and 10 times the average of the others; 3 objects are split

KEY     NAME   KIND     OWNER    RATE  SHARE  QUEUE  STATE
tenant  api    limit    3 nodes   900  22.5%         hot 12s, 3 parts: n1 50.0%, n2 30.0%, n3 20.0%
tenant  api    counter  n1         90   9.0%
gone    n      counter  -          16   0.5%
door    lock   lock     n1        3.0   0.3%     12
calm    n      counter  2 nodes   0.0   0.0%         closing 2 parts by hand: n1, n2
new     limit  limit    4 nodes   0.0   0.0%         opening 8 parts: nobody 12.5%, n2 12.5%, n3 12.5%, n1 12.5%, n2 12.5%, n3 12.5%, and 2 more
`
	if got := v.draw(canvas{}); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	v.parts = true
	v.Keys = slices.DeleteFunc(v.Keys, func(k hotKeyJSON) bool { return k.Key != "tenant" && k.Key != "calm" })
	_, got, _ := strings.Cut(v.draw(canvas{}), "\n\n")
	want = `KEY       NAME  KIND     OWNER    RATE  SHARE  QUEUE  STATE
tenant    api   limit    3 nodes   900  22.5%         hot 12s, 3 parts: 40000 a second\x1b
  part 0                 n1        500  50.0%         50.0% of the limit
  part 1                 n2        300  30.0%         30.0% of the limit
  part 2                 n3          -      -         20.0% of the limit
tenant    api   counter  n1         90   9.0%
calm      n     counter  2 nodes   0.0   0.0%         closing 2 parts by hand: asked for
  part 0                 n1          -      -
  part 1                 n2          -      -
`
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if p := v.Keys[0].Split.Parts; *p[0].Rate != 500 || *p[0].Sure != 499 || *p[0].Share != 0.5 || p[2].Rate != nil {
		t.Errorf("%+v", p)
	}
}

// On a terminal of 80 columns the state of a key is seen, whatever the key is like.
func TestHotTableIsNarrow(t *testing.T) {
	v := &hotJSON{
		Nodes: []hotNodeJSON{{ID: "n1", Rate: 123456.7, Hot: 2, Floor: 1000, Factor: 10}},
		Keys: []hotKeyJSON{
			{Key: strings.Repeat("k", 60), Name: "a-name-of-thirty-two-characters-", Kind: "counter", Owner: "node-1", Rate: 104938.2, Share: 0.85, Hot: true, HotFor: seconds(72 * time.Second)},
			{Key: "short", Name: "api", Kind: "lock", Owner: "node-1", Rate: 12, Hot: true, HotFor: seconds(time.Second), Waiting: 31},
		},
	}
	want := `1 node, 123457 operations a second, 2 keys hot: from 1000 a second and 10 times
the average of the others

KEY           NAME              KIND     OWNER     RATE  SHARE  QUEUE  STATE
kkkkkkkkkkk…  a-name-of-thirt…  counter  node-1  104938  85.0%         hot 1m12s
short         api               lock     node-1      12   0.0%     31  hot 1s
`
	if got := v.draw(canvas{width: 80, cut: true}); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	v.Keys = v.Keys[1:]
	if got := v.draw(canvas{width: 80, cut: true}); !strings.Contains(got, "\nshort  api   lock  node-1    12   0.0%     31  hot 1s\n") {
		t.Errorf("it is cut without need:\n%s", got)
	}
}
