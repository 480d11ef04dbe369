package sim

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// TestResetOfMovingObjects: what an operator resets is reset once, whichever node is asked,
// also if it is split, its owner stops meanwhile, and the order is given again under its key.
func TestResetOfMovingObjects(t *testing.T) {
	t.Parallel()
	play(t, setting{nodes: 3}, func(s *scene) {
		s.adopted()
		o := &operator{s: s}
		for i := range s.hosts {
			conn, err := s.Dial("operator", i)
			if err != nil {
				s.t.Fatal(err)
			}
			defer conn.Close()
			o.conns = append(o.conns, conn)
		}
		for round, how := range []string{"whole", "split", "stopping", "split, stopping", "split and merged", "split and merged, stopping"} {
			for _, kind := range []commonpb.Kind{commonpb.Kind_KIND_COUNTER, commonpb.Kind_KIND_LIMIT} {
				o.round(fmt.Sprint("object-", round), kind, how)
				s.until(stableTime, "all is well again", s.stable)
			}
		}
	})
}

// operator asks nodes at random.
type operator struct {
	s     *scene
	conns []*grpc.ClientConn
}

// must has a call made until it is done.
func (o *operator) must(what string, call func(ctx context.Context, conn *grpc.ClientConn) error) {
	o.s.t.Helper()
	var last error
	for over := time.Now().Add(stableTime); time.Now().Before(over); o.s.sleep(50 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		last = call(ctx, o.conns[o.s.rnd.IntN(len(o.conns))])
		cancel()
		if last == nil {
			return
		}
	}
	o.s.t.Fatalf("%s: %v", what, last)
}

// spend changes the object so that a reset finds something.
func (o *operator) spend(key string, kind commonpb.Kind) {
	for range 6 {
		o.must("a change", func(ctx context.Context, conn *grpc.ClientConn) (err error) {
			if kind == commonpb.Kind_KIND_COUNTER {
				_, err = counterpb.NewCounterServiceClient(conn).Add(ctx, &counterpb.AddRequest{Key: key, Delta: 1})
			} else {
				_, err = limitpb.NewLimitServiceClient(conn).Check(ctx, &limitpb.CheckRequest{Key: key, Limit: 1000, PeriodNs: int64(24 * time.Hour), Cost: 5})
			}
			return err
		})
	}
}

// spent returns what a counter is at, or of a limit what is not there.
func (o *operator) spent(key string, kind commonpb.Kind) (n int64) {
	o.must("a look", func(ctx context.Context, conn *grpc.ClientConn) error {
		if kind == commonpb.Kind_KIND_COUNTER {
			r, err := counterpb.NewCounterServiceClient(conn).Get(ctx, &counterpb.GetRequest{Key: key})
			n = r.GetValue()
			return err
		}
		r, err := limitpb.NewLimitServiceClient(conn).Check(ctx, &limitpb.CheckRequest{Key: key, Limit: 1000, PeriodNs: int64(24 * time.Hour), Peek: true})
		n = 1000 - int64(r.GetRemaining())
		return err
	})
	return n
}

func (o *operator) round(key string, kind commonpb.Kind, how string) {
	s := o.s
	what := fmt.Sprint(how, " ", kind)
	o.spend(key, kind)
	if strings.Contains(how, "split") {
		o.must("a split", func(ctx context.Context, conn *grpc.ClientConn) error {
			_, err := adminpb.NewAdminServiceClient(conn).SplitObject(ctx, &adminpb.SplitObjectRequest{Kind: kind, Key: key, Parts: 3})
			return err
		})
		o.spend(key, kind)
	}
	var beside sync.WaitGroup
	if strings.Contains(how, "merged") {
		beside.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			_, _ = adminpb.NewAdminServiceClient(o.conns[0]).MergeObject(ctx, &adminpb.MergeObjectRequest{Kind: kind, Key: key})
		})
	}
	home := s.ownerOf(key)
	stops := strings.Contains(how, "stopping")
	if stops {
		beside.Go(func() { s.Stop(home) })
	}
	req := &adminpb.ResetObjectRequest{Kind: kind, Key: key, IdempotencyKey: what}
	existed := false
	o.must("a reset", func(ctx context.Context, conn *grpc.ClientConn) error {
		r, err := adminpb.NewAdminServiceClient(conn).ResetObject(ctx, req)
		existed = r.GetExisted()
		return err
	})
	beside.Wait()
	if stops {
		if err := s.Start(home); err != nil {
			s.t.Fatal(err)
		}
	}
	if n := o.spent(key, kind); n != 0 || !existed {
		s.t.Errorf("%s: %d are left of it, existed %v", what, n, existed)
	}
	o.spend(key, kind)
	before := o.spent(key, kind)
	o.must("the same reset", func(ctx context.Context, conn *grpc.ClientConn) error {
		r, err := adminpb.NewAdminServiceClient(conn).ResetObject(ctx, req)
		if err == nil && (r.Replay == nil || !r.Existed) {
			s.t.Errorf("%s: the same order was done twice: %v", what, r)
		}
		return err
	})
	if n := o.spent(key, kind); before == 0 || n != before {
		s.t.Errorf("%s: %d after the order was given again, %d before", what, n, before)
	}
	o.must("a look at the key", func(ctx context.Context, conn *grpc.ClientConn) error {
		r, err := adminpb.NewAdminServiceClient(conn).InspectKey(ctx, &adminpb.InspectKeyRequest{Key: key})
		if err == nil && (len(r.Objects) == 0 || r.Owner.GetOwner() == "") {
			s.t.Errorf("%s: %v", what, r)
		}
		return err
	})
}
