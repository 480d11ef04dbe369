package cli

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
	"github.com/keystead/keystead/ring"
)

var update = flag.Bool("update", false, "write the golden files of the drawings")

// names returns the first n nodes of the tests.
func names(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("n%02d", i+1)
	}
	return ids
}

func hashKey(id string) string { return id + ".example:7400" }

// tableOf is a table in which these nodes own what their ring gives them, on
// the way to another ring. What lost nodes had is nobody's.
func tableOf(t testing.TB, owners, wanted []string, lost ...string) *clusterpb.Table {
	t.Helper()
	ringOf := func(ids []string) *ring.Ring {
		var keys []string
		for _, id := range ids {
			keys = append(keys, hashKey(id))
		}
		r, err := ring.New(keys)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	out := &clusterpb.Table{Cluster: "prod", Epoch: 23340234121, Wanted: wanted}
	ids := slices.Concat(owners, wanted)
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		if slices.Contains(lost, id) {
			continue
		}
		phase := clusterpb.Phase_PHASE_ACTIVE
		if !slices.Contains(owners, id) {
			phase = clusterpb.Phase_PHASE_JOINING
		} else if !slices.Contains(wanted, id) {
			phase = clusterpb.Phase_PHASE_LEAVING
		}
		out.Members = append(out.Members, &clusterpb.Member{Id: id, Incarnation: 1882445566738848251, HashKey: hashKey(id), GrpcAddr: hashKey(id), Phase: phase, Version: "1.0"})
	}
	now, then := ringOf(owners), ringOf(wanted)
	out.RingDigest = then.Digest()
	var ends []uint64
	for _, r := range []*ring.Ring{now, then} {
		for i := range r.Size() {
			end, _ := r.At(i)
			ends = append(ends, end)
		}
	}
	slices.Sort(ends)
	for _, end := range slices.Compact(ends) {
		owner := slices.IndexFunc(out.Members, func(m *clusterpb.Member) bool { return m.HashKey == now.Owner(end) })
		out.Rows = append(out.Rows, &clusterpb.Row{End: end, Owner: uint32(owner + 1), Since: 5})
	}
	if !slices.Equal(owners, wanted) {
		out.Transition = out.Epoch - 1
	}
	return out
}

func viewOf(t testing.TB, table *clusterpb.Table) *ringView {
	t.Helper()
	v, err := newRingView(table)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestRingDrawings(t *testing.T) {
	draining := tableOf(t, names(3), names(2))
	draining.Members = append(draining.Members, &clusterpb.Member{Id: "n04", Incarnation: 1, HashKey: hashKey("n04"), Phase: clusterpb.Phase_PHASE_DRAINED})
	for _, r := range draining.Rows[:20] {
		if r.Owner != 3 {
			r.Standby = 3
		}
	}
	plain := canvas{width: plainWidth}
	alone := tableOf(t, []string{"dev"}, []string{"dev"})
	alone.Cluster = ""
	long := tableOf(t, []string{"keystead-0.keystead.production.svc", "keystead-1"}, []string{"keystead-0.keystead.production.svc", "keystead-1"})
	for _, tc := range []struct {
		name  string
		table *clusterpb.Table
		on    canvas
	}{
		{"alone", alone, plain},
		{"three", tableOf(t, names(3), names(3)), plain},
		{"sixteen", tableOf(t, names(16), names(16)), plain},
		{"forty", tableOf(t, names(40), names(40)), plain},
		{"joining", tableOf(t, names(3), names(4)), plain},
		{"draining", draining, plain},
		{"unowned", tableOf(t, names(3), names(2), "n03"), plain},
		{"empty", &clusterpb.Table{Cluster: "prod", Epoch: 7}, plain},
		{"narrow", tableOf(t, names(3), names(4)), canvas{width: 40, cut: true}},
		{"low", tableOf(t, names(3), names(3)), canvas{width: 100, height: 20}},
		{"long", long, canvas{width: 80, cut: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := viewOf(t, tc.table)
			got := v.draw(tc.on, &palette{})
			path := filepath.Join("testdata", "ring", tc.name+".txt")
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("-update writes the golden file anew; got\n%swant\n%s", got, want)
			}
			tc.on.color = true
			colored := v.draw(tc.on, &palette{})
			if plain := regexp.MustCompile("\x1b\\[[0-9;]*m").ReplaceAllString(colored, ""); plain != got {
				t.Errorf("in colours it says something else:\n%s", plain)
			}
			if len(v.rows) > 0 && !strings.Contains(colored, "\x1b[30;48;5;") {
				t.Error("no colours")
			}
		})
	}
}

func TestRingFitsTerminal(t *testing.T) {
	for n := 1; n <= 16; n++ {
		v := viewOf(t, tableOf(t, names(n), names(n)))
		text := v.draw(canvas{width: 80, height: 24, cut: true}, &palette{})
		lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
		if len(lines) > 23 {
			t.Errorf("%d nodes take %d lines", n, len(lines))
		}
		for _, line := range lines {
			if utf8.RuneCountInString(line) > 80 || strings.TrimRight(line, " ") != line {
				t.Errorf("%d nodes: %q", n, line)
			}
		}
		for _, mark := range marks[:n] {
			if strings.Count(text, string(mark)) < 5 {
				t.Errorf("%d nodes: %c does not show:\n%s", n, mark, text)
			}
		}
	}
}

// The band goes once around, clockwise from the top, and is as it is from all
// sides.
func TestBand(t *testing.T) {
	spots := band()
	before := 0.0
	taken := map[[2]int]bool{}
	for _, s := range spots {
		angle := math.Atan2(float64(s.x), float64(-s.y))
		if angle < 0 {
			angle += 2 * math.Pi
		}
		if angle < before-1e-9 {
			t.Fatalf("%+v at %f comes after %f", s, angle, before)
		}
		before = angle
		taken[[2]int{s.row, s.column}] = true
	}
	if len(taken) != len(spots) || len(spots) < 200 || before < 6 {
		t.Errorf("%d spots, %d of them different, up to %f", len(spots), len(taken), before)
	}
	for at := range taken {
		if !taken[[2]int{drawHeight - 1 - at[0], at[1]}] || !taken[[2]int{at[0], drawWidth - 1 - at[1]}] {
			t.Errorf("%v has no mirror image", at)
		}
	}
}

func TestCells(t *testing.T) {
	const eighth = 1 << 61
	of := func(rows ...ringRow) *ringView { return &ringView{nodes: make([]ringNode, 3), rows: rows} }
	cell := func(owners ...int) (c []ringCell) {
		for _, o := range owners {
			c = append(c, ringCell{owner: o})
		}
		return c
	}
	for _, tc := range []struct {
		name string
		view *ringView
		want []ringCell
	}{
		{"no rows", of(), cell(-1, -1)},
		{"one row", of(ringRow{eighth, 2, 2}), cell(2, 2, 2, 2)},
		{"one row, one cell", of(ringRow{eighth, 2, 2}), cell(2)},
		{"quarters", of(ringRow{2*eighth - 1, 0, 0}, ringRow{4*eighth - 1, 1, 1}, ringRow{6*eighth - 1, 2, 2}, ringRow{8*eighth - 1, -1, -1}), cell(0, 1, 2, -1)},
		{"around the end", of(ringRow{2*eighth - 1, 0, 0}, ringRow{6*eighth - 1, 1, 1}), cell(0, 1, 1, 0)},
		{"the most has it", of(ringRow{eighth, 0, 0}, ringRow{4*eighth - 1, 1, 1}, ringRow{8*eighth - 1, 2, 2}), cell(0, 1, 2, 2)},
		{"the first of equals", of(ringRow{eighth - 1, 2, 2}, ringRow{2*eighth - 1, 1, 1}, ringRow{8*eighth - 1, 0, 0}), cell(1, 0, 0, 0)},
		{"moves", of(ringRow{4*eighth - 1, 0, 1}, ringRow{8*eighth - 1, 1, 1}), []ringCell{{0, true}, {0, true}, {1, false}, {1, false}}},
		{"half moves", of(ringRow{eighth - 1, 0, 1}, ringRow{8*eighth - 1, 0, 0}), cell(0, 0, 0, 0)},
	} {
		if got := tc.view.cells(len(tc.want)); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

// The shares and moves of a view are those of the rings.
func TestRingViewMeasures(t *testing.T) {
	v := viewOf(t, tableOf(t, names(3), names(4)))
	old, next := viewOf(t, tableOf(t, names(3), names(3))), viewOf(t, tableOf(t, names(4), names(4)))
	near := func(what string, a, b float64) {
		if math.Abs(a-b) > 1e-12 {
			t.Errorf("%s: %v, want %v", what, a, b)
		}
	}
	for i, n := range v.nodes {
		near(n.id+" wanted", n.wanted, next.nodes[i].owned)
		if i < 3 {
			near(n.id+" owned", n.owned, old.nodes[i].owned)
		}
	}
	sum := 0
	for i, m := range v.moves {
		if m.From != names(3)[i] || m.To != "n04" {
			t.Errorf("moves %+v", m)
		}
		near(m.From, m.Share, old.nodes[i].owned-next.nodes[i].owned)
		sum += m.Rows
	}
	if rows, share := v.toMove(); rows != sum || rows != 256 {
		t.Errorf("%d rows, %f, in %+v", rows, share, v.moves)
	}
	j := v.json()
	if j.RowsToMove != 256 || j.Rows != 1024 || j.Size != 1024 || j.Transition != "23340234120" || len(j.Nodes) != 4 || j.Balance < 1 || j.Balance > 1.3 {
		t.Errorf("%+v", j)
	}
	if lost := viewOf(t, tableOf(t, names(3), names(2), "n03")); lost.unowned.Rows == 0 || lost.moves[0].From != "" {
		t.Errorf("%+v %+v", lost.unowned, lost.moves)
	}
}

func TestRingViewRefuses(t *testing.T) {
	for name, spoil := range map[string]func(*clusterpb.Table){
		"order":       func(t *clusterpb.Table) { t.Rows[1].End = t.Rows[0].End },
		"owner":       func(t *clusterpb.Table) { t.Rows[0].Owner = 4 },
		"wanted":      func(t *clusterpb.Table) { t.Wanted = []string{"n09"} },
		"same points": func(t *clusterpb.Table) { t.Members[0].HashKey = t.Members[1].HashKey },
	} {
		table := tableOf(t, names(3), names(3))
		spoil(table)
		if _, err := newRingView(table); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

// A program that computes another ring than the node says so.
func TestRingOfAnotherVersion(t *testing.T) {
	table := tableOf(t, names(3), names(3))
	table.RingDigest++
	if text := viewOf(t, table).draw(canvas{width: plainWidth}, &palette{}); !strings.Contains(text, "of another version") {
		t.Error(text)
	}
}

func TestFollow(t *testing.T) {
	from := tableOf(t, names(3), names(3))
	for _, r := range from.Rows {
		r.Standby = r.Owner%3 + 1
	}
	// The first node goes, and the second has its rows: the indexes of all shift.
	to := proto.CloneOf(from)
	to.Epoch, to.Members, to.Wanted = from.Epoch+1, to.Members[1:], names(3)[1:]
	change := &clusterpb.TableChange{Epoch: to.Epoch, Members: to.Members, Wanted: to.Wanted}
	for i, r := range to.Rows {
		gone := r.Owner == 1
		if r.Owner, r.Standby = max(r.Owner, 2)-1, max(r.Standby, 1)-1; gone {
			r.Since, r.Lost = to.Epoch, to.Epoch
			change.Rows = append(change.Rows, to.Rows[i])
		}
	}
	to.RingDigest = 0
	before := proto.CloneOf(from)
	got, err := follow(from, &clusterpb.WatchResponse{Change: change})
	if err != nil || !proto.Equal(got, to) {
		t.Errorf("%v, not the table", err)
	}
	if !proto.Equal(from, before) {
		t.Error("the table before has changed")
	}
	if got, err := follow(nil, &clusterpb.WatchResponse{Snapshot: from}); err != nil || got != from {
		t.Error(err)
	}
	for name, m := range map[string]*clusterpb.WatchResponse{
		"nothing":     {},
		"unknown row": {Change: &clusterpb.TableChange{Rows: []*clusterpb.Row{{End: from.Rows[0].End + 1}}}},
	} {
		if _, err := follow(from, m); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	if _, err := follow(nil, &clusterpb.WatchResponse{Change: change}); err == nil {
		t.Error("a change of nothing: taken")
	}
}

func TestRingLines(t *testing.T) {
	at := func(epoch uint64, table *clusterpb.Table) *ringView {
		table.Epoch = epoch
		return viewOf(t, table)
	}
	two, joining, three := at(10, tableOf(t, names(2), names(2))), at(11, tableOf(t, names(2), names(3))), at(13, tableOf(t, names(3), names(3)))
	anew := tableOf(t, names(2), names(2))
	anew.Members[1].Incarnation++
	after := tableOf(t, names(2), names(2))
	for _, r := range after.Rows {
		if r.Owner == 1 {
			r.Lost = 14
		}
	}
	for _, tc := range []struct {
		old, now *ringView
		want     string
	}{
		{nil, two, "epoch 10; n01 51.0%, n02 49.0%"},
		{two, joining, "epoch 11; n03 is admitted, the ring changes; n01 51.0%, n02 49.0%, n03 0.0%; 256 rows to move, 35.1%"},
		{joining, three, "epoch 13; n03 is active, the change of the ring is over, ROWS n01 → n03, ROWS n02 → n03; n01 33.7%, n02 31.2%, n03 35.1%"},
		{three, at(14, after), "epoch 14; n03 is removed, ROWS n03 → n01, ROWS n03 → n02, ROWS lost; n01 51.0%, n02 49.0%"},
		{two, at(12, anew), "epoch 12; n02 is admitted anew; n01 51.0%, n02 49.0%"},
		{two, at(15, &clusterpb.Table{}), "epoch 15; n01 is removed, n02 is removed; no members"},
	} {
		got := regexp.MustCompile(`\b\d+ rows (n|lost)`).ReplaceAllString(tc.now.line(tc.old), "ROWS $1")
		if got != tc.want {
			t.Errorf("%s\nwant\n%s", got, tc.want)
		}
	}
}

// A node keeps its mark while it lives, and a new one takes a free one.
func TestPalette(t *testing.T) {
	nodes := func(ids ...string) (n []ringNode) {
		for _, id := range ids {
			n = append(n, ringNode{id: id})
		}
		return n
	}
	var p palette
	for _, tc := range []struct {
		nodes []ringNode
		want  []int
	}{
		{nodes("a", "b", "c"), []int{0, 1, 2}},
		{nodes("b", "c"), []int{1, 2}},
		{nodes("aa", "b", "c", "d"), []int{0, 1, 2, 3}},
	} {
		if got := p.of(tc.nodes); !slices.Equal(got, tc.want) {
			t.Errorf("%v: %v, want %v", tc.nodes, got, tc.want)
		}
	}
}
