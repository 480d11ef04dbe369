package lock

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/reqid"
)

const second = int64(1e9)

func TestValidate(t *testing.T) {
	good := Acquire{Holder: "h", TTL: MinTTL}
	for _, c := range []struct {
		name  string
		edit  func(*Acquire)
		field string // at fault; "" = none
	}{
		{"smallest", func(op *Acquire) {}, ""},
		{"largest", func(op *Acquire) {
			*op = Acquire{Holder: strings.Repeat("h", MaxHolder), TTL: MaxTTL, Wait: MaxWait, Metadata: make([]byte, MaxMetadata)}
		}, ""},
		{"no holder", func(op *Acquire) { op.Holder = "" }, "holder"},
		{"long holder", func(op *Acquire) { op.Holder = strings.Repeat("h", MaxHolder+1) }, "holder"},
		{"holder not UTF-8", func(op *Acquire) { op.Holder = "\xff" }, "holder"},
		{"no TTL", func(op *Acquire) { op.TTL = 0 }, "ttl_ns"},
		{"short TTL", func(op *Acquire) { op.TTL = MinTTL - 1 }, "ttl_ns"},
		{"long TTL", func(op *Acquire) { op.TTL = MaxTTL + 1 }, "ttl_ns"},
		{"negative wait", func(op *Acquire) { op.Wait = -1 }, "wait_ns"},
		{"long wait", func(op *Acquire) { op.Wait = MaxWait + 1 }, "wait_ns"},
		{"long metadata", func(op *Acquire) { op.Metadata = make([]byte, MaxMetadata+1) }, "metadata"},
	} {
		t.Run(c.name, func(t *testing.T) {
			op := good
			c.edit(&op)
			err := op.Validate()
			if c.field == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			var fe *failure.Error
			if !errors.As(err, &fe) || fe.Field != c.field || !strings.HasPrefix(err.Error(), c.field+": ") {
				t.Fatalf("error is %v, want one of field %s", err, c.field)
			}
		})
	}
}

// contended is a lock held at moment 5 by one and waited for by two.
func contended() State {
	var s State
	var fx Effects
	s.Acquire(Acquire{Holder: "a", TTL: second, Metadata: []byte("note")}, 3, 7, 9, &fx)
	s.Acquire(Acquire{Holder: "b", TTL: second, Wait: second, Ticket: 1, Metadata: []byte("note")}, 4, 8, 9, &fx)
	s.Acquire(Acquire{Holder: "c", TTL: second, Wait: second, Ticket: 2}, 5, 8, 9, &fx)
	return s
}

func TestValid(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*State)
		want string // in the error; "" = none
	}{
		{"as it is", func(s *State) {}, ""},
		{"absent", func(s *State) { *s = State{} }, ""},
		{"granted before the clock began", func(s *State) { s.held().Since = -second }, ""},
		{"a time out of range", func(s *State) { s.held().Expires = maxMoment + 1 }, "out of range"},
		{"a negative wait of the holder", func(s *State) { s.held().Waited = -1 }, "out of range"},
		{"token too large", func(s *State) { s.held().Token, s.LastToken = MaxToken+1, MaxToken+1 }, "above"},
		{"remains of a grant", func(s *State) { s.Holders, s.Queue.Places = nil, nil }, "0 holders, 0 wait"},
		{"free with a queue", func(s *State) { s.Holders = nil }, "2 wait"},
		{"not the last token", func(s *State) { s.LastToken = 9 }, "the last token is 9"},
		{"granted in the future", func(s *State) { s.held().Since = s.At + 1 }, "after the last change"},
		{"ends before it begins", func(s *State) { s.held().Expires = s.held().Since - 1 }, "ends before"},
		{"ends too late", func(s *State) { s.held().Expires = s.At + MaxTTL + 1 }, "too late"},
		{"no holder", func(s *State) { s.held().Name = "" }, "of token 7, holder"},
		{"much metadata", func(s *State) { s.held().Metadata = make([]byte, MaxMetadata+1) }, "of token 7, metadata"},
		{"waiter without holder", func(s *State) { s.Queue.Places[1].Request.Name = "" }, "of place 2, holder"},
		{"waiter without TTL", func(s *State) { s.Queue.Places[1].Request.TTL = 0 }, "of place 2, ttl_ns"},
		{"a ticket twice", func(s *State) { s.Queue.Places[1].Ticket = 1 }, "ticket 1 waits twice"},
		{"a waiter's time out of range", func(s *State) { s.Queue.Places[0].GiveUp = maxMoment + 1 }, "of place 1, a time is out of range"},
		{"came before the one ahead", func(s *State) { s.Queue.Places[1].Since = 3 }, "place 2 came before"},
		{"came in the future", func(s *State) { s.Queue.Places[1].Since = s.At + 1 }, "or after the last change"},
		{"gives up before it came", func(s *State) { s.Queue.Places[1].GiveUp = 4 }, "gives up before"},
		{"waits too long", func(s *State) { s.Queue.Places[1].GiveUp = s.At + MaxWait + 1 }, "or too late"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := contended()
			c.edit(&s)
			err := s.Valid()
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error is %v, want %q", err, c.want)
			}
		})
	}
}

func TestCloneSharesNothing(t *testing.T) {
	s := contended()
	c := s.Clone()
	if !reflect.DeepEqual(s, c) {
		t.Fatalf("the clone is %+v, not %+v", c, s)
	}
	s.held().Metadata[0], s.Queue.Places[0].Request.Metadata[0] = 'N', 'N'
	s.Queue.Places[0].Ticket = 99
	if want := contended(); !reflect.DeepEqual(c, want) {
		t.Fatalf("the clone became %+v", c)
	}
}

// Inspect and Describe list no more than they are asked to, and count the rest.
func TestInspectLimit(t *testing.T) {
	s := queueOf(100)
	v := s.Inspect(0, 3)
	if v.Waiting != 100 || len(v.First) != 3 || v.First[2].Ticket != 3 {
		t.Fatalf("shows %+v", v)
	}
	if v := s.Inspect(0, 0); v.Waiting != 100 || v.First != nil {
		t.Fatalf("shows %+v", v)
	}
	if d := s.Describe(0); !strings.HasSuffix(d, "\n  and 80 more") || strings.Count(d, "\n") != describeWaiters+1 {
		t.Fatalf("prints %s", d)
	}
}

func TestAllocs(t *testing.T) {
	var fx Effects
	var free State
	op := Acquire{Holder: "a", TTL: second, Metadata: []byte("note")}
	waiting := Acquire{Holder: "b", TTL: second, Wait: second}
	two := contended()
	two.Release(7, 6, 8, &fx) // b holds, c waits
	now := int64(10)
	for _, c := range []struct {
		name string
		f    func()
	}{
		{"acquire, renew, release", func() {
			now++
			res := free.Acquire(op, now, free.LastToken+1, DefaultMaxWaiters, &fx)
			free.Renew(res.Token, second, now, 0, &fx)
			free.Release(res.Token, now, 0, &fx)
		}},
		{"acquire after the TTL ended", func() {
			now += second
			free.Acquire(op, now, free.LastToken+1, DefaultMaxWaiters, &fx)
		}},
		{"refusal and reads", func() {
			two.Acquire(op, now, 0, DefaultMaxWaiters, &fx)
			two.Expire(now, 0, &fx)
			two.NextWake(now)
			two.Holding(now)
			two.Absent(now)
		}},
		{"join, supersede, cancel", func() {
			now++
			waiting.Ticket = 1000
			two.Acquire(waiting, now, 0, DefaultMaxWaiters, &fx)
			two.Supersede(1000, 1001, reqid.ID{}, second, now)
			two.Cancel(1001, now)
		}},
		{"handover", func() {
			now++
			waiting.Ticket = two.LastToken
			two.Acquire(waiting, now, 0, DefaultMaxWaiters, &fx)
			two.Release(two.held().Token, now, two.LastToken+1, &fx)
		}},
	} {
		now = max(free.At, two.At)
		two.Renew(two.held().Token, MaxTTL, now, 0, &fx)
		if n := testing.AllocsPerRun(200, c.f); n != 0 {
			t.Errorf("%s allocates %v times", c.name, n)
		}
	}
}

// queueOf is a lock held at moment 0 for a day, with n waiters.
func queueOf(n int) *State {
	var s State
	var fx Effects
	s.Acquire(Acquire{Holder: "holder", TTL: MaxTTL}, 0, 1, n, &fx)
	for i := range n {
		s.Acquire(Acquire{Holder: "waiter", TTL: MaxTTL, Wait: MaxWait, Ticket: uint64(i + 1)}, 0, 2, n, &fx)
	}
	return &s
}

func BenchmarkAcquireRelease(b *testing.B) {
	var s State
	var fx Effects
	op := Acquire{Holder: "holder", TTL: second}
	b.ReportAllocs()
	for b.Loop() {
		res := s.Acquire(op, s.At+1, s.LastToken+1, DefaultMaxWaiters, &fx)
		s.Release(res.Token, s.At+1, 0, &fx)
	}
}

func BenchmarkRenew(b *testing.B) {
	s := queueOf(0)
	var fx Effects
	b.ReportAllocs()
	for b.Loop() {
		s.Renew(1, second, s.At+1, 0, &fx)
	}
}

func BenchmarkRefused(b *testing.B) {
	s := queueOf(0)
	var fx Effects
	op := Acquire{Holder: "holder", TTL: second}
	b.ReportAllocs()
	for b.Loop() {
		s.Acquire(op, 1, 0, DefaultMaxWaiters, &fx)
	}
}

// A caller joins the end of the queue, the holder releases, the head is granted.
func BenchmarkHandover(b *testing.B) {
	for _, c := range []struct {
		name    string
		waiters int
	}{{"1", 1}, {"10", 10}, {"1024", 1024}} {
		b.Run(c.name, func(b *testing.B) {
			s := queueOf(c.waiters - 1)
			var fx Effects
			op := Acquire{Holder: "waiter", TTL: MaxTTL, Wait: MaxWait, Ticket: 1 << 32}
			b.ReportAllocs()
			for b.Loop() {
				op.Ticket++
				s.Acquire(op, 1, 0, DefaultMaxWaiters, &fx)
				s.Release(s.held().Token, 1, s.LastToken+1, &fx)
			}
		})
	}
}

func BenchmarkNextWake1024(b *testing.B) {
	s := queueOf(1024)
	b.ReportAllocs()
	for b.Loop() {
		s.NextWake(1)
	}
}
