package record

import (
	"bytes"
	"encoding/hex"
	"math"
	"reflect"
	"testing"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/reqid"
)

// newLimits are records of limits that there are from level 8 on, as of the moment 100 s.
func newLimits() map[string]*owner.Record {
	key := func() *owner.Record {
		return &owner.Record{Key: []byte("tenant"), Name: []byte("limit"), Version: 1234, At: 99 * second, Hash: owner.Hash("tenant")}
	}
	bucket := limit.State{At: 99 * second, Spent: 7, Carry: 12345, Limit: 20, Period: 60 * second}
	leaky := bucket
	leaky.Algorithm = limit.LeakyBucket
	sliding := limit.State{Algorithm: limit.SlidingWindow, At: 99 * second, Spent: 7, Limit: 20, Period: 60 * second}
	marks := []limit.Mark{{At: 45 * second, Tokens: 3}, {At: 99 * second, Tokens: 4}}
	over := limit.Override{Limit: 1000, Period: 60 * second, Burst: 5000, Until: 7300 * second, Callers: limit.Rate{Limit: 20, Period: 60 * second}}
	forever := limit.Override{Limit: limit.MaxLimit, Period: limit.MaxPeriod, Until: limit.Forever}
	all := map[string]*owner.Record{
		"leaky":               key().SetLimit(leaky, nil),
		"overridden":          key().SetLimit(bucket, nil).SetOverride(over, 100*second),
		"overridden, sliding": key().SetLimit(sliding, marks).SetOverride(forever, 100*second),
		"overridden, full":    key().SetLimit(limit.State{}, nil).SetOverride(over, 100*second),
		"overridden, part":    key().SetLimit(limit.State{Weight: 13107, At: 99 * second, Spent: 7, Limit: 20, Period: 300 * second}, nil).SetOverride(over, 100*second),
		"overridden, over":    key().SetLimit(limit.State{}, nil).SetOverride(limit.Override{Limit: 1, Period: second, Until: 40 * second, Callers: limit.Rate{Limit: 7}}, 100*second),
	}
	whole := key().SetLimit(leaky, nil).SetOverride(forever, 100*second)
	whole.Whole, whole.IDs = true, &reqid.Kept{Evicted: math.MinInt64}
	all["overridden, whole"] = whole
	return all
}

// The bytes of these limits never change.
func TestGoldenLimits(t *testing.T) {
	for name, r := range newLimits() {
		if err := r.Validate(100 * second); err != nil {
			t.Fatal(name, err)
		}
		got := AppendAt(owner.OverrideLevel, nil, r, 100*second)
		want := golden(t, "level8", name, got)
		if !bytes.Equal(got, want) {
			t.Errorf("%s is written as:\n%s\ngolden:\n%s", name, hex.Dump(got), hex.Dump(want))
		}
		var back owner.Record
		if err := Decode(want, 100*second, &back); err != nil || back.Validate(100*second) != nil || back.Kind != owner.KindLimit {
			t.Fatalf("%s: read: %v", name, err)
		}
		s, marks := back.Limit()
		wasS, wasMarks := r.Limit()
		o, ok := back.Override()
		was, had := r.Override()
		if s != wasS || !reflect.DeepEqual(marks, wasMarks) || o != was && had || ok != had {
			t.Errorf("%s is read as %+v %v %+v, and written as %+v %v %+v", name, s, marks, o, wasS, wasMarks, was)
		}
		if again := AppendAt(owner.OverrideLevel, nil, &back, 100*second); !bytes.Equal(again, want) {
			t.Errorf("%s is written again as:\n%s", name, hex.Dump(again))
		}
		// Programs of before level 4 have no record of them.
		var old owner.Record
		if err := Decode(AppendAt(3, nil, r, 100*second), 100*second, &old); err == nil {
			t.Errorf("%s is read in an old form", name)
		}
	}
}

// What no override can be is refused, whatever else a record says.
func TestBadOverrides(t *testing.T) {
	r := &owner.Record{Key: []byte("k"), Name: []byte("n"), Version: 1, At: 99 * second, Hash: owner.Hash("k")}
	for _, bad := range []limit.Override{{Limit: 0, Period: second}, {Limit: 1, Period: 1}, {Limit: 1, Period: second, Callers: limit.Rate{Period: second}}, {Limit: 1, Period: second, Callers: limit.Rate{Limit: 1, Period: 1}}} {
		if r.SetLimit(limit.State{}, nil).SetOverride(bad, 100*second); r.Validate(100*second) == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
	good := (&owner.Record{}).SetLimit(limit.State{}, nil).SetOverride(limit.Override{Limit: 1, Period: second, Until: limit.Forever}, 100*second)
	good.Key, good.Name, good.Version, good.At, good.Hash = r.Key, r.Name, 1, 99*second, r.Hash
	b := Append(nil, good, 100*second)
	for i := range b {
		for _, x := range []byte{0, 1, 0x7f, 0xff} {
			bent := bytes.Clone(b)
			bent[i] = x
			var back owner.Record
			if Decode(bent, 100*second, &back) == nil {
				_ = back.Validate(100 * second) // and nothing panics
			}
		}
	}
}
