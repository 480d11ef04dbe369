package forward

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/keystead/keystead/internal/tests/agreed"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring"
	"github.com/keystead/keystead/ring/epoch/table"
)

// TestMayBeBehind tells for which calls a node waits for a later table, which it did not
// let in.
func TestMayBeBehind(t *testing.T) {
	b := newBoard(t, "n1", "n2")
	key := b.Key("n1")
	id := b.Divide(splittable, key, "n1", "n2")
	tables := map[string]*table.Table{"opening": b.Table()}
	b.Reach(id, table.Open)
	tables["open"] = b.Table()
	b.Reach(id, table.Closing)
	tables["closing"] = b.Table()
	b.Must(table.Command{EndSplit: &table.EndSplit{ID: id, Home: agreed.Holder("n1"), Since: b.Table().Epoch}})
	tables["whole"] = b.Table()
	add, plant := b.add(key), b.onPart(table.Opening)
	look := b.onPart(table.Open)
	reap := b.onPart(table.Closing)
	never, always := map[string]bool{}, map[string]bool{"opening": true, "open": true, "closing": true, "whole": true}
	for name, tc := range map[string]struct {
		call  *Call
		part  int // -1 = no part
		since uint64
		self  string
		want  map[string]bool // by phase; whether it waits
	}{
		// Who goes by the same table, or an earlier one, has to learn of another owner, and
		// of parts that are served; nobody serves what is not open or whole yet.
		"the whole, of another":     {add, -1, 0, "n2", map[string]bool{"opening": true, "closing": true}},
		"the whole, its own":        {add, -1, 0, "n1", map[string]bool{"opening": true, "closing": true, "whole": true}},
		"the whole, a later table":  {add, -1, math.MaxUint64, "n2", map[string]bool{"opening": true, "closing": true, "whole": true}},
		"a part, its own":           {add, 1, 0, "n2", map[string]bool{"opening": true, "open": true}},
		"a part, of another":        {add, 0, 0, "n2", never},
		"a part, a later table":     {add, 0, math.MaxUint64, "n2", map[string]bool{"opening": true, "open": true, "whole": true}},
		"no such part":              {add, 2, 0, "n1", map[string]bool{"opening": true, "open": true}},
		"to plant, its own":         {plant, 1, 0, "n2", map[string]bool{"opening": true}},
		"to plant, of another":      {plant, 0, 0, "n2", never},
		"to plant, a later table":   {plant, 0, math.MaxUint64, "n2", map[string]bool{"opening": true, "whole": true}},
		"to look, its own":          {look, 1, 0, "n2", map[string]bool{"opening": true, "open": true}},
		"to reap, its own":          {reap, 1, 0, "n2", map[string]bool{"opening": true, "open": true, "closing": true}},
		"to reap, of another":       {reap, 0, 0, "n2", never},
		"to reap, a later table":    {reap, 0, math.MaxUint64, "n2", always},
		"to reap, of this very one": {reap, 0, id, "n2", never},
	} {
		for phase, tab := range tables {
			c := with(tc.call, tc.since, nil)
			if tc.part >= 0 {
				c.Part = &peerv1.Part{Split: id, Index: uint32(tc.part)}
			}
			if got := mayBeBehind(tab, c, agreed.Holder(tc.self)); got != tc.want[phase] {
				t.Errorf("%s, %s: %v", name, phase, got)
			}
		}
	}
	before := newBoard(t, "n1", "n2").Table() // it has not heard of the split
	c := with(add, id, &peerv1.Part{Split: id})
	if !mayBeBehind(before, c, agreed.Holder("n2")) {
		t.Error("a node that does not know the split yet does not wait for it")
	}
}

// TestAim: where the next attempt of a call goes, by the present table.
func TestAim(t *testing.T) {
	b := newBoard(t, "n1", "n2")
	var whole []uint64
	r := b.router(&whole)
	rid := &commonpb.RequestId{Client: []byte("0123456789abcdef"), Sequence: 3}
	add, get := b.add("k"), b.get("k")
	add.ID = rid
	// aim reports whether the call goes to the whole, and which part it goes to otherwise.
	aim := func(c *Call) (sp *table.Split, part int) {
		t.Helper()
		rt := &route{r: r, call: c, part: &peerv1.Part{Split: 99}} // from an attempt before
		sp, err := rt.aim(b.Table())
		if err != nil {
			t.Fatal(err)
		}
		if rt.part == nil {
			if rt.hash != ring.Hash("k") {
				t.Errorf("it goes to %x", rt.hash)
			}
			return sp, -1
		}
		if rt.part.Split != sp.ID || rt.hash != sp.PartHash(int(rt.part.Index)) {
			t.Errorf("it goes to %x, of part %+v", rt.hash, rt.part)
		}
		return sp, int(rt.part.Index)
	}
	if sp, part := aim(add); sp != nil || part != -1 {
		t.Errorf("not split: %+v, %d", sp, part)
	}
	id := b.Divide(splittable, "k", "n1", "n2", "n1", "n2", "n2")
	if sp, part := aim(add); sp == nil || part != -1 {
		t.Errorf("opening: %+v, %d", sp, part)
	}
	b.Reach(id, table.Open)
	if _, part := aim(add); part != 3 {
		t.Errorf("with an id: %d", part)
	}
	if _, part := aim(b.add("k")); part != 2 {
		t.Errorf("without an id: %d", part)
	}
	if sp, part := aim(get); sp == nil || part != -1 || len(whole) != 0 {
		t.Errorf("a get, which reads all: %+v, %d", sp, part)
	}
	if sp, part := aim(b.set("k")); sp == nil || part != -1 || !slices.Equal(whole, []uint64{id}) {
		t.Errorf("what needs the whole: %+v, %d, %v", sp, part, whole)
	}
	rt := &route{r: r, call: b.add("k")}
	rt.call.ID = &commonpb.RequestId{Client: []byte("short"), Sequence: 1}
	if _, err := rt.aim(b.Table()); err != errBadID {
		t.Errorf("an id that is none: %v", err)
	}
	b.Reach(id, table.Closing)
	if sp, part := aim(add); sp == nil || part != -1 {
		t.Errorf("closing: %+v, %d", sp, part)
	}
}

// TestAimAtAPart: a call about a part goes to it in the phase that it is for.
func TestAimAtAPart(t *testing.T) {
	b := newBoard(t, "n1", "n2")
	r := b.router(nil)
	calls := map[table.SplitPhase][]*Call{
		table.Opening: {b.onPart(table.Opening)},
		table.Open:    {b.get("k"), b.onPart(table.Open)},
		table.Closing: {b.onPart(table.Closing)},
	}
	id := b.Divide(splittable, "k", "n1", "n2")
	for phase := table.Opening; phase <= table.Closing; phase++ {
		sp := b.Reach(id, phase)
		for of, some := range calls {
			for _, c := range some {
				rt := &route{r: r, call: c, fixed: true, part: &peerv1.Part{Split: id, Index: 1}}
				got, err := rt.aim(b.Table())
				if of != phase {
					if err != errSplitOver {
						t.Errorf("%s, a call of %s: %v", phase, of, err)
					}
				} else if err != nil || got != sp || rt.hash != sp.PartHash(1) || rt.part.Index != 1 {
					t.Errorf("%s: %+v, %v", phase, got, err)
				}
			}
		}
	}
	b.Must(table.Command{EndSplit: &table.EndSplit{ID: id, Home: b.Owner("k"), Since: b.Table().Epoch}})
	rt := &route{r: r, call: b.get("k"), fixed: true, part: &peerv1.Part{Split: id}}
	if _, err := rt.aim(b.Table()); err != errSplitOver {
		t.Errorf("when it is whole: %v", err)
	}
}

// TestTurnedAway: one that asks the wrong node is told whose the object, or the part, is.
func TestTurnedAway(t *testing.T) {
	b := newBoard(t, "n1", "n2")
	r := b.router(nil)
	key := b.Key("n1")
	id := b.Divide(splittable, key, "n2", "n1")
	sp := b.Reach(id, table.Open)
	for i, want := range []string{"n2", "n1"} {
		w := r.turnedAway(b.Table(), with(b.add(key), 0, &peerv1.Part{Split: id, Index: uint32(i)}))
		if w.Reason != commonpb.Reason_REASON_NOT_OWNER || w.Owner != want || w.Epoch != sp.Since {
			t.Errorf("part %d: %v", i, w)
		}
	}
	w := r.turnedAway(b.Table(), b.add(key))
	if w.Owner != "n1" || w.Epoch != sp.Since { // the sender has to learn of the split
		t.Errorf("the whole: %v", w)
	}
	if w := r.turnedAway(b.Table(), &Call{Part: &peerv1.Part{Split: id + 1}}); w.Owner != "" || w.Epoch != 0 {
		t.Errorf("no such split: %v", w)
	}
	rt := &route{r: r, call: b.add(key), began: time.Now()}
	if !rt.misrouted(b.Table()) {
		t.Error("a call that went to the whole is not misrouted when the object is split")
	}
	if rt.part = (&peerv1.Part{Split: id}); rt.misrouted(b.Table()) {
		t.Error("a call that went to a part that is served is misrouted")
	}
	b.Reach(id, table.Closing)
	if !rt.misrouted(b.Table()) {
		t.Error("a call that went to a part that is closed is not misrouted")
	}
	if lineOf(&Call{Part: &peerv1.Part{Split: id}}) == lineOf(&Call{Part: &peerv1.Part{Split: id, Index: 1}}) {
		t.Error("two parts stand in one line")
	}
}

// TestSumByTheHome: a call for all parts that must not be passed on is answered by the home
// of the object, which asks the parts; other nodes name the home.
func TestSumByTheHome(t *testing.T) {
	b := newBoard(t, "n1", "n2")
	home := b.Owner("k")
	open := b.Reach(b.Divide(splittable, "k", home.Node, home.Node), table.Open)
	for _, node := range []string{"n1", "n2"} {
		b.self = agreed.Holder(node)
		r := b.router(nil)
		asked := 0
		var mu sync.Mutex
		r.cfg.Decide = func(_ context.Context, c *Call) (Message, error) {
			mu.Lock()
			defer mu.Unlock()
			if asked++; c.Part == nil {
				t.Errorf("%s: the whole is asked", node)
			}
			return &counterpb.GetResponse{}, nil
		}
		rt := newRoute(t.Context(), r, b.get("k"), time.Now())
		rt.stays = true
		_, _, err := rt.sum(open)
		var away *Remote
		switch here := node == home.Node; {
		case here && (err != nil || asked != 2):
			t.Errorf("%s: %v, and %d parts were asked", node, err, asked)
		case !here && (!errors.As(err, &away) || away.Wire.Reason != commonpb.Reason_REASON_NOT_OWNER || away.Wire.Owner != home.Node || asked != 0):
			t.Errorf("%s: %v, and %d parts were asked", node, err, asked)
		}
	}
}
