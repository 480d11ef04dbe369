package across

import "unsafe"

// What is remembered stands in a heap, the vote first that time changes next.

// entry is a vote in the heap, with its time, so that an order of thousands is found without looking at any of them.
//
// Invariant: at == v.at(), which fix sees to.
type entry struct {
	at int64
	v  *Vote
}

// at returns when Expire or Due has something to do.
func (v *Vote) at() int64 {
	switch {
	case v.Phase == Held:
		return v.next
	case v.Phase.ends() && !v.told():
		return v.next
	}
	return v.Until
}

// told reports whether all others know what has ended.
func (v *Vote) told() bool {
	//guard:across-outcome-kept true
	return v.heard|One(v.Self) == All(len(v.Keys))
}

// put remembers a vote in the place of another one of its id.
func (s *State) put(of Vote) *Vote {
	v := s.votes[of.ID]
	if v != nil {
		s.count(v, -1)
		of.place = v.place
	} else {
		v = new(Vote)
		s.votes[of.ID] = v
		of.place = len(s.due)
		s.due = append(s.due, entry{v: v})
	}
	if *v = of; v.Phase.Holds() {
		v.text = textOf(&v.Terms, v.Own)
	}
	s.count(v, 1)
	s.fix(v)
	return v
}

// Restore makes a vote what it was before a step whose effect could not be done.
func (s *State) Restore(was Vote) { s.put(was) }

// Postpone has an end that cannot be now come later.
func (s *State) Postpone(id ID, until int64) {
	if v := s.votes[id]; v != nil {
		v.Until = until
		s.fix(v)
	}
}

func (s *State) drop(id ID) {
	v := s.votes[id]
	if v == nil {
		return
	}
	s.count(v, -1)
	delete(s.votes, id)
	last := s.due[len(s.due)-1]
	s.due[len(s.due)-1] = entry{}
	s.due = s.due[:len(s.due)-1]
	if last.v != v {
		s.set(v.place, last)
		s.fix(last.v)
	}
}

func (s *State) count(v *Vote, n int) {
	if v.Phase.Holds() {
		s.held += n
		s.text += n * v.text
	}
	if v.Phase == Held {
		s.open += n
	}
}

// fix puts a vote where its time belongs. It has to follow each change of that.
func (s *State) fix(v *Vote) {
	e, i := entry{v.at(), v}, v.place
	for i > 0 {
		up := (i - 1) / 2
		if s.due[up].at <= e.at {
			break
		}
		s.set(i, s.due[up])
		i = up
	}
	for {
		down := 2*i + 1
		if down >= len(s.due) {
			break
		}
		if down+1 < len(s.due) && s.due[down+1].at < s.due[down].at {
			down++
		}
		if e.at <= s.due[down].at {
			break
		}
		s.set(i, s.due[down])
		i = down
	}
	s.set(i, e)
}

func (s *State) set(i int, e entry) {
	e.v.place = i
	s.due[i] = e
}

// DenialSize is about what a denial takes, and a hold beside its text: in the heap and in the map, too.
const DenialSize = int(unsafe.Sizeof(Vote{})) + int(unsafe.Sizeof(entry{})) + 8 + int(unsafe.Sizeof(ID{})) + 24

// Size is about what a hold takes.
func (h *Hold) Size() int { return DenialSize + textOf(&h.Terms, h.Own) }

// Bytes is about what the state takes.
func (s *State) Bytes() int { return len(s.votes)*DenialSize + s.text }
