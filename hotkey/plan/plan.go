package plan

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/keystead/keystead/hotkey/heat"
)

const (
	// onset is how long a hot object is watched before it is split, in nanoseconds: counts
	// speak of ten seconds, and what they show of a key that has just begun is too little
	// by far. From their rise follows what they rise to; that of half a second is off by some
	// hundredths.
	onset = heat.Tick / 2
	// warmUp is the same for a split that has just begun: there is no hurry.
	warmUp = 2 * heat.Tick
	// repeatAfter is how long a decision is not repeated, in nanoseconds. What was proposed
	// is in the table by then, or was lost.
	repeatAfter = int64(5 * time.Second)
	// slack is how far a rate may be off before the number of parts follows it: a number
	// is kept as long as some rate within a quarter would want it.
	slack = 1.25
	// maxNotes bounds the objects that are not split, and about which something is
	// remembered. Beyond, those that would be forgotten first are.
	maxNotes = 4 * MaxSplits
)

// Planner remembers for how long there have been reasons to split objects, and to make
// them whole. It belongs to one goroutine. One that begins anew, after its home has moved,
// decides later, not otherwise.
type Planner[K comparable] struct {
	policy  Policy
	hot     map[K]candidate // objects of the last scene that are hot
	divided map[K]span      // splits of the last scene
	notes   map[K]note      // objects that were split or were to be; len <= maxNotes
	turn    uint64          // of the last note
	left    int64           // objects that were to be split, and for which there was no room
}

// rise is where the watch of a count began.
type rise struct {
	at   int64
	rate float64
}

// candidate is an object that is hot and not split.
type candidate struct {
	rise
	heldUntil int64 // no split is decided on before
}

// span is how long a split has been as it is.
type span struct {
	rise             // when it was first seen open
	id        uint64 // of the split
	open      bool   // it was seen open
	idle      cause  // it has less than half of the floor
	misfit    cause  // its number of parts is not what it is worth
	uneven    cause  // its parts are placed unevenly
	heldUntil int64  // nothing is decided before
	whole     bool   // an operation needs the object whole
}

// cause is a reason to do something, once it has held for long enough.
type cause struct {
	holds bool
	since int64 // when it first did
}

func (c *cause) update(now int64, holds bool) {
	if !holds || !c.holds {
		*c = cause{holds, now}
	}
}

func (c cause) lasted(now, long int64) bool { return c.holds && now-c.since >= long }

// note is what is remembered of an object that is whole, or is to be.
type note struct {
	until     int64
	parts     int    // it is to be split again, into so many; 0: it is not to be split
	hand      bool   // the split of before was by hand
	heldUntil int64  // no split is decided on before
	turn      uint64 // later notes have later turns
}

// NewPlanner returns a planner by a policy, whose zero fields mean the defaults.
func NewPlanner[K comparable](p Policy) (*Planner[K], error) {
	p = p.WithDefaults()
	if err := p.Validate(); err != nil {
		return nil, errors.Join(errPolicy, err)
	}
	return &Planner[K]{policy: p, hot: map[K]candidate{}, divided: map[K]span{}, notes: map[K]note{}}, nil
}

// NeedsWhole records that an operation needed the whole of an object: if it is split, the
// next decision is to merge it, and for HoldOff none is to split it.
func (p *Planner[K]) NeedsWhole(key K, now int64) {
	p.note(key, note{until: now + p.policy.HoldOff})
	if s, ok := p.divided[key]; ok {
		s.whole = true
		p.divided[key] = s
	}
}

// note remembers something about an object.
func (p *Planner[K]) note(key K, n note) {
	p.turn++
	n.turn = p.turn
	p.notes[key] = n
	if len(p.notes) <= maxNotes {
		return
	}
	first := key
	for k, other := range p.notes {
		if f := p.notes[first]; other.until < f.until || other.until == f.until && other.turn < f.turn {
			first = k
		}
	}
	delete(p.notes, first)
}

// LeftOut returns how often an object would have been split, and there was no room for it.
func (p *Planner[K]) LeftOut() int64 { return p.left }

// Decide returns what is to be done. The decisions about splits come first, in the order of
// the scene, then splits that follow a merge, and then those of candidates, the busiest
// first. now is in nanoseconds of a clock that does not go back.
func (p *Planner[K]) Decide(now int64, scene Scene[K]) []Decision[K] {
	var decisions []Decision[K]
	seen := make(map[K]span, len(scene.Divided))
	for _, d := range scene.Divided {
		s, known := p.divided[d.Key]
		if !known || s.id != d.ID {
			s = span{id: d.ID}
		}
		if d.Open {
			if decision, ok := p.judge(now, &s, d, scene); ok {
				s.heldUntil = now + repeatAfter
				decisions = append(decisions, decision)
			}
		} else if n, ok := p.notes[d.Key]; ok && n.parts > 0 {
			n.until = now + p.policy.Stay // from when it is whole
			p.notes[d.Key] = n
		}
		seen[d.Key] = s
	}
	p.divided = seen
	room := p.policy.Max - scene.Splits
	decisions = append(decisions, p.resume(now, &room)...)
	decisions = append(decisions, p.choose(now, scene, &room)...)
	for k, n := range p.notes {
		if now >= n.until {
			delete(p.notes, k)
		}
	}
	return decisions
}

// judge decides about a split that is open.
func (p *Planner[K]) judge(now int64, s *span, d Divided[K], scene Scene[K]) (Decision[K], bool) {
	if !s.open {
		*s = span{rise: rise{now, d.Rate}, id: s.id, open: true, whole: s.whole}
		if n, ok := p.notes[d.Key]; ok && (n.parts > 0 || d.ByHand) {
			delete(p.notes, d.Key) // it is done, or a person has decided otherwise
		}
	}
	d.Rate = s.to(now, d.Rate)
	have, worth, early := len(d.Places), p.worth(d, len(scene.Nodes)), now-s.at < warmUp
	s.idle.update(now, d.Rate < p.policy.Floor/2 && d.Silent == 0 && !d.ByHand && !early)
	s.misfit.update(now, worth != have && d.Silent == 0 && !scene.Moving && !early)
	from, to, is := uneven(d.Places, scene.Nodes)
	s.uneven.update(now, is && worth >= MinParts && !scene.Moving)

	stay := p.policy.Stay // no cause is older than the split, so that stays as long at least
	long := time.Duration(stay)
	switch {
	case now < s.heldUntil:
	case s.whole:
		return p.unite(now, d, Merge, 0, "an operation needs it whole")
	case s.idle.lasted(now, stay):
		return p.unite(now, d, Merge, 0, "it has had less than %.0f operations a second for %v, half of the floor", p.policy.Floor/2, long)
	case s.misfit.lasted(now, stay) && worth < MinParts:
		return p.unite(now, d, Merge, 0, "there have been no two nodes for its parts for %v", long)
	case s.misfit.lasted(now, stay):
		return p.unite(now, d, Resize, worth, "%d parts have been too %s for %v: it gets %.0f operations a second, and %.0f are worth a part",
			have, than(have, worth), long, d.Rate, p.policy.PerPart)
	case s.uneven.lasted(now, stay):
		return p.unite(now, d, Respread, worth, "a part belongs on node %s, which has none, and not on %s, for %v", to, from, long)
	}
	return Decision[K]{}, false
}

// unite decides that the parts are to be one, and remembers what is to follow.
func (p *Planner[K]) unite(now int64, d Divided[K], a Action, parts int, reason string, args ...any) (Decision[K], bool) {
	next := note{until: now + p.policy.Stay, parts: parts, hand: d.ByHand}
	if n, ok := p.notes[d.Key]; !ok || n.parts > 0 || n.until < next.until {
		p.note(d.Key, next)
	}
	return Decision[K]{Key: d.Key, ID: d.ID, Action: a, Parts: parts, Reason: fmt.Sprintf(reason, args...)}, true
}

func than(have, worth int) string {
	if have > worth {
		return "many"
	}
	return "few"
}

// worth returns how many parts a split should have; as many as it has, if some rate near its
// own would want that.
func (p *Planner[K]) worth(d Divided[K], nodes int) int {
	parts := func(rate float64) int { return Parts(rate, p.policy.PerPart, nodes) }
	have := len(d.Places)
	if d.ByHand || parts(d.Rate/slack) <= have && have <= parts(d.Rate*slack) {
		return have
	}
	return parts(d.Rate)
}

// resume decides on the splits that follow a resize or a respread.
func (p *Planner[K]) resume(now int64, room *int) []Decision[K] {
	var keys []K
	for k, n := range p.notes {
		if _, divided := p.divided[k]; n.parts > 0 && !divided && n.heldUntil <= now && now < n.until {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b K) int { return cmp.Compare(p.notes[a].turn, p.notes[b].turn) })
	var decisions []Decision[K]
	for _, k := range keys {
		if !p.reserve(room) {
			break
		}
		n := p.notes[k]
		n.heldUntil = now + repeatAfter
		p.notes[k] = n
		decisions = append(decisions, Decision[K]{Key: k, Action: Split, Parts: n.parts, ByHand: n.hand, Reason: "it was merged to be split anew"})
	}
	return decisions
}

// choose decides which candidates are split.
func (p *Planner[K]) choose(now int64, scene Scene[K], room *int) []Decision[K] {
	var decisions []Decision[K]
	seen := make(map[K]candidate, len(scene.Hot))
	hot := slices.Clone(scene.Hot)
	slices.SortStableFunc(hot, func(a, b Candidate[K]) int { return cmp.Compare(b.Rate, a.Rate) })
	for _, c := range hot {
		r, known := p.hot[c.Key]
		if !known {
			r = candidate{rise: rise{now, c.Rate}}
		}
		rate := r.to(now, c.Rate)
		parts := Parts(rate, p.policy.PerPart, len(scene.Nodes))
		n, noted := p.notes[c.Key]
		if noted = noted && now < n.until; !noted && now-r.at >= onset && now >= r.heldUntil && rate >= p.policy.Floor && parts >= MinParts && p.reserve(room) {
			r.heldUntil = now + repeatAfter
			decisions = append(decisions, Decision[K]{Key: c.Key, Action: Split, Parts: parts,
				Reason: fmt.Sprintf("it gets about %.0f operations a second, and %.0f are worth a part", rate, p.policy.PerPart)})
		}
		seen[c.Key] = r
	}
	p.hot = seen
	return decisions
}

// reserve takes room for a split.
func (p *Planner[K]) reserve(room *int) bool {
	if *room <= 0 {
		p.left++
		return false
	}
	*room--
	return true
}

// to returns the rate to which a count rises or falls, to a whole operation a second: a tenth of
// the difference is made up for in each second, so what was there at the beginning can be
// taken out. For a constant rate that is the rate itself, as soon as the count is exact
// enough; see onset.
func (r rise) to(now int64, rate float64) float64 {
	passed := float64(now-r.at) / heat.Tick
	if passed <= 0 {
		return rate
	}
	kept := math.Pow(1-1.0/heat.Forget, passed)
	return max(math.Round((rate-r.rate*kept)/(1-kept)), 0)
}
