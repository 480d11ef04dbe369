package record

import (
	"bytes"
	"encoding/hex"
	"math"
	"strings"
	"testing"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/lock"
	"github.com/keystead/keystead/owner/queue"
	"github.com/keystead/keystead/owner/reqid"
)

// locks are records of locks in the form of holds, as of the moment 100 s.
func locks() map[string]*owner.Record {
	key := func(s *hold.State) *owner.Record {
		r := &owner.Record{Key: []byte("203.0.113.7"), Name: []byte("lock"), Version: 1234, At: 99 * second, Hash: owner.Hash("203.0.113.7")}
		return r.SetHold(owner.KindLock, s)
	}
	id := reqid.ID{Client: reqid.Client{Hi: 0x0102030405060708, Lo: 0x090a0b0c0d0e0f00}, Sequence: 5, Settled: 4}
	alone := hold.State{Capacity: lock.All, LastToken: 1<<40 + 3, At: 99 * second}
	alone.Put(hold.Holder{Name: "writer", Token: 1<<40 + 3, Weight: lock.All, Since: 90 * second, Expires: 120 * second, Waited: second, Delay: 5 * second, Metadata: []byte("pid 7")})
	shared := hold.State{Capacity: lock.All, LastToken: 1<<40 + 5, At: 99 * second}
	shared.Put(hold.Holder{Name: "reader-1", Token: 1<<40 + 4, Weight: lock.One, Since: 90 * second, Expires: 120 * second})
	shared.Put(hold.Holder{Name: "reader-2", Token: 1<<40 + 5, Weight: lock.One, Since: 91 * second, Expires: 120 * second})
	waited := shared.Clone()
	waited.Queue.Places = []hold.Waiter{{Caller: queue.Caller{ID: id, Print: 77}, Request: hold.Request{Name: "writer", Weight: lock.All, TTL: 30 * second}, Since: 92 * second, GiveUp: 152 * second}}
	all := map[string]*owner.Record{"lock": key(&alone), "lock-shared": key(&shared), "lock-waited": key(&waited), "lock-change": key(&waited), "lock-whole": key(&waited)}
	change := all["lock-change"]
	change.Partial, change.Members = true, change.Members[1:]
	change.Members[0].Gone, change.Members[0].State = true, nil
	all["lock-whole"].Whole, all["lock-whole"].IDs = true, &reqid.Kept{Evicted: math.MinInt64}
	return all
}

// The bytes of locks in this form never change, from the level on at which they have it.
func TestGoldenLocks(t *testing.T) {
	for name, r := range locks() {
		if err := r.Validate(100 * second); err != nil {
			t.Fatal(name, err)
		}
		got := AppendAt(owner.LockLevel, nil, r, 100*second)
		want := golden(t, "level7", name, got)
		if !bytes.Equal(got, want) {
			t.Errorf("%s is written as:\n%s\ngolden:\n%s", name, hex.Dump(got), hex.Dump(want))
		}
		var back owner.Record
		if err := Decode(want, 100*second, &back); err != nil || back.Validate(100*second) != nil || back.Kind != owner.KindLock {
			t.Fatalf("%s: read: %v", name, err)
		}
		if a, b := back.Hold().Describe(100*second), r.Hold().Describe(100*second); a != b {
			t.Errorf("%s is read as\n%s\nand written as\n%s", name, a, b)
		}
		if again := AppendAt(owner.LockLevel, nil, &back, 100*second); !bytes.Equal(again, want) {
			t.Errorf("%s is written again as:\n%s", name, hex.Dump(again))
		}
		damaged(t, name, want)
	}
}

// A lock with as many holders and places as there may be, each as long as it may be, is within the
// bound of records: those that share it and those that wait are together no more than one beside a
// whole queue.
func TestLargestLock(t *testing.T) {
	name, metadata := strings.Repeat("h", hold.MaxName), make([]byte, hold.MaxMetadata)
	for _, holders := range []int{1, hold.MaxHolders} {
		s := hold.State{Capacity: lock.All, LastToken: hold.MaxToken, At: math.MaxInt64 >> 3}
		for i := range holders {
			s.Holders = append(s.Holders, hold.Holder{Name: name, Token: hold.MaxToken - hold.MaxHolders + uint64(i), Weight: lock.All, Expires: s.At + hold.MaxTTL, Waited: s.At, Delay: hold.MaxDelay, Metadata: metadata})
		}
		for i := range owner.MaxQueue + 1 - holders {
			id := reqid.ID{Client: reqid.Client{Hi: math.MaxUint64, Lo: uint64(i)}, Sequence: reqid.KeySequence - 1, Settled: reqid.KeySequence - 1}
			s.Queue.Places = append(s.Queue.Places, hold.Waiter{Caller: queue.Caller{ID: id}, Request: hold.Request{Name: name, Weight: lock.All, TTL: hold.MaxTTL, Delay: hold.MaxDelay, Metadata: metadata}, GiveUp: s.At + hold.MaxWait})
		}
		r := (&owner.Record{Key: make([]byte, owner.MaxKey), Name: make([]byte, owner.MaxName)}).SetHold(owner.KindLock, &s)
		if n := len(Append(nil, r, s.At)); n > owner.MaxQueue*MaxMember+MaxRest || n < owner.MaxQueue*hold.MaxMetadata {
			t.Errorf("%d holders: %d bytes", holders, n)
		}
	}
}
