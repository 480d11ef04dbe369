package lease

// Exchange is a renewal and its answer, as the node knows them. Nanoseconds.
type Exchange struct {
	Sent, Answered int64 // by the node's clock
	Leader         int64 // when the leader received it, by the leader's clock
}

// Pace compares the rate of the leader's clock with that of the node's. The zero Pace has
// seen nothing.
//
// The leader received each renewal after it was sent and before it was answered. So
// between two of them no more time has passed at the node than from the sending of the
// first one to the answer to the second. If the leader counted more than that, by more
// than the margin allows, its clock is fast or the node's is slow: the leader would call a
// lease expired that its holder still has. However late messages are, they do not look
// like that. The opposite is harmless, and not judged.
type Pace struct {
	term        uint64   // in which the leader said when
	first, last Exchange // to compare with; first is up to paceTTLs old
	began       int64    // when a difference was found that others are counted with, 0 = never
	found       int64    // when a difference was found last, 0 = never
	apart       int64    // until when the clocks count as different
}

// A difference that is found counts as one of rates if another one was found between a TTL
// and paceTTLs before it, and then for apartTTLs. One alone, or several within a TTL of the
// node's clock, may come from a machine whose clocks were paused, which is over. Another
// leader has another clock: nothing is known of that.
const (
	paceTTLs  = 8
	apartTTLs = 4
)

// Observe learns of an exchange. It returns by how much the leader's clock has provably
// gained more than the margin, or 0: what the node was granted must not count any more.
func (p *Pace) Observe(cfg Config, term uint64, e Exchange) (gained int64) {
	if cfg.TTL <= 0 {
		return 0
	}
	if term != p.term {
		*p = Pace{term: term, first: e, last: e}
		return 0
	}
	gained = max(gain(cfg, p.first, e), gain(cfg, p.last, e))
	p.last = e
	switch {
	case gained > 0:
		switch after := e.Answered - p.began; {
		case p.began == 0 || after >= paceTTLs*cfg.TTL:
			p.began = e.Answered
		case after >= cfg.TTL:
			//guard:pace-rates
			p.apart = e.Answered + apartTTLs*cfg.TTL
		}
		p.found, p.first = e.Answered, e
	case e.Answered-p.first.Answered > paceTTLs*cfg.TTL:
		p.first = e
	}
	return gained
}

// gain returns by how much more than the margin allows the leader's clock has gained between
// two exchanges, at least; 0 if it may be less.
func gain(cfg Config, was, is Exchange) int64 {
	//guard:pace-messages is.Answered -> is.Sent
	own := is.Answered - was.Sent
	allowed := max(cfg.Margin, int64(float64(cfg.Margin)*float64(own)/float64(cfg.TTL)))
	return max(0, is.Leader-was.Leader-own-allowed)
}

// Found reports whether a difference was found a while ago, be it of rates or of a pause.
func (p *Pace) Found(cfg Config, now int64) bool {
	return p.found != 0 && now-p.found < apartTTLs*cfg.TTL
}

// Apart reports whether the clocks run at different rates, as far as is known.
func (p *Pace) Apart(now int64) bool { return now < p.apart }
