package cli

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/client"
	semaphorepb "github.com/keystead/keystead/proto/keystead/semaphore/v1"
)

// deafened answers what was done in a connection that breaks at the first answer.
type deafened struct {
	semaphorepb.UnimplementedSemaphoreServiceServer
	calls int
}

// once reports whether a token is still held: the first call ends it.
func (d *deafened) once() (bool, error) {
	if d.calls++; d.calls == 1 {
		return false, status.Error(codes.Unavailable, "error reading from server: EOF")
	}
	return false, nil
}

func (d *deafened) Release(context.Context, *semaphorepb.ReleaseRequest) (*semaphorepb.ReleaseResponse, error) {
	held, err := d.once()
	return &semaphorepb.ReleaseResponse{Released: held}, err
}

func (d *deafened) Revoke(context.Context, *semaphorepb.RevokeRequest) (*semaphorepb.RevokeResponse, error) {
	held, err := d.once()
	return &semaphorepb.RevokeResponse{Revoked: held}, err
}

func (d *deafened) Verify(context.Context, *semaphorepb.VerifyRequest) (*semaphorepb.VerifyResponse, error) {
	held, err := d.once()
	return &semaphorepb.VerifyResponse{Held: held}, err
}

// TestPermitsWhoseReleaseWasNotHeard: a release or revocation whose answer was lost, and that is
// tried again, finds nothing to end any more, for the first one has. It is not a failure. A
// question that is asked again is answered by its last answer.
func TestPermitsWhoseReleaseWasNotHeard(t *testing.T) {
	for what, said := range map[string]string{"release": "released\n", "revoke": "revoked\n", "verify": ""} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := grpc.NewServer()
		semaphorepb.RegisterSemaphoreServiceServer(s, &deafened{})
		go func() { _ = s.Serve(l) }()
		t.Cleanup(s.Stop)
		var out, errs strings.Builder
		cmd := newSemaphore(Process{Out: &out, Err: &errs})
		cmd.SetArgs([]string{what, "db", "--token", "7", "--addr", l.Addr().String()})
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		if err := cmd.ExecuteContext(t.Context()); (err == nil) != (said != "") || out.String() != said {
			t.Errorf("%s: %v, %q, %q", what, err, out.String(), errs.String())
		}
		if said == "" && !strings.Contains(errs.String(), "does not hold permits of \"db\"") {
			t.Errorf("%s: %q", what, errs.String())
		}
	}
}

// TestPermitsMisuse: what no semaphore has is refused before anything is asked.
func TestPermitsMisuse(t *testing.T) {
	for want, p := range map[string]permitFlags{
		"--permits 4294967297: choose 1 to the capacity":          {n: 1<<32 + 1},
		"--permits 3: choose 1 to the capacity":                   {n: 3, capacity: 2},
		"--capacity -1: choose 1 to 1048576":                      {n: 1, capacity: -1},
		"--delay 1m1s: choose 0 to 1m, in whole milliseconds":     {n: 1, delay: 61 * time.Second},
		"--delay 1\u00b5s: choose 0 to 1m, in whole milliseconds": {n: 1, delay: time.Microsecond},
	} {
		if err := p.check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestHoldersAreShownAsText: the name of a holder is anybody's text. It does not move the cursor of
// the operator who looks.
func TestHoldersAreShownAsText(t *testing.T) {
	const bad = "a\x1b[2J\nb"
	var f lockFlags
	var out strings.Builder
	s := client.SemaphoreState{Capacity: 3, Held: 1, Holding: 1, Waiting: 1,
		Holders: []client.PermitHolder{{Holder: client.Holder{ID: bad, Token: 7, TTL: 1e9, Metadata: []byte("rack\x1b")}, Permits: 1}},
		Waiters: []client.PermitWaiter{{Waiter: client.Waiter{Name: bad}, Permits: 3}}}
	if err := f.showPermits(Process{Out: &out}, &s); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); strings.Contains(got, "\x1b") || strings.Count(got, `"a\x1b[2J\nb"`) != 2 || !strings.Contains(got, `metadata: "rack\x1b"`) {
		t.Errorf("%s", got)
	}
	out.Reset()
	s = client.SemaphoreState{}
	s.LostEpoch = 7
	if err := f.showPermits(Process{Out: &out}, &s); err != nil || !strings.HasPrefix(out.String(), "not known whether anybody holds permits") {
		t.Errorf("in grace: %s %v", out.String(), err)
	}
}
