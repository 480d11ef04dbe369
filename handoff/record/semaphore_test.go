package record

import (
	"bytes"
	"encoding/hex"
	"math"
	"strings"
	"testing"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/queue"
	"github.com/keystead/keystead/owner/reqid"
)

// semaphores are records of semaphores, as of the moment 100 s.
func semaphores() map[string]*owner.Record {
	key := func(s *hold.State) *owner.Record {
		r := &owner.Record{Key: []byte("203.0.113.7"), Name: []byte("semaphore"), Version: 1234, At: 99 * second, Hash: owner.Hash("203.0.113.7")}
		return r.SetHold(owner.KindSemaphore, s)
	}
	id := reqid.ID{Client: reqid.Client{Hi: 0x0102030405060708, Lo: 0x090a0b0c0d0e0f00}, Sequence: 5, Settled: 4}
	held := hold.State{Capacity: 10, LastToken: 1<<40 + 4, At: 99 * second}
	held.Put(hold.Holder{Name: "worker-1", Token: 1<<40 + 3, Weight: 2, Since: 90 * second, Expires: 120 * second, Waited: second, Metadata: []byte("pid 7")})
	held.Put(hold.Holder{Name: "worker-2", Token: 1<<40 + 4, Weight: 8, Since: 80 * second, Expires: 98 * second, Delay: 5 * second, Ended: true})
	waited := held.Clone()
	waited.Queue.Places = []hold.Waiter{{Caller: queue.Caller{ID: id, Print: 77}, Request: hold.Request{Name: "worker-3", Weight: 3, TTL: 30 * second, Delay: second / 1000}, Since: 92 * second, GiveUp: 152 * second}}
	set := hold.State{Capacity: 20, Fixed: true, LastToken: 9, At: 3 * second}
	all := map[string]*owner.Record{
		"semaphore": key(&held), "semaphore-waited": key(&waited), "semaphore-set": key(&set), "semaphore-change": key(&waited), "semaphore-whole": key(&waited),
	}
	change := all["semaphore-change"]
	change.Partial, change.Members = true, change.Members[1:]
	change.Members[0].Gone, change.Members[0].State = true, nil
	all["semaphore-whole"].Whole, all["semaphore-whole"].IDs = true, &reqid.Kept{Evicted: math.MinInt64}
	return all
}

// The bytes of semaphores never change, from the level on at which there are such.
func TestGoldenSemaphores(t *testing.T) {
	goldenHolds(t, "level6", owner.SemaphoreLevel, semaphores())
}

func goldenHolds(t *testing.T, dir string, level uint32, all map[string]*owner.Record) {
	t.Helper()
	for name, r := range all {
		if err := r.Validate(100 * second); err != nil {
			t.Fatal(name, err)
		}
		got := AppendAt(level, nil, r, 100*second)
		want := golden(t, dir, name, got)
		if !bytes.Equal(got, want) {
			t.Errorf("%s is written as:\n%s\ngolden:\n%s", name, hex.Dump(got), hex.Dump(want))
		}
		var back owner.Record
		if err := Decode(want, 100*second, &back); err != nil || back.Validate(100*second) != nil || back.Kind != owner.KindSemaphore {
			t.Fatalf("%s: read: %v", name, err)
		}
		if a, b := back.Hold().Describe(100*second), r.Hold().Describe(100*second); a != b {
			t.Errorf("%s is read as\n%s\nand written as\n%s", name, a, b)
		}
		if again := AppendAt(level, nil, &back, 100*second); !bytes.Equal(again, want) {
			t.Errorf("%s is written again as:\n%s", name, hex.Dump(again))
		}
	}
}

// sessions are records of what sessions hold, and of waiters under one.
func sessions() map[string]*owner.Record {
	us := hold.Session{Client: reqid.Client{Hi: 0x0102030405060708, Lo: 0x090a0b0c0d0e0f00}, Generation: 300}
	id := reqid.ID{Client: us.Client, Sequence: 5, Settled: 4}
	held := hold.State{Capacity: 10, LastToken: 1<<40 + 4, At: 99 * second}
	held.Put(hold.Holder{Name: "worker-1", Token: 1<<40 + 3, Weight: 2, Since: 90 * second, Expires: 120 * second, Session: us})
	held.Put(hold.Holder{Name: "worker-2", Token: 1<<40 + 4, Weight: 8, Since: 80 * second, Expires: 110 * second})
	held.Queue.Places = []hold.Waiter{{Caller: queue.Caller{ID: id, Print: 77}, Request: hold.Request{Name: "worker-3", Weight: 3, TTL: 30 * second, Session: us}, Since: 92 * second, GiveUp: 152 * second}}
	r := &owner.Record{Key: []byte("203.0.113.7"), Name: []byte("semaphore"), Version: 1234, At: 99 * second, Hash: owner.Hash("203.0.113.7")}
	return map[string]*owner.Record{"session": r.SetHold(owner.KindSemaphore, &held)}
}

// The bytes of what sessions hold never change, from the level on at which there are such.
func TestGoldenSessions(t *testing.T) {
	goldenHolds(t, "level7", owner.SessionLevel, sessions())
}

// A semaphore with as many holders and places as there may be, each as long as it may be, is
// within the bound of records.
func TestLargestSemaphore(t *testing.T) {
	s := hold.State{Capacity: hold.MaxCapacity, LastToken: hold.MaxToken, At: math.MaxInt64 >> 3}
	name, metadata := strings.Repeat("h", hold.MaxName), make([]byte, hold.MaxMetadata)
	of := hold.Session{Client: reqid.Client{Hi: math.MaxUint64}, Generation: hold.MaxGeneration}
	for i := range hold.MaxHolders {
		s.Holders = append(s.Holders, hold.Holder{Name: name, Token: hold.MaxToken - hold.MaxHolders + uint64(i), Weight: hold.MaxCapacity, Expires: s.At + hold.MaxTTL, Waited: s.At, Delay: hold.MaxDelay, Metadata: metadata, Session: of})
	}
	for i := range owner.MaxQueue - hold.MaxHolders {
		id := reqid.ID{Client: reqid.Client{Hi: math.MaxUint64, Lo: uint64(i)}, Sequence: reqid.KeySequence - 1, Settled: reqid.KeySequence - 1}
		s.Queue.Places = append(s.Queue.Places, hold.Waiter{Caller: queue.Caller{ID: id}, Request: hold.Request{Name: name, Weight: hold.MaxCapacity, TTL: hold.MaxTTL, Delay: hold.MaxDelay, Metadata: metadata, Session: of}, GiveUp: s.At + hold.MaxWait})
	}
	r := (&owner.Record{Key: make([]byte, owner.MaxKey), Name: make([]byte, owner.MaxName)}).SetHold(owner.KindSemaphore, &s)
	for i := range r.Members {
		if n := len(r.Members[i].State); n > owner.MaxMember {
			t.Fatalf("member %d has %d bytes", i, n)
		}
	}
	if n := len(Append(nil, r, s.At)); n > owner.MaxQueue*MaxMember+MaxRest || n < owner.MaxQueue*hold.MaxMetadata {
		t.Errorf("%d bytes", n)
	}
}
