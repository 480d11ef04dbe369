package rpc

import (
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Totals are of all operations, and of the calls that are answered at once.
func TestTotals(t *testing.T) {
	m := NewMetrics(prometheus.NewRegistry())
	m.ops[opCheck].add(tally{yes: 3, no: 4})
	m.ops[opAcquire].add(tally{errored: 5, replayed: 6})
	for name, took := range map[string]time.Duration{
		"/keystead.limit.v1.LimitService/Check": 3 * time.Microsecond, "/keystead.limit.v1.LimitService/BatchCheck": 400 * time.Microsecond,
		"/keystead.lock.v1.LockService/Renew": time.Hour, "/keystead.id.v1.IdService/Next": 400 * time.Microsecond,
		// They wait, are streams, or are about other things.
		"/keystead.lock.v1.LockService/Acquire": time.Second, "/keystead.limit.v1.LimitService/StreamCheck": time.Second,
		"/keystead.cluster.v1.ClusterService/GetStatus": time.Second, "/keystead.peer.v1.ForwardService/Forward": time.Second, "/other/Other": time.Second,
	} {
		m.method(name).done(errors.New("any"), took)
	}
	got := m.Totals()
	if got.Operations != 18 {
		t.Errorf("%d operations, want 18", got.Operations)
	}
	if len(got.Calls) != len(got.Upper)+1 {
		t.Fatalf("%d classes of %d bounds", len(got.Calls), len(got.Upper))
	}
	for i, n := range got.Calls {
		want := uint64(0)
		switch {
		case i == len(got.Upper):
			want = 1
		case got.Upper[i] == 5e-6:
			want = 1
		case got.Upper[i] == 5e-4:
			want = 2
		}
		if n != want {
			t.Errorf("class %d: %d calls, want %d", i, n, want)
		}
	}
}
