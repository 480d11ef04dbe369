package rls

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	admissionpb "github.com/keystead/keystead/proto/keystead/admission/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// keeper stands for the owners of slots: it answers after a time, or fails, and remembers what was settled.
type keeper struct {
	after time.Duration
	err   error

	mu      sync.Mutex
	settled []*admissionpb.SettleRequest // guarded by mu
}

func (k *keeper) Admit(_ context.Context, q *admissionpb.AdmitRequest) (*admissionpb.AdmitResponse, error) {
	time.Sleep(k.after)
	if k.err != nil {
		return nil, k.err
	}
	return &admissionpb.AdmitResponse{Admitted: true, HoldId: "of " + q.HoldTag, Demands: []*admissionpb.DemandResult{{Remaining: 4}}}, nil
}

func (k *keeper) Settle(_ context.Context, q *admissionpb.SettleRequest) (*admissionpb.SettleResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.settled = append(k.settled, q)
	return &admissionpb.SettleResponse{State: admissionpb.HoldState_HOLD_STATE_HELD}, k.err
}

func (k *keeper) ended() (ids []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, q := range k.settled {
		ids = append(ids, q.HoldId+q.HoldTag)
	}
	return ids
}

const slotPolicies = `
domain: d
descriptors:
- {key: error, rate_limit: {keystead: {slots: 5, hold: 1m}}}
- {key: allow, rate_limit: {keystead: {slots: 5, hold: 1m, on_failure: allow}}}
- {key: deny, rate_limit: {keystead: {slots: 5, hold: 1m, on_failure: deny}}}
- {key: spent, rate_limit: {unit: day, requests_per_unit: 9}}
`

// TestSlotsOfOwnersThatFail: what becomes of a request is what the limit says, and it spends nothing of others unless
// it is let through.
func TestSlotsOfOwnersThatFail(t *testing.T) {
	for key, want := range map[string]string{"error": "Unavailable", "allow": "OK: OK/0 OK/8", "deny": "OVER_LIMIT: OVER_LIMIT/0 OK/9"} {
		peeks := 0
		s := newService(t, slotPolicies, func(_ context.Context, checks []*limitpb.CheckRequest) ([]*limitpb.CheckResult, error) {
			left := uint64(8)
			if checks[0].Peek {
				left = 9
				peeks++
			}
			return []*limitpb.CheckResult{{Response: &limitpb.CheckResponse{Allowed: true, Remaining: left}}}, nil
		})
		s.admitter = &keeper{err: grpcstatus.Error(codes.Unavailable, "not now")}
		if got := s.got(t, t.Context(), asked(1, key, "spent")); got != want {
			t.Errorf("%s: %s, want %s", key, got, want)
		}
		if (peeks == 1) != (key != "allow") {
			t.Errorf("%s: %d peeks", key, peeks)
		}
	}
}

// TestSlotsThatComeLate: a slot that is taken when its request was refused, or its caller has left, is given back by
// itself; one that was let through keeps it, and gives it back at its end.
func TestSlotsThatComeLate(t *testing.T) {
	for key, want := range map[string]string{"error": "DeadlineExceeded", "allow": "OK: OK/0", "deny": "OVER_LIMIT: OVER_LIMIT/0"} {
		synctest.Test(t, func(t *testing.T) {
			k := &keeper{after: time.Second}
			s := newService(t, slotPolicies, nil)
			s.admitter = k
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if got := s.got(t, ctx, asked(1, key)); got != want {
				t.Errorf("%s: %s, want %s", key, got, want)
			}
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if n := len(k.ended()); (n == 1) != (key != "allow") || n > 1 {
				t.Errorf("%s: %d were given back", key, n)
			}
			s.Close()
		})
	}
	for key, want := range map[string]string{"error": "Canceled", "allow": "OK: OK/0", "deny": "OVER_LIMIT: OVER_LIMIT/0"} { // a caller that leaves
		synctest.Test(t, func(t *testing.T) {
			k := &keeper{after: time.Second}
			s := newService(t, slotPolicies, nil)
			s.admitter = k
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second/2, cancel)
			if got := s.got(t, ctx, asked(1, key)); got != want {
				t.Errorf("%s: %s", key, got)
			}
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if ids := k.ended(); len(ids) != 1 || ids[0] != "of 1" {
				t.Errorf("%s: %q were given back", key, ids)
			}
			s.Close()
		})
	}
}

// TestSlotTags: entries that differ have different tags, of a length that an admission takes.
func TestSlotTags(t *testing.T) {
	long := make([]byte, 2*maxSlotTag)
	for i := range long {
		long[i] = 'x'
	}
	seen := map[string]string{}
	for _, entry := range []string{"", "a", "#a", "#", string(long), string(long[1:]), string(long[:maxSlotTag]), slotTag(string(long)), slotTag("#a")} {
		tag := slotTag(entry)
		if other, twice := seen[tag]; twice || len(tag) > 128 {
			t.Errorf("%q and %q are %q", other, entry, tag)
		}
		seen[tag] = entry
	}
}
