package cli

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/client"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

// A lock that nobody can grant, because the cluster has stopped, is not waited for in
// silence; one that is held is, and so is an owner that is being replaced.
func TestLockThatNobodyGrants(t *testing.T) {
	const acquire = lockpb.LockService_Acquire_FullMethodName
	for name, tc := range map[string]struct {
		method string
		code   codes.Code
		tried  time.Duration
		said   bool
	}{
		"for long":        {acquire, codes.Unavailable, nobodyAfter, true},
		"for a moment":    {acquire, codes.Unavailable, time.Second, false},
		"it is held":      {acquire, codes.FailedPrecondition, nobodyAfter, false},
		"another request": {lockpb.LockService_Release_FullMethodName, codes.Unavailable, nobodyAfter, false},
	} {
		var out strings.Builder
		f := &lockFlags{wait: 24 * time.Hour}
		now := time.Now()
		g := &graceWait{f: f, std: Process{Err: &out}, key: "job", began: now.Add(-tc.tried), end: now.Add(f.wait)}
		err := status.Error(tc.code, "the node \"n1\" cannot show it")
		for range 3 {
			if got := g.refused(tc.method, err); got != err {
				t.Errorf("%s: it is %v", name, got)
			}
		}
		const want = "keystead: nobody grants the lock on \"job\" for now: the node \"n1\" cannot show it (Unavailable); trying on for --wait 24h\n"
		if said := out.String(); said != map[bool]string{true: want}[tc.said] {
			t.Errorf("%s: %q", name, said)
		}
	}
}

// Times that are refused are written as people type them.
func TestLockTimes(t *testing.T) {
	for want, f := range map[string]lockFlags{
		"--ttl 48h: choose 300ms to 24h":   {ttl: 48 * time.Hour},
		"--wait -1h30m: choose 0 to 24h":   {ttl: time.Second, wait: -90 * time.Minute},
		"--wait 25h: choose 0 to 24h":      {ttl: time.Second, wait: 25 * time.Hour},
		"--ttl 100ms: choose 300ms to 24h": {ttl: 100 * time.Millisecond},
	} {
		if err := f.check(1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// What holders and waiters call themselves is a text on the terminals of others, and moves
// no cursor there.
func TestHostileHolders(t *testing.T) {
	const name = "me\x1b[2J\nfree"
	var out strings.Builder
	std, h := Process{Out: &out, Err: &out}, &lockpb.Holder{Id: name, Token: 7}
	_ = notAcquired(std, "k", &client.Error{Holder: &client.Holder{ID: name}})
	_ = notHeld(std, "k", 6, h)
	_ = printLock(&out, &lockpb.InspectResponse{Holder: h, Waiting: 1, Waiters: []*lockpb.Waiter{{Id: name}}})
	if said := out.String(); strings.Contains(said, "\x1b") || strings.Count(said, `"me\x1b[2J\nfree"`) != 4 || strings.Count(said, "\n") != 4 {
		t.Errorf("%q", said)
	}
}

// A lock that nobody has is kept for the first of its queue.
func TestKeptLock(t *testing.T) {
	var out strings.Builder
	_ = printLock(&out, &lockpb.InspectResponse{Waiting: 2, Waiters: []*lockpb.Waiter{{Id: "a"}, {Id: "b"}}})
	_ = notAcquired(Process{Err: &out}, "k", &client.Error{Place: 3})
	const want = "free, and kept for the first of its queue\n" +
		"   1. a, waiting 0s\n" +
		"   2. b, waiting 0s\n" +
		"keystead: \"k\" is free, and kept for the first of its queue; 2 in the queue before you\n"
	if out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}
