package record

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/keystead/keystead/handoff/feed"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/gather"
	"github.com/keystead/keystead/owner/reqid"
)

// barriers are records of barriers and phasers, as of the moment 100 s.
func barriers() map[string]*owner.Record {
	key := func(s *gather.State) *owner.Record {
		r := &owner.Record{Key: []byte("build"), Name: []byte("barrier"), Version: 1234, At: 99 * second, Hash: owner.Hash("build")}
		return r.SetBarrier(s)
	}
	barrier := gather.State{At: 99 * second, Phase: 1<<40 + 4, Since: 1<<40 + 1, Broken: 1<<40 + 2, After: 1<<40 + 3, Cause: gather.Late, Passes: 1, Need: 3, Deadline: 110 * second, Next: 7}
	barrier.Put(gather.Party{Name: "a", Number: 6, Phase: barrier.Phase})
	barrier.Put(gather.Party{Name: "b", Number: 7, Phase: barrier.Phase})
	phaser := gather.State{At: 99 * second, Phase: 1<<40 + 4, Since: 1<<40 + 1, Broken: 1<<40 + 2, After: 1<<40 + 4, Cause: gather.Lost, Who: "c", Passes: 1, Next: 3}
	phaser.Put(gather.Party{Name: "a", Number: 1, Phase: phaser.Phase, Expires: 120 * second, Breaks: true})
	phaser.Put(gather.Party{Name: "b", Number: 2, Phase: 1<<40 + 1, Expires: 98 * second})
	child := gather.State{At: 99 * second, Phase: 1<<40 + 4, Since: 1<<40 + 4, Next: 1, Parent: gather.Parent{Key: "root", Name: "barrier", Party: "build"}, Above: 1<<40 + 3, Sent: true, Joined: true}
	child.Put(gather.Party{Name: "x", Number: 1, Phase: child.Phase, Expires: 120 * second, Breaks: true, Child: 1<<40 + 2})
	empty := barrier.Head()
	all := map[string]*owner.Record{
		"barrier": key(&barrier), "barrier-empty": key(&empty), "barrier-change": key(&barrier), "phaser": key(&phaser), "barrier-whole": key(&phaser), "phaser-child": key(&child),
	}
	change := all["barrier-change"]
	change.Partial = true
	change.Members[0].Gone, change.Members[0].State = true, nil
	all["barrier-whole"].Whole, all["barrier-whole"].IDs = true, &reqid.Kept{Evicted: math.MinInt64}
	return all
}

// The bytes of barriers never change, from the level on at which there are such.
func TestGoldenBarriers(t *testing.T) {
	for name, r := range barriers() {
		if err := r.Validate(100 * second); err != nil {
			t.Fatal(name, err)
		}
		got := AppendAt(owner.BarrierLevel, nil, r, 100*second)
		want := golden(t, "level7", name, got)
		if !bytes.Equal(got, want) {
			t.Errorf("%s is written as:\n%s\ngolden:\n%s", name, hex.Dump(got), hex.Dump(want))
		}
		var back owner.Record
		if err := Decode(want, 100*second, &back); err != nil || back.Validate(100*second) != nil || back.Kind != owner.KindBarrier {
			t.Fatalf("%s: read: %v", name, err)
		}
		a, b := back.Barrier(), r.Barrier()
		if ah, bh := a.Head(), b.Head(); fmt.Sprint(ah) != fmt.Sprint(bh) || fmt.Sprint(a.Parties) != fmt.Sprint(b.Parties) {
			t.Errorf("%s is read as\n%+v\nand written as\n%+v", name, a, b)
		}
		if again := AppendAt(owner.BarrierLevel, nil, &back, 100*second); !bytes.Equal(again, want) {
			t.Errorf("%s is written again as:\n%s", name, hex.Dump(again))
		}
	}
}

// A phaser with as many parties as there may be, each as long as it may be, is within the bound of
// records.
func TestLargestBarrier(t *testing.T) {
	s := gather.State{At: math.MaxInt64 >> 3, Phase: gather.MaxPhase, Since: 1, Who: strings.Repeat("w", gather.MaxName), Cause: gather.Lost, Broken: 2, After: gather.MaxPhase, Passes: math.MaxUint64, Next: math.MaxInt64,
		Parent: gather.Parent{Key: strings.Repeat("k", 512), Name: strings.Repeat("n", 128), Party: strings.Repeat("p", gather.MaxName)}, Above: gather.MaxPhase, Sent: true, Joined: true}
	for i := range gather.MaxParties {
		name := fmt.Sprintf("%0*d", gather.MaxName, i)
		s.Put(gather.Party{Name: name, Number: math.MaxInt64 - uint64(i), Phase: gather.MaxPhase, Expires: s.At + gather.MaxTTL, Breaks: true, Child: gather.MaxPhase})
	}
	r := (&owner.Record{}).SetBarrier(&s)
	for i := range r.Members {
		if n := len(r.Members[i].State); n > owner.MaxMember {
			t.Fatalf("member %d has %d bytes", i, n)
		}
	}
	r.Key, r.Name = []byte(strings.Repeat("k", owner.MaxKey)), []byte(strings.Repeat("n", owner.MaxName))
	b := Append(nil, r, s.At)
	if n := len(b); n > feed.MaxRecord*3/4 || n < gather.MaxParties*gather.MaxName {
		t.Errorf("%d bytes of %d", n, feed.MaxRecord)
	}
	var back owner.Record
	if err := Decode(b, s.At, &back); err != nil || len(back.Members) != gather.MaxParties {
		t.Errorf("%d parties are read: %v", len(back.Members), err)
	}
}
