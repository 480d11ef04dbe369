package node

import (
	"testing"
	"time"

	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
)

// TestStateOfLaterForms: a node that runs alone keeps what the first forms of records cannot say.
func TestStateOfLaterForms(t *testing.T) {
	dir := t.TempDir()
	n := startStandalone(t, dir, nil)
	limits := func() limitpb.LimitServiceClient { return limitpb.NewLimitServiceClient(dial(t, n)) }
	locks := func() lockpb.LockServiceClient { return lockpb.NewLockServiceClient(dial(t, n)) }
	check := func(key string, cost uint64, how limitpb.Algorithm) *limitpb.CheckResponse {
		t.Helper()
		q := &limitpb.CheckRequest{Key: key, Limit: 5, PeriodNs: int64(time.Hour), Algorithm: how, Cost: cost}
		if how == limitpb.Algorithm_ALGORITHM_CALENDAR_WINDOW {
			q.PeriodNs, q.Calendar = 0, limitpb.CalendarUnit_CALENDAR_UNIT_YEAR
		}
		r, err := limits().Check(bounded(t), q)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	algorithms := map[string]limitpb.Algorithm{"leaky": limitpb.Algorithm_ALGORITHM_LEAKY_BUCKET, "calendar": limitpb.Algorithm_ALGORITHM_CALENDAR_WINDOW, "overridden": limitpb.Algorithm_ALGORITHM_TOKEN_BUCKET}
	if _, err := limits().SetOverride(bounded(t), &limitpb.SetOverrideRequest{Key: "overridden", Limit: 7, PeriodNs: int64(time.Hour), EndsAfterNs: int64(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	for key, how := range algorithms {
		if r := check(key, 5, how); !r.Allowed {
			t.Fatalf("%s: %v", key, r)
		}
	}
	tokens := map[uint64]string{}
	for _, q := range []*lockpb.AcquireRequest{{Key: "shared", Shared: true}, {Key: "shared", Shared: true}, {Key: "delayed", DelayNs: int64(time.Minute)}} {
		q.Holder, q.TtlNs = "h", int64(time.Hour)
		r, err := locks().Acquire(bounded(t), q)
		if err != nil || !r.Acquired {
			t.Fatalf("%v %v", r, err)
		}
		tokens[r.Token] = q.Key
	}
	n.Stop()
	n = startStandalone(t, dir, nil)
	for key, how := range algorithms {
		r := check(key, 1, how)
		if over := key == "overridden"; r.Allowed != over || r.Overridden != over {
			t.Errorf("%s: %v", key, r)
		}
	}
	for token, key := range tokens {
		if r, err := locks().Renew(bounded(t), &lockpb.RenewRequest{Key: key, Token: token, TtlNs: int64(time.Hour)}); err != nil || !r.Renewed {
			t.Errorf("%s: %v %v", key, r, err)
		}
	}
}
