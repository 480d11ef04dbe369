package rpc

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/across"
	admissionpb "github.com/keystead/keystead/proto/keystead/admission/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
)

// failed sends an Admit whose outcome is an error, and returns that.
func (x *crossing) failed(q *admissionpb.AdmitRequest, want refusal) error {
	x.t.Helper()
	_, err := x.nodes["n1"].admissions.Admit(bound(x.t), q)
	want.check(x.t, err)
	return err
}

// soon is when owners have been told what a coordinator knows, and have asked nobody yet.
const soon = 100 * time.Millisecond

// A row is in grace, and its slots may be in use: the caller is told which demand it is, and for how long. What the others
// hold is given back at once, not when they ask.
func TestAcrossInGrace(t *testing.T) {
	crossed(t, 3, func(t *testing.T, x *crossing) {
		for at := range x.keys {
			node := x.nodes[fmt.Sprint("n", at+1)]
			node.lost.Store(x.since(x.keys[at]) + 5)
			q := x.request(4, 10)
			q.HoldNs = int64(time.Minute)
			q.Demands[at].Counter, q.Demands[at].Name, q.Demands[at].Slots = nil, "busy", &admissionpb.SlotsDemand{Max: 10}
			err := x.failed(q, refusal{codes.Unavailable, commonpb.Reason_REASON_RECOVERING, fmt.Sprintf("demands[%d]", at), true, node.graceLeft(x.keys[at])})
			if !strings.HasPrefix(status.Convert(err).Message(), fmt.Sprintf("demands[%d]: ", at)) {
				t.Error(err)
			}
			time.Sleep(soon)
			synctest.Wait()
			x.used(0)
			if again := x.admit("n3", q); again.Admitted || !refusedByNobody(again) {
				t.Error("asked again:", again)
			}
			// Limits and counters start anew, so they are no reason to wait.
			if a := x.admit("n1", x.request(0, 10)); !a.Admitted {
				t.Error(a)
			}
			time.Sleep(soon)
			for _, key := range x.keys {
				must(x.nodes["n1"].counters.Reset(bound(t), &counterpb.ResetRequest{Key: key, Name: "used"}))(t)
			}
			node.lost.Store(0)
		}
	})
}

// graceLeft is how long the row of a key is in grace.
func (m *member) graceLeft(key string) time.Duration {
	permit := must(m.Admit(owner.Hash(key), 0))(m.t)
	return time.Duration(m.store.GraceLeft(permit, m.clock.Now()))
}

// refusedByNobody reports whether a refusal is none of the demands.
func refusedByNobody(a *admissionpb.AdmitResponse) bool {
	return !slices.ContainsFunc(a.Demands, func(d *admissionpb.DemandResult) bool { return d.Refused })
}

// A row was lost since a request was first sent. It may have held there, and the caller may have been told so: the others
// are charged, and nobody says that it was admitted. A request that was sent after the loss is as any other.
func TestAcrossLostSince(t *testing.T) {
	crossed(t, 3, func(t *testing.T, x *crossing) {
		two := x.nodes["n2"]
		two.loss.Store(&owner.Permit{Loss: x.since(x.keys[1]) + 5, LossAt: two.clock.Now()})
		q := x.request(4, 10)
		lost := refusal{codes.Unknown, commonpb.Reason_REASON_OUTCOME_UNKNOWN, "", true, 0}
		if err := x.failed(q, lost); !strings.Contains(err.Error(), "lost since the request was first sent") {
			t.Error(err)
		}
		x.phases(q.RequestId, across.Held, across.Lost, across.Held)
		time.Sleep(1500 * time.Millisecond)
		x.phases(q.RequestId, across.Charged, across.Lost, across.Charged)
		x.used(4, 0, 4)
		x.failed(q, lost)
		x.used(4, 0, 4)
		two.loss.Store(&owner.Permit{Loss: 1, LossAt: two.clock.Now()}) // the table has it
		if a := x.admit("n1", x.request(4, 10)); !a.Admitted {
			t.Error(a)
		}
		x.used(8, 4, 8)
	})
}
