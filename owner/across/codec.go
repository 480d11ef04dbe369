package across

import "github.com/keystead/keystead/owner/wire"

// Bounds of what is read.
const (
	maxOwn    = 1100 // bytes of Vote.Own
	maxNumber = 1<<63 - 1
)

// What a vote takes in a record at most, beside keys, costs and what is the owner's own.
const (
	voteText = 16 + wire.MaxNumber + 1 + 1 + 6*wire.MaxNumber + 4 + 2
	costText = wire.MaxNumber
)

func textOf(t *Terms, own []byte) int {
	n := voteText + len(own) + len(t.Of)*(1+4+costText)
	for _, key := range t.Keys {
		n += 2 + len(key)
	}
	return n
}

// Fits reports whether a hold of such terms fits a record.
func Fits(t *Terms, own []byte) bool { return textOf(t, own) <= MaxVote && len(own) <= maxOwn }

// AppendVote writes what a participant remembers of an admission, but for its id.
//
//	phase, whether costs follow, what the end of its time does | participant | epoch | age | age of the request | left
//	| keys | participant and name of each demand | hold | print | the owner's own   of what holds
//	| costs                                                                of Settled, and what the caller has said
//	| demands, contended | time to retry                                   of Refused
func AppendVote(w *wire.Writer, v *Vote) {
	first := uint64(v.Phase) << 2
	if v.Charge {
		first |= 1
	}
	if v.Costs != nil {
		first |= 2
	}
	w.Uint(first)
	w.Byte(v.Self)
	w.Uint(v.Epoch)
	w.Moment(v.Made)
	w.Moment(v.Began)
	w.Int(v.Until - w.Now)
	switch {
	case v.Phase.Holds():
		w.Uint(uint64(len(v.Keys)))
		for _, key := range v.Keys {
			w.Text(key)
		}
		w.Bytes(v.Of)
		for _, name := range v.Names {
			w.Fixed32(name)
		}
		w.Uint(uint64(v.Hold))
		w.Fixed32(v.Print)
		w.Bytes(v.Own)
		for _, cost := range v.Costs {
			w.Uint(cost)
		}
	case v.Phase == Refused:
		contended := uint64(0)
		if v.Contended {
			contended = 1
		}
		w.Uint(uint64(v.Demands)<<1 | contended)
		w.Int(v.RetryAt - w.Now)
	}
}

// ReadVote reads what AppendVote wrote. ok is false if it cannot have.
func ReadVote(r *wire.Reader, id ID) (v Vote, ok bool) {
	first := r.Uint(uint64(phases)<<2 - 1)
	v = Vote{ID: id, Phase: Phase(first >> 2), Self: r.Byte(), Epoch: r.Uint(maxNumber)}
	v.Charge = first&1 != 0
	costs := first&2 != 0
	v.Made = r.Moment()
	v.Began = r.Moment()
	v.Until = r.Now + bounded(r.Int())
	v.next, v.pause = r.Now+Patience, Patience
	switch {
	case v.Phase.Holds():
		if !v.readTerms(r, costs) {
			return Vote{}, false
		}
	case v.Charge || costs:
		return Vote{}, false
	case v.Phase == Refused:
		n := r.Uint(1<<(MaxDemands+1) - 1)
		v.Demands, v.Contended = Set(n>>1), n&1 != 0
		v.RetryAt = r.Now + bounded(r.Int())
	case !v.Phase.Denies() && v.Phase != Lost:
		return Vote{}, false
	}
	return v, r.Ends() && v.Self < MaxKeys && id.Sequence != 0
}

// readTerms reads what is told only of what holds.
func (v *Vote) readTerms(r *wire.Reader, costs bool) (ok bool) {
	for n := r.Uint(MaxKeys); n > 0 && !r.Bad; n-- {
		v.Keys = append(v.Keys, string(r.Bytes(MaxVote)))
	}
	v.Of = r.Copied(MaxDemands)
	for range v.Of {
		v.Names = append(v.Names, r.Fixed32())
	}
	v.Hold = int64(r.Uint(wire.MaxAge))
	v.Print = r.Fixed32()
	v.Own = r.Copied(maxOwn)
	if r.Bad || v.Valid() != nil || int(v.Self) >= len(v.Keys) || !Fits(&v.Terms, v.Own) {
		return false
	}
	if costs != (v.Phase == Settled) && (!costs || v.Phase != Held) {
		return false
	}
	for range v.Of {
		if costs {
			v.Costs = append(v.Costs, r.Uint(maxNumber))
		}
	}
	return !r.Bad
}

func bounded(d int64) int64 { return min(max(d, -wire.MaxAge), wire.MaxAge) }

// Install takes in what another owner remembered of an admission, in the place of what is known.
// It reports whether there is room. Where an owner has as many denials as it may, a Cancel still makes one more of
// what it held: a copy that did not take that in would give it back again.
func (s *State) Install(v Vote) bool {
	switch known := s.votes[v.ID]; {
	case v.Phase.Holds() && known != nil && known.Phase.Holds():
	case v.Phase.Holds() && !s.Room(&Hold{Terms: v.Terms, Own: v.Own}):
		return false
	//guard:across-copied-cancel len(s.votes) >= MaxHeld+MaxDenied && known == nil -> s.Crowded()
	case len(s.votes) >= MaxHeld+MaxDenied && known == nil && !v.Phase.Holds():
		return false
	}
	s.put(v)
	return true
}

// Forget is told that another owner has forgotten an admission.
func (s *State) Forget(id ID) { s.drop(id) }
