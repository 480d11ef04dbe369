package rpc

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
)

// TestOperationsAreWhole: each operation says all of itself that is asked of it, by here
// or elsewhere, and each method of a kind's service is served.
func TestOperationsAreWhole(t *testing.T) {
	numbers, names := map[uint32]string{}, map[string]bool{}
	for _, k := range catalog {
		served := map[string]bool{}
		for _, o := range k.ops {
			if o.Number == 0 || o.Number > maxOperation || numbers[o.Number] != "" {
				t.Errorf("%s: its number %d is out of range, or that of %q", o.Name, o.Number, numbers[o.Number])
			}
			numbers[o.Number] = o.Name
			if o.Name == "" || names[o.Name] {
				t.Errorf("operation %d: its name is %q", o.Number, o.Name)
			}
			names[o.Name] = true
			if o.verb == 0 || o.cost == 0 || o.durable == 0 || o.of != k {
				t.Errorf("%s: it lacks what a caller has to be allowed, what it costs, how durable it is, or its kind: %+v", o.Name, o)
			}
			if o.reads && o.durable != asTold || o.decide != nil && o.method != "" && !o.reads && o.durable != asDone {
				t.Errorf("%s: it reads: %v, and is as durable as %d", o.Name, o.reads, o.durable)
			}
			if (o.yes == "") != (o.no == "") || o.method != "" && o.yes == "" {
				t.Errorf("%s: its outcomes are called %q and %q", o.Name, o.yes, o.no)
			}
			served[o.method] = o.handler != nil
		}
		if k.service == nil {
			continue
		}
		if k.of == 0 || k.name == "" || k.setting == "" {
			t.Errorf("%s: the kind says %+v of itself", k.service.ServiceName, k)
		}
		for _, m := range k.service.Methods {
			if !served[m.MethodName] && !strings.HasPrefix(m.MethodName, "Batch") {
				t.Errorf("nothing serves %s/%s", k.service.ServiceName, m.MethodName)
			}
		}
	}
	if fmt.Sprint(Kinds) != "[limits counters locks registers semaphores once elections barriers groups admissions]" {
		t.Errorf("settings know the kinds %v", Kinds)
	}
}

// TestServicesAreRegistered: a server has each method once, however it is made.
func TestServicesAreRegistered(t *testing.T) {
	h := newHouse(t, nil)
	s := NewServer(Config{Store: h.store, Clock: h.clock, Metrics: NewMetrics(prometheus.NewRegistry())})
	defer s.Stop(0)
	info := s.grpc.GetServiceInfo()
	for _, sd := range []grpc.ServiceDesc{limitpb.LimitService_ServiceDesc, counterpb.CounterService_ServiceDesc, lockpb.LockService_ServiceDesc} {
		if got, want := len(info[sd.ServiceName].Methods), len(sd.Methods)+len(sd.Streams); got != want {
			t.Errorf("%s has %d methods, not %d", sd.ServiceName, got, want)
		}
	}
}

// TestTableIsAskedFirst: a node at which the key is not, by the table, asks it before the
// store: nobody waits for a shard there.
func TestTableIsAskedFirst(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		key, n1, n2 := g.key("n2"), g.nodes["n1"], g.nodes["n2"]
		for through, asked := range map[*member]bool{n1: false, n2: true} {
			before := through.admitted.Load()
			script(t, through, key)
			if now := through.admitted.Load(); (now > before) != asked {
				t.Errorf("%s: its store was asked %d times", through.self.Node, now-before)
			}
		}
	})
}

// TestBothEnvelopes: all operations are forwarded, and answered the same, whichever
// envelope the sender uses and whatever the receiver has heard of the level.
func TestBothEnvelopes(t *testing.T) {
	for what, levels := range map[string][2]uint32{
		"the old one": {3, 3}, "the new one": {4, 4}, "a sender that has heard first": {4, 3}, "a receiver that has heard first": {3, 4},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var want []string
				for _, through := range []string{"n2", "n1"} { // the owner first
					g := grouped(t, 3, false, nil)
					g.called("c", 3)
					for i, node := range []string{"n1", "n2"} {
						m := g.nodes[node]
						at := *m.Table()
						at.Level = levels[i]
						m.Set(&at)
					}
					got := script(t, g.nodes[through], g.key("n2"))
					if want == nil {
						want = got
					}
					for i := range want {
						if got[i] != want[i] {
							t.Errorf("forwarded:\n%s\nat the owner:\n%s", got[i], want[i])
						}
					}
				}
			})
		})
	}
}

// TestUnknownOperation: a call of an operation that a node does not know, or cannot read,
// is refused with what to do about it, and is taken for no other one.
func TestUnknownOperation(t *testing.T) {
	inGroup(t, func(t *testing.T, g *group) {
		n2 := g.nodes["n2"]
		stream := must(peerv1.NewForwardServiceClient(n2.conn).Forward(bound(t)))(t)
		request := must((&counterpb.AddRequest{Key: g.key("n2"), Delta: 1}).MarshalVT())(t)
		for _, call := range []*peerv1.ForwardCall{
			{Operation: opPeek}, {Operation: opNext}, {Operation: 13}, {Operation: maxOperation}, {Operation: maxOperation + 1}, {Operation: 1 << 31}, {},
			{Operation: opAdd, Request: []byte{0xff}}, {Call: &peerv1.ForwardCall_Add{Add: []byte{0xff}}},
		} {
			unknown := call.Request == nil && call.Call == nil
			if unknown {
				call.Request = request
			}
			call.Tag = 7
			if err := stream.Send(&peerv1.ForwardRequest{Calls: []*peerv1.ForwardCall{call}}); err != nil {
				t.Fatal(err)
			}
			a := must(stream.Recv())(t).Answers
			want := map[bool]commonpb.Reason{true: commonpb.Reason_REASON_UNAVAILABLE, false: commonpb.Reason_REASON_INVALID}[unknown]
			if len(a) != 1 || a[0].Tag != 7 || a[0].GetError().GetReason() != want || unknown && !strings.Contains(a[0].GetError().Hint, "upgrade") {
				t.Errorf("%v is answered %v", call, a)
			}
		}
		if r := must(n2.counters.Get(bound(t), &counterpb.GetRequest{Key: g.key("n2")}))(t); r.Version != 0 {
			t.Errorf("something was counted: %v", r)
		}
	})
}
