package across

import "unsafe"

// What is remembered stands in a heap, the vote first that time changes next.

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
func (s *State) put(v *Vote) {
	s.drop(v.ID)
	if v.Phase.Holds() {
		v.text = textOf(&v.Terms, v.Own)
	}
	s.votes[v.ID] = v
	s.count(v, 1)
	v.place = len(s.due)
	s.due = append(s.due, v)
	s.fix(v)
}

// Restore makes a vote what it was before a step whose effect could not be done.
func (s *State) Restore(was Vote) { s.put(&was) }

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
	s.due[len(s.due)-1] = nil
	s.due = s.due[:len(s.due)-1]
	if last != v {
		last.place = v.place
		s.due[last.place] = last
		s.fix(last)
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

// fix puts a vote where its time belongs.
func (s *State) fix(v *Vote) {
	for v.place > 0 {
		up := s.due[(v.place-1)/2]
		if up.at() <= v.at() {
			break
		}
		s.swap(up, v)
	}
	for {
		i := 2*v.place + 1
		if i >= len(s.due) {
			return
		}
		down := s.due[i]
		if i+1 < len(s.due) && s.due[i+1].at() < down.at() {
			down = s.due[i+1]
		}
		if v.at() <= down.at() {
			return
		}
		s.swap(v, down)
	}
}

// Bytes is about what the state takes.
func (s *State) Bytes() int {
	const perVote = int(unsafe.Sizeof(Vote{})) + 2*8 + int(unsafe.Sizeof(ID{})) + 24 // in the heap and in the map
	return len(s.votes)*perVote + s.text
}

func (s *State) swap(a, b *Vote) {
	a.place, b.place = b.place, a.place
	s.due[a.place], s.due[b.place] = a, b
}
