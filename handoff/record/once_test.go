package record

import (
	"bytes"
	"encoding/hex"
	"math"
	"reflect"
	"testing"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/once"
	"github.com/keystead/keystead/owner/reqid"
)

// onces are records of work that is done once, as of the moment 100 s.
func onces() map[string]*owner.Record {
	key := func(s once.State) *owner.Record {
		r := &owner.Record{Key: []byte("203.0.113.7"), Name: []byte("once"), Version: 1234, At: 99 * second, Hash: owner.Hash("203.0.113.7")}
		return r.SetOnce(s)
	}
	id := reqid.ID{Client: reqid.Client{Hi: 0x0102030405060708, Lo: 0x090a0b0c0d0e0f00}, Sequence: 5, Settled: 4}
	done := once.State{Phase: once.Finished, Token: 7<<owner.SeqBits | 4, Attempt: 1, Print: []byte("sha"), Result: []byte("on\x00\xff"), Since: 42 * second, Until: 42*second + once.DefaultKeep}
	all := map[string]*owner.Record{
		"once":           key(once.State{Phase: once.UnderWay, Token: 7<<owner.SeqBits | 3, Attempt: 2, Print: []byte("sha"), Holder: []byte("worker-1"), Since: 90 * second, Until: 120 * second}),
		"once-bare":      key(once.State{Phase: once.UnderWay, Token: 7<<owner.SeqBits | 3, Attempt: 1, Since: 90 * second, Until: 91 * second}),
		"once-done":      key(done),
		"once-abandoned": key(once.State{}),
		"once-whole":     key(done),
	}
	all["once-abandoned"].Done = []owner.Done{{ID: id, Outcome: reqid.Outcome{Print: 0xdeadbeef, Code: 1}}}
	all["once-whole"].Whole, all["once-whole"].IDs = true, &reqid.Kept{Evicted: math.MinInt64}
	return all
}

// The bytes of work that is done once never change, from the level on at which there is such.
func TestGoldenOnces(t *testing.T) {
	for name, r := range onces() {
		if err := r.Validate(100 * second); err != nil {
			t.Fatal(name, err)
		}
		got := AppendAt(owner.OnceLevel, nil, r, 100*second)
		want := golden(t, "level7", name, got)
		if !bytes.Equal(got, want) {
			t.Errorf("%s is written as:\n%s\ngolden:\n%s", name, hex.Dump(got), hex.Dump(want))
		}
		var back owner.Record
		if err := Decode(want, 100*second, &back); err != nil || back.Validate(100*second) != nil || back.Kind != owner.KindOnce {
			t.Fatalf("%s: read: %v", name, err)
		}
		if a, b := back.Once(), r.Once(); !reflect.DeepEqual(a, b) {
			t.Errorf("%s is read as %+v, written as %+v", name, a, b)
		}
		if again := AppendAt(owner.OnceLevel, nil, &back, 100*second); !bytes.Equal(again, want) {
			t.Errorf("%s is written again as:\n%s", name, hex.Dump(again))
		}
	}
}

// The longest result is within the bound of records.
func TestLongestResult(t *testing.T) {
	s := once.State{Phase: once.Finished, Token: once.MaxToken, Attempt: math.MaxUint16, Print: make([]byte, once.MaxPrint), Result: make([]byte, once.MaxResult), Until: once.MaxKeep}
	if n := len(Append(nil, onces()["once"].SetOnce(s), math.MaxInt64)); n < once.MaxResult || n > MaxAlone {
		t.Errorf("%d bytes", n)
	}
}
