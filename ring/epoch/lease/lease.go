// Package lease decides who may act now, as two pure state machines: Holding is
// a node's side of its own lease, Grants is the raft leader's side of all of
// them. Neither reads a clock or sends anything.
//
// # Guarantee
//
// As long as clocks run equally fast within the margin, a lease that Grants
// calls expired is over at its holder: the holder counts its TTL from when it
// sent the renewal, the leader counts from when it received it, plus the margin,
// and grants only what a proof of leadership, begun after the receipt, covers.
// The next leader counts a whole TTL from its own election before it calls
// anybody expired, because it does not know what was granted before.
//
// # What the leader takes care of
//
//   - It grants nothing before it has applied all that was committed before its
//     term (Ready), and never again to one whose removal it has proposed: the
//     proposal may be committed at any time.
//   - Renewals name the last grant that arrived. After two that did not, it
//     stops extending: a node that hears nothing must not count as served.
//   - When its own clock shows a gap, it has slept, and renewals may lie in its
//     sockets: it calls nobody expired for a whole TTL.
package lease

import "math"

// Config is agreed by all nodes of a cluster: a leader that counted a shorter TTL
// than the one before it granted would call the living dead. Nanoseconds.
type Config struct {
	TTL    int64 // how long a grant lets a node act
	Margin int64 // how much clocks may drift apart within a TTL
}

// Holding is a node's own lease. The zero Holding has none.
type Holding struct {
	until       int64
	term, grant uint64 // of the last grant that arrived
	frame       uint64 // raised when what was sent before must not count any more
}

// Stamp is taken when a renewal is sent, and presented with its answer.
type Stamp struct {
	Sent        int64
	Frame       uint64
	Term, Grant uint64 // to be named in the renewal
}

// Send stamps a renewal that is sent now.
func (h *Holding) Send(now int64) Stamp { return Stamp{now, h.frame, h.term, h.grant} }

// Received takes a grant in and returns until when the node may act.
func (h *Holding) Received(s Stamp, ttl int64, term, grant uint64) int64 {
	if term > h.term || term == h.term && grant > h.grant {
		h.term, h.grant = term, grant // it was heard, whatever it is worth
	}
	//guard:lease-dropped
	if s.Frame != h.frame {
		return h.until
	}
	h.until = max(h.until, s.Sent+ttl)
	return h.until
}

// Drop gives the lease up: nothing that was sent before brings it back. What
// arrived is still named in renewals, or the leader would think it lost.
func (h *Holding) Drop() { *h = Holding{frame: h.frame + 1, term: h.term, grant: h.grant} }

// Forget is Drop for a process that becomes another incarnation, whose grants
// are counted from 1 again.
func (h *Holding) Forget() { *h = Holding{frame: h.frame + 1} }

// Until returns when the lease ends; 0 = there is none.
func (h *Holding) Until() int64 { return h.until }

// maxUnheard is how many grants may be unheard of before the leader stops
// extending a lease.
const maxUnheard = 2

// Verdict is the leader's answer to a renewal.
type Verdict uint8

// The verdicts.
const (
	Granted   Verdict = iota + 1
	NotMember         // the incarnation is not in the table
	NotNow            // the leader must not, or not yet
)

// Grants is the leader's side. K names an incarnation of a node. The zero
// Grants does not lead.
type Grants[K comparable] struct {
	cfg     Config
	term    uint64 // that it leads; 0 = it does not
	led     int64  // since when, at the latest
	ready   bool   // all that was committed before the term is applied
	quiet   int64  // nobody is called expired before
	ticked  int64  // last Tick
	members map[K]*grantee
}

// grantee is what the leader knows of a member's lease.
// Invariant: heard <= granted.
type grantee struct {
	expires        int64  // when it is certainly over
	granted, heard uint64 // grants in this term, and the last that arrived
	removing       bool   // its removal was proposed
}

// NewGrants returns the side of a node that does not lead.
func NewGrants[K comparable](cfg Config) *Grants[K] { return &Grants[K]{cfg: cfg} }

// BeginTerm begins a term. All that was known in another one is forgotten.
func (g *Grants[K]) BeginTerm(term uint64, now int64) {
	*g = Grants[K]{cfg: g.cfg, term: term, led: now, ticked: now, members: map[K]*grantee{}}
}

// Follow ends it.
func (g *Grants[K]) Follow() { *g = Grants[K]{cfg: g.cfg} }

// Term returns the term that it leads, or 0.
func (g *Grants[K]) Term() uint64 { return g.term }

// Ready says that all that was committed before the term has been applied, and
// what is agreed.
func (g *Grants[K]) Ready(cfg Config) {
	//guard:lease-agreed-ttl -> g.ready = true
	g.cfg, g.ready = cfg, true
	//guard:lease-full-ttl
	g.quiet = max(g.quiet, g.led+cfg.TTL+cfg.Margin)
}

// IsReady reports whether it leads and may grant.
func (g *Grants[K]) IsReady() bool { return g.term != 0 && g.ready }

// Tick is to be called many times within a TTL. It returns whether the clock
// shows a gap.
func (g *Grants[K]) Tick(now int64) bool {
	gap := now-g.ticked > g.cfg.TTL/4
	//guard:lease-gap
	if gap {
		g.Hush(now)
	}
	g.ticked = now
	return gap
}

// Hush has it call nobody expired for a whole TTL from now.
func (g *Grants[K]) Hush(now int64) { g.quiet = max(g.quiet, now+g.cfg.TTL+g.cfg.Margin) }

// Members says which holders are in the table now. One that is new may have had a lease of
// this leader's predecessor: it is not called expired before a whole TTL. Before
// Ready it is not looked at.
func (g *Grants[K]) Members(now int64, keys []K) {
	//guard:lease-ready
	if !g.IsReady() {
		return
	}
	had := g.members
	g.members = make(map[K]*grantee, len(keys))
	for _, k := range keys {
		if m := had[k]; m != nil {
			g.members[k] = m
			continue
		}
		//guard:lease-full-ttl now + g.cfg.TTL + g.cfg.Margin -> now
		//guard:lease-new-member now + g.cfg.TTL + g.cfg.Margin -> now
		g.members[k] = &grantee{expires: now + g.cfg.TTL + g.cfg.Margin}
	}
}

// Grant answers a renewal that was received at that moment and names the last
// grant that arrived. The caller has proved since then that it leads this term.
func (g *Grants[K]) Grant(k K, received int64, lastTerm, lastGrant uint64) (grant uint64, v Verdict) {
	//guard:lease-ready
	if !g.IsReady() {
		return 0, NotNow
	}
	m := g.members[k]
	if m == nil {
		return 0, NotMember
	}
	if lastTerm == g.term {
		m.heard = max(m.heard, min(lastGrant, m.granted))
	}
	if m.removing || //guard:lease-removing
		m.granted-m.heard >= maxUnheard { //guard:lease-unheard
		return 0, NotNow
	}
	m.granted++
	//guard:lease-margin g.cfg.Margin -> 0
	m.expires = max(m.expires, received+g.cfg.TTL+g.cfg.Margin)
	return m.granted, Granted
}

// Alive reports whether a member has been granted a lease in this term that has not
// run out.
func (g *Grants[K]) Alive(k K, now int64) bool {
	m := g.members[k]
	return m != nil && m.granted > 0 && !m.removing && now < m.expires
}

// Outlives reports whether a member was granted a lease so long after the last one of another, whose lease is over, that the
// two have not died at one moment: a process that lives renews its lease every third of a TTL.
func (g *Grants[K]) Outlives(k, over K) bool {
	m, dead := g.members[k], g.members[over]
	return m != nil && (dead == nil || dead.expires == 0 || m.expires-dead.expires >= g.cfg.TTL/2)
}

// Release says that a member has stopped acting for good: its lease is over.
func (g *Grants[K]) Release(k K) {
	if m := g.members[k]; m != nil {
		m.expires = 0
	}
}

// Expired returns the members whose leases are certainly over, and whose removal may
// be proposed: those released, at any time; others, not while it is quiet.
func (g *Grants[K]) Expired(now int64) []K {
	var over []K
	if !g.IsReady() {
		return nil
	}
	for k, m := range g.members {
		if m.expires == 0 || m.expires <= now && //guard:lease-expired
			g.quiet <= now {
			over = append(over, k)
		}
	}
	return over
}

// Overdue returns for how long a member that Expired names could have been removed;
// math.MaxInt64 if it gave its lease up.
func (g *Grants[K]) Overdue(k K, now int64) int64 {
	m := g.members[k]
	switch {
	case m == nil:
		return 0
	case m.expires == 0:
		return math.MaxInt64
	}
	return now - max(m.expires, g.quiet)
}

// Removing says that a removal is being proposed: these are never granted
// anything again in this term, whatever becomes of the proposal.
func (g *Grants[K]) Removing(keys []K) {
	for _, k := range keys {
		if m := g.members[k]; m != nil {
			m.removing = true
		}
	}
}
