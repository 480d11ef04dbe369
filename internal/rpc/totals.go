package rpc

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	idpb "github.com/keystead/keystead/proto/keystead/id/v1"
)

// Totals are sums of what a server has counted since it was made.
type Totals struct {
	// Operations on objects; each item of a batch is one.
	Operations uint64
	// Upper are the upper bounds of the classes of time, in seconds, ascending.
	Upper []float64
	// Calls are the calls about objects and ids in each class, and at last those beyond
	// all bounds: no streams, and no calls that wait for others.
	Calls []uint64
}

// Totals sums up the counts, about a hundred of them.
func (m *Metrics) Totals() Totals {
	var t Totals
	var read dto.Metric
	for i := range m.ops {
		for _, c := range []prometheus.Counter{m.ops[i].yes, m.ops[i].no, m.ops[i].replayed, m.ops[i].errored} {
			if c != nil && c.Write(&read) == nil {
				t.Operations += uint64(read.GetCounter().GetValue())
			}
		}
	}
	t.Upper, t.Calls = callBuckets, make([]uint64, len(callBuckets)+1)
	for full, x := range m.methods {
		h, is := x.seconds.(prometheus.Metric)
		if !is || !briefly(full) || h.Write(&read) != nil {
			continue
		}
		below := uint64(0)
		for i, b := range read.GetHistogram().GetBucket() {
			t.Calls[i] += b.GetCumulativeCount() - below
			below = b.GetCumulativeCount()
		}
		t.Calls[len(callBuckets)] += read.GetHistogram().GetSampleCount() - below
	}
	return t
}

// briefly reports whether a method is a call about objects or ids that is answered at once.
func briefly(full string) bool {
	service, name, _ := strings.Cut(strings.TrimPrefix(full, "/"), "/")
	if service == idpb.IdService_ServiceDesc.ServiceName {
		return true
	}
	for _, k := range catalog {
		if k.service == nil || k.service.ServiceName != service {
			continue
		}
		for _, m := range k.service.Streams {
			if m.StreamName == name {
				return false
			}
		}
		for _, o := range k.ops {
			if o.method == name {
				return o.Waited == nil
			}
		}
		return true // a batch
	}
	return false
}
