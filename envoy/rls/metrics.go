package rls

import (
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	admissionpb "github.com/keystead/keystead/proto/keystead/admission/v1"
)

// maxSeries bounds the limits that are counted by themselves. Paths that depend
// on requests (detailed_metric, value_to_metric) could be any number; what comes
// after is counted under the path "other" of the domain "other".
const maxSeries = 4096

// maxLabel is how much of a domain or path is a label, in bytes.
const maxLabel = 256

const otherSeries = "other"

// nearLimit is the share of a limit from which hits are counted as near it, as
// upstream has it by default.
const nearLimit = 0.8

// metrics counts what the service does.
type metrics struct {
	hits, over, near, within, shadow *prometheus.CounterVec // domain, limit
	loads                            map[bool]prometheus.Counter
	unknown, shadowed, unasked       prometheus.Counter
	failures                         [3]prometheus.Counter // by Policy
	refunds                          map[bool]prometheus.Counter
	releases                         [3]prometheus.Counter // of slots, by releaseOutcome

	mu     sync.RWMutex // guards what follows
	series map[[2]string]*series
	other  *series // nil = nothing came after
}

// series counts the hits of one limit. As upstream: hits that were refused are
// over, those that were let through are within, and those beyond 80% of the limit
// are near, too.
type series struct{ hits, over, near, within, shadow prometheus.Counter }

func newMetrics(reg prometheus.Registerer, s *Service) *metrics {
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "keystead_rls_" + name, Help: help}, labels)
		reg.MustRegister(v)
		return v
	}
	one := func(name, help string) prometheus.Counter { return vec(name, help).WithLabelValues() }
	gauge := func(name, help string, value func() float64) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "keystead_rls_" + name, Help: help}, value))
	}
	m := &metrics{
		hits:     vec("hits_total", "Hits of the rate limit service by domain and limit.", "domain", "limit"),
		over:     vec("over_limit_total", "Hits that were over the limit.", "domain", "limit"),
		near:     vec("near_limit_total", "Hits that were let through beyond 80% of the limit.", "domain", "limit"),
		within:   vec("within_limit_total", "Hits that were let through.", "domain", "limit"),
		shadow:   vec("shadow_mode_total", "Hits over the limit that were let through because of shadow_mode.", "domain", "limit"),
		unknown:  one("domain_not_found_total", "Descriptors of domains that the configuration does not have."),
		shadowed: one("global_shadow_mode_total", "Requests over the limit that were let through because of --rls-shadow."),
		unasked:  one("unasked_total", "Descriptors that no owner was asked about, because too many questions were without an answer; they are failures, too."),
		series:   map[[2]string]*series{},
		loads:    map[bool]prometheus.Counter{}, refunds: map[bool]prometheus.Counter{},
	}
	loads := vec("config_loads_total", "Times that a changed configuration was read, by outcome.", "outcome")
	m.loads[true], m.loads[false] = loads.WithLabelValues("loaded"), loads.WithLabelValues("refused")
	refunds := vec("refunds_total", "Descriptors whose hits were to be given back, by outcome.", "outcome")
	m.refunds[true], m.refunds[false] = refunds.WithLabelValues("given"), refunds.WithLabelValues("failed")
	releases := vec("slot_releases_total", "Hits that were to give back a slot, by outcome.", "outcome")
	for o, name := range releaseOutcomes {
		m.releases[o] = releases.WithLabelValues(name)
	}
	failures := vec("failures_total", "Descriptors that the owner of the key did not decide, by what was answered.", "policy")
	for p := range m.failures {
		m.failures[p] = failures.WithLabelValues(Policy(p).String())
	}
	gauge("config_broken", "1 while the files are broken and those from before are in force.", func() float64 {
		if s.Status().Broken != nil {
			return 1
		}
		return 0
	})
	gauge("config_limits", "Limits of the configuration in force.", func() float64 { return float64(len(s.now.Load().rules.limits)) })
	return m
}

// What became of hits that were to give back a slot.
const (
	given     = iota // a slot
	unmatched        // nothing: none was taken under the entry, or it came back by itself
	failed           // no owner said
)

var releaseOutcomes = [...]string{given: "given", unmatched: "unmatched", failed: "failed"}

func (m *metrics) released(r *admissionpb.SettleResponse) {
	outcome := unmatched
	if r.State == admissionpb.HoldState_HOLD_STATE_HELD {
		outcome = given
	}
	m.releases[outcome].Inc()
}

// of returns the series of a limit.
func (m *metrics) of(domain, path string) *series {
	key := [2]string{label(domain), label(path)}
	m.mu.RLock()
	s := m.series[key]
	if s == nil && len(m.series) >= maxSeries {
		s = m.other
	}
	m.mu.RUnlock()
	if s != nil {
		return s
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.series[key]; s != nil {
		return s
	}
	if len(m.series) >= maxSeries {
		if m.other == nil {
			m.other = m.make([2]string{otherSeries, otherSeries})
		}
		return m.other
	}
	key = [2]string{strings.Clone(key[0]), strings.Clone(key[1])} // they share the memory of a request
	s = m.make(key)
	m.series[key] = s
	return s
}

func (m *metrics) make(key [2]string) *series {
	return &series{
		hits: m.hits.WithLabelValues(key[:]...), over: m.over.WithLabelValues(key[:]...), near: m.near.WithLabelValues(key[:]...),
		within: m.within.WithLabelValues(key[:]...), shadow: m.shadow.WithLabelValues(key[:]...),
	}
}

// label cuts a text so that it can be one.
func label(text string) string {
	if len(text) > maxLabel {
		text = strings.ToValidUTF8(text[:maxLabel], "")
	}
	return text
}

// count counts a decision on hits. before is what was spent of capacity without
// them.
func (s *series) count(hits, before, capacity uint64, denied, shadow bool) {
	near := max(uint64(float64(capacity)*nearLimit), before)
	within := hits
	if denied {
		over := hits
		if before < capacity {
			over = before + hits - capacity
			within = capacity - before
		} else {
			within = 0
		}
		s.over.Add(float64(over))
		if shadow {
			s.shadow.Add(float64(over))
		}
	} else {
		s.within.Add(float64(within))
	}
	if after := before + within; after > near {
		s.near.Add(float64(after - near))
	}
}
