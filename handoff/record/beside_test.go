package record

import (
	"bytes"
	"testing"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/limit"
)

// TestBeside: what a step has changed beside its admission travels in the same record, and bytes that are cut off are
// none.
func TestBeside(t *testing.T) {
	const now = 1000
	r := &owner.Record{Key: []byte("org:7"), Name: []byte("admission"), Kind: owner.KindAdmission, Version: 7, At: now}
	r.Hash = owner.Hash("org:7")
	spent := limit.State{Algorithm: limit.FixedWindow, At: now - 5, Spent: 3, Limit: 10, Period: 1_000_000}
	r.Beside = []owner.Record{
		*(&owner.Record{Name: []byte("rpm")}).SetLimit(spent, nil),
		*(&owner.Record{Name: []byte("slots")}).SetCounter(counter.State{Value: 2, Version: 7, At: now}),
		{Name: []byte("gone"), Kind: owner.KindLimit},
	}
	b := Append(nil, r, now)
	var back owner.Record
	if err := Decode(b, now, &back); err != nil {
		t.Fatal(err)
	}
	if err := back.Validate(now); err != nil {
		t.Fatal(err)
	}
	if len(back.Beside) != 3 {
		t.Fatalf("%d objects beside", len(back.Beside))
	}
	if s, _ := back.Beside[0].Limit(); s != spent || string(back.Beside[0].Name) != "rpm" {
		t.Errorf("%+v", s)
	}
	if c := back.Beside[1].Counter(); c.Value != 2 || c.Version != 7 {
		t.Errorf("%+v", c)
	}
	if !back.Beside[2].State.Absent() {
		t.Error("what is gone is there")
	}
	if again := Append(nil, &back, now); !bytes.Equal(again, b) {
		t.Error("written again, it is another one")
	}
	for n := range b {
		if Decode(b[:n], now, &back) == nil {
			t.Errorf("the first %d bytes are a record", n)
		}
	}
	r.Kind = owner.KindLimit
	if r.Validate(now) == nil {
		t.Error("a limit changes others")
	}
}
