package record

import (
	"bytes"
	"encoding/hex"
	"math"
	"reflect"
	"testing"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/owner/value"
)

// registers are records of registers, as of the moment 100 s.
func registers() map[string]*owner.Record {
	key := func(s value.State) *owner.Record {
		r := &owner.Record{Key: []byte("203.0.113.7"), Name: []byte("config"), Version: 1234, At: 99 * second, Hash: owner.Hash("203.0.113.7")}
		return r.SetRegister(s)
	}
	id := reqid.ID{Client: reqid.Client{Hi: 0x0102030405060708, Lo: 0x090a0b0c0d0e0f00}, Sequence: 5, Settled: 4}
	all := map[string]*owner.Record{
		"register":        key(value.State{Exists: true, Value: []byte("on\x00\xff"), Version: 7<<owner.SeqBits | 3, At: 42 * second}),
		"register-empty":  key(value.State{Exists: true, Version: 7<<owner.SeqBits | 4, At: 42 * second}),
		"register-fenced": key(value.State{Version: 7<<owner.SeqBits | 5, Fence: 33, At: 42 * second}),
		"register-gone":   key(value.State{}),
		"register-whole":  key(value.State{Exists: true, Value: []byte("v"), Version: 7<<owner.SeqBits | 6, Fence: 33, At: -second}),
	}
	all["register-fenced"].Done = []owner.Done{{ID: id, Outcome: reqid.Outcome{Print: 0xdeadbeef, Code: 1, A: 7<<owner.SeqBits | 5}}}
	all["register-whole"].Whole, all["register-whole"].IDs = true, &reqid.Kept{Evicted: math.MinInt64}
	return all
}

// The bytes of registers never change, from the level on at which there are such.
func TestGoldenRegisters(t *testing.T) {
	for name, r := range registers() {
		if err := r.Validate(100 * second); err != nil {
			t.Fatal(name, err)
		}
		for _, level := range []uint32{owner.RegisterLevel, Level - 1} { // no header of before has them
			got := AppendAt(level, nil, r, 100*second)
			want := golden(t, "level6", name, got)
			if !bytes.Equal(got, want) {
				t.Errorf("%s is written as:\n%s\ngolden:\n%s", name, hex.Dump(got), hex.Dump(want))
			}
			var back owner.Record
			if err := Decode(want, 100*second, &back); err != nil || back.Validate(100*second) != nil || back.Kind != owner.KindRegister {
				t.Fatalf("%s: read: %v", name, err)
			}
			if a, b := back.Register(), r.Register(); !reflect.DeepEqual(a, b) {
				t.Errorf("%s is read as %+v, written as %+v", name, a, b)
			}
			if again := AppendAt(level, nil, &back, 100*second); !bytes.Equal(again, want) {
				t.Errorf("%s is written again as:\n%s", name, hex.Dump(again))
			}
		}
	}
}

// The longest value is within the bound of records.
func TestLongestValue(t *testing.T) {
	r := registers()["register"].SetRegister(value.State{Exists: true, Value: make([]byte, value.MaxValue), Version: value.MaxToken, Fence: value.MaxToken})
	if n := len(Append(nil, r, math.MaxInt64)); n < value.MaxValue || n > MaxAlone {
		t.Errorf("%d bytes", n)
	}
}
