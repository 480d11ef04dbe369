package across

// Verdict is what a participant makes of a Hold before it charges anything.
type Verdict uint8

const (
	Fresh  Verdict = iota // never seen: charge it or refuse it, and say so by Vote
	Known                 // seen, or it never will be: the answer is that of before
	Reused                // another request was seen under the id: nothing is done
	TooOld                // it may have been seen and forgotten: nothing is done
)

// Config is agreed by the cluster.
type Config struct {
	Window int64 // ns for which the ids of requests are remembered
}

// State is what the owner of an object knows of admissions that have other participants, too. It is not safe for
// concurrent use.
type State struct {
	Config
	// Lost is the epoch by which the row's state was last lost, and Since when this owner learned of
	// that; 0 = never.
	Lost  uint64
	Since int64

	votes map[ID]*Vote
	due   []entry // a heap by when time changes them
	held  int     // that are no denials
	open  int     // that are Held
	text  int     // bytes that those take in a record that are no denials
}

// NewState returns one that knows of nothing.
func NewState(cfg Config) *State { return &State{Config: cfg, votes: map[ID]*Vote{}} }

// Find returns what is known of an admission, or nil.
func (s *State) Find(id ID) *Vote { return s.votes[id] }

// Len returns how many admissions are remembered.
func (s *State) Len() int { return len(s.votes) }

// Undecided returns how many holds may still be given back because another participant denies.
func (s *State) Undecided() int { return s.open }

// Room reports whether there is room for a hold.
func (s *State) Room(h *Hold) bool {
	//guard:across-room true
	return s.held < MaxHeld && s.text+textOf(&h.Terms, h.Own) <= MaxText
}

// Crowded reports whether there is no room for denials. Holds are not judged then: see Prune.
func (s *State) Crowded() bool { return len(s.votes)-s.held >= MaxDenied }

// Prune forgets what nobody asks for any more of requests that are finished, so that no Hold of them is taken again,
// whether or not it is remembered what became of them: denials, and what was spent or settled and all others know.
func (s *State) Prune(finished func(id ID) bool) (gone []ID) {
	for id, v := range s.votes {
		//guard:across-prune-told v.told() -> true
		over := !v.Phase.Holds() || v.Phase.ends() && v.told() && (v.Hold == 0 || v.Phase == Settled)
		if over && finished(id) {
			gone = append(gone, id)
		}
	}
	for _, id := range gone {
		s.drop(id)
	}
	return gone
}

// Judge reports what to do with a Hold.
func (s *State) Judge(h *Hold, now int64) (v Verdict, a Answer, changed bool) {
	began := now - h.Age
	if known := s.votes[h.ID]; known != nil {
		if !known.isOf(h.Print) {
			return Reused, Answer{}, false
		}
		if known.Phase.Holds() && (h.Epoch != 0 && (known.Epoch == 0 || h.Epoch < known.Epoch) || began < known.Began) {
			known.Epoch, known.Began, changed = least(known.Epoch, h.Epoch), min(known.Began, began), true
		}
		return Known, known.answer(), changed
	}
	switch {
	//guard:across-gone
	case s.lostSince(h.Epoch, began):
		a = s.mark(h.ID, Lost, now)
		return Known, a, a.Phase != Unknown
	//guard:across-old
	case h.Age >= s.Window/2:
		return TooOld, Answer{}, false
	case s.Crowded():
		return Known, Answer{}, false
	case s.Room(h):
		return Fresh, Answer{}, false
	}
	a = s.mark(h.ID, Aborted, now)
	return Known, a, a.Phase != Unknown
}

// isOf reports whether a vote may be of a request: denials are of any of their id.
func (v *Vote) isOf(print uint32) bool {
	//guard:across-print true
	return !v.Phase.Holds() || v.Print == print
}

func least(a, b uint64) uint64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// lostSince reports whether the row may have been lost since a request was sent. It was not if the first
// attempt went by a table that has the loss, which a retry does not know; or if the request is younger
// than the loss by half of the window, which is for the way of messages.
func (s *State) lostSince(epoch uint64, began int64) bool {
	return s.Lost > epoch && began-s.Window/2 <= s.Since
}

// Vote remembers a Hold that was Fresh: charged, or, if there is a refusal, not.
func (s *State) Vote(h *Hold, now int64, r *Refusal) Answer {
	v := Vote{ID: h.ID, Terms: h.Terms, Phase: Held, Self: h.Self, Epoch: h.Epoch, Began: now - h.Age, Made: now, Until: now + h.Hold, Own: h.Own, next: now + Patience, pause: Patience}
	if r != nil {
		v = Vote{ID: h.ID, Phase: Refused, Refusal: *r, Epoch: h.Epoch, Self: h.Self, Began: v.Began, Made: now, Until: now + s.Window}
	}
	return s.put(v).answer()
}

// Asked answers a question. It may have left a mark.
func (s *State) Asked(q *Question, now int64) (a Answer, changed bool) {
	if v := s.votes[q.ID]; v != nil {
		if v.isOf(q.Print) {
			return v.answer(), false
		}
		return Answer{Phase: Aborted}, false // its Hold is Reused
	}
	//guard:across-lost-held
	if s.lostSince(q.Epoch, now-q.Age) {
		a = s.mark(q.ID, Lost, now)
		return a, a.Phase != Unknown
	}
	a = s.mark(q.ID, Aborted, now)
	return a, a.Phase != Unknown
}

// Answered is told the answer of another participant to a Question or to a Word.
func (s *State) Answered(id ID, from uint8, a Answer, now int64) (e Effect, changed bool) {
	v := s.votes[id]
	if v == nil || !v.Phase.Holds() || int(from) >= len(v.Keys) || a.Phase == Settled && len(a.Costs) != len(v.Of) {
		return Effect{}, false
	}
	switch {
	case a.Phase == Settled && v.Phase != Settled:
		return s.settle(v, a.Costs, now), true
	case v.Phase == Held:
		return s.heard(v, from, a, now)
	case v.Phase != Settled && a.Phase != Held && a.Phase != Unknown || v.Phase == Settled && !unsettled(a.Phase):
		v.heard |= One(from)
		s.fix(v)
	}
	return Effect{}, false
}

func unsettled(p Phase) bool { return p <= Released }

// heard is told an answer while it is not known whether all hold.
func (s *State) heard(v *Vote, from uint8, a Answer, now int64) (e Effect, changed bool) {
	switch {
	case a.Phase.Admits():
		return s.admit(v, now), true
	case a.Phase.Denies():
		return s.cancel(v, now), true
	case a.Phase == Held || a.Phase == Lost:
		v.heard |= One(from)
		//guard:across-all
		if v.heard|One(v.Self) != All(len(v.Keys)) {
			return Effect{}, false
		}
		return s.admit(v, now), true
	}
	return Effect{}, false
}

// Told is told news of an admission, by its coordinator or by another participant. The answer
// says what is known now.
func (s *State) Told(w *Word, now int64) (a Answer, e Effect, changed bool) {
	v := s.votes[w.ID]
	if v == nil {
		if w.Phase == Cancelled && s.Lost <= w.Epoch { // the Hold comes after it
			a = s.mark(w.ID, Aborted, now)
			return a, Effect{}, a.Phase != Unknown
		}
		return Answer{Phase: Forgotten}, Effect{}, false
	}
	if !v.isOf(w.Print) && w.Phase != Released {
		return Answer{Phase: Aborted}, Effect{}, false
	}
	switch {
	//guard:across-over-elsewhere
	case w.Phase == Released && v.Phase == Admitted: // the caller was told that its time is over
		e, changed = s.end(v, now), true
	case w.Phase == Cancelled && v.Phase == Held:
		e, changed = s.cancel(v, now), true
	case w.Phase == Admitted && v.Phase == Held:
		e, changed = s.admit(v, now), true
	//guard:across-settled-once v.Phase != Settled -> true
	case w.Phase == Settled && v.Phase.Holds() && v.Phase != Settled && len(w.Costs) == len(v.Of):
		e, changed = s.settle(v, w.Costs, now), true
	}
	if w.All && v.Phase.Admits() && (w.Phase == Settled || v.Phase != Settled) {
		v.heard = All(len(v.Keys))
		s.fix(v)
	}
	return v.answer(), e, changed
}

// Settle is told by the caller what an admission cost. While it is not known whether all hold, that is kept, and the
// others are asked at once: the caller may name an id whose outcome it was never told.
func (s *State) Settle(id ID, costs []uint64, now int64) (a Answer, e Effect, changed bool) {
	v := s.votes[id]
	switch {
	case v == nil:
		return Answer{Phase: Forgotten}, Effect{}, false
	case !v.Phase.Holds() || v.Phase == Settled || len(costs) != len(v.Of):
	//guard:across-settle-undecided false
	case v.Phase == Held:
		if changed = v.Costs == nil; changed {
			v.Costs, v.next = costs, now
			s.fix(v)
		}
	default:
		e, changed = s.settle(v, costs, now), true
		v.next = now // the others are told at once
		s.fix(v)
	}
	return v.answer(), e, changed
}

// Extend has the time of a hold end later. It reports whether there is such a hold.
func (s *State) Extend(id ID, left, now int64) (until int64, ok bool) {
	v := s.votes[id]
	if v == nil || v.Hold == 0 || v.Phase != Held && v.Phase != Admitted || v.Costs != nil {
		return 0, false
	}
	v.Until = max(v.Until, now+left)
	s.fix(v)
	return v.Until, true
}

// Next returns when Expire or Due has something to do first.
func (s *State) Next() (at int64, ok bool) {
	if len(s.due) == 0 {
		return 0, false
	}
	return s.due[0].at, true
}

// First returns the admission for which that is. There is one.
func (s *State) First() *Vote { return s.due[0].v }

// Due returns what a participant has to send now for an admission.
func (s *State) Due(id ID, now int64) (questions []Question, words []Word) {
	v := s.votes[id]
	if v == nil || now < v.next || v.Phase != Held && (!v.Phase.ends() || v.told()) {
		return nil, nil
	}
	v.pause = min(max(2*v.pause, Patience), MaxPause)
	v.next = now + v.pause
	s.fix(v)
	for i := range v.Keys {
		switch to := uint8(i); {
		case to == v.Self || v.heard.Has(to):
		case v.Phase == Held:
			questions = append(questions, Question{ID: id, To: to, Key: v.Keys[i], Epoch: v.Epoch, Age: now - v.Began, Print: v.Print})
		case v.Phase == Settled:
			words = append(words, Word{ID: id, To: to, Key: v.Keys[i], Epoch: v.Epoch, Phase: Settled, Costs: v.Costs, Print: v.Print})
		default:
			words = append(words, Word{ID: id, To: to, Key: v.Keys[i], Epoch: v.Epoch, Phase: Admitted, Print: v.Print})
		}
	}
	return questions, words
}

// Expire lets time pass for an admission. It may be forgotten.
func (s *State) Expire(id ID, now int64) (e Effect, changed bool) {
	v := s.votes[id]
	if v == nil || now < v.Until {
		return Effect{}, false
	}
	switch {
	case v.Phase == Held:
		return Effect{}, false // it asks
	case v.Phase == Admitted:
		return s.end(v, now), true
	case v.Phase.ends() && !v.told():
		return Effect{}, false
	}
	s.drop(id)
	return Effect{}, true
}

// Each shows all that is remembered, in no order, until show returns false.
func (s *State) Each(show func(v *Vote) bool) {
	for _, e := range s.due {
		if !show(e.v) {
			return
		}
	}
}

// mark has an admission that was never seen be Aborted or Lost for as long as its Hold may come. If there is no
// room to remember that, nothing can be said.
func (s *State) mark(id ID, p Phase, now int64) Answer {
	if s.Crowded() {
		return Answer{}
	}
	s.put(Vote{ID: id, Phase: p, Made: now, Began: now, Until: now + s.Window})
	return Answer{Phase: p}
}

// admit has all participants hold.
func (s *State) admit(v *Vote, now int64) Effect {
	if v.Costs != nil {
		e := s.settle(v, v.Costs, now)
		//guard:across-settled-early
		v.next = now // as if the caller had said so now
		s.fix(v)
		return e
	}
	s.count(v, -1)
	v.Phase, v.heard, v.pause = Admitted, 0, Patience
	s.count(v, 1)
	if now >= v.Until {
		return s.end(v, now)
	}
	s.fix(v)
	return Effect{}
}

// end ends the time of a hold.
func (s *State) end(v *Vote, now int64) Effect {
	to := Released
	if v.Charge || v.Hold == 0 {
		to = Charged
	}
	e := v.effect(to)
	known := v.heard
	s.remember(v, to, now)
	v.heard = known // the coordinator may have said that all know
	s.fix(v)
	return e
}

func (s *State) settle(v *Vote, costs []uint64, now int64) Effect {
	e := v.effect(Settled)
	e.Costs, v.Costs = costs, costs
	s.remember(v, Settled, now)
	return e
}

func (s *State) cancel(v *Vote, now int64) Effect {
	e := v.effect(Cancelled)
	s.count(v, -1)
	*v = Vote{ID: v.ID, Phase: Cancelled, Epoch: v.Epoch, Self: v.Self, Made: v.Made, Began: v.Began, Until: now + s.Window, place: v.place}
	s.fix(v)
	return e
}

func (s *State) remember(v *Vote, p Phase, now int64) {
	s.count(v, -1)
	v.Phase, v.heard, v.pause, v.Until = p, 0, Patience, now+s.Window
	s.count(v, 1)
	v.next = now + Patience
	s.fix(v)
}

func (v *Vote) effect(to Phase) Effect {
	return Effect{ID: v.ID, From: v.Phase, To: to, Of: v.Of, Self: v.Self, Made: v.Made, Own: v.Own}
}

func (v *Vote) answer() Answer {
	a := Answer{Phase: v.Phase, Refusal: v.Refusal}
	if v.Phase == Settled {
		a.Costs = v.Costs
	}
	return a
}
