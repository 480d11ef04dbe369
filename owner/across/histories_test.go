package across

import (
	"fmt"
	"testing"
)

func (s *sim) step() error {
	s.now += tick
	later, due := s.messages[:0:0], []message(nil)
	for _, m := range s.messages {
		if m.at <= s.now {
			due = append(due, m)
		} else {
			later = append(later, m)
		}
	}
	s.messages = later
	s.rand.Shuffle(len(due), func(i, j int) { due[i], due[j] = due[j], due[i] })
	for _, m := range due {
		m.then()
	}
	for _, r := range s.rows {
		s.wake(r)
		s.drains(r)
	}
	s.live()
	if !s.calm {
		s.table()
	}
	return s.check()
}

// known is what all that may act later know of an admission: what only the owner knows may
// still be as if it had not been.
func (r *row) known(id ID) Phase {
	if r.alone {
		return r.seen[id]
	}
	return r.copy.seen[id]
}

// check returns what is promised and not kept.
func (s *sim) check() error {
	for _, r := range s.rows {
		held := 0
		for id, n := range r.spent {
			if p := r.seen[id]; p == Held || p == Admitted {
				held += n
			}
		}
		if held > capacity {
			return fmt.Errorf("at %d: %s has held %d of %d", s.now/tick, r.name, held, capacity)
		}
	}
	for _, q := range s.requests {
		if q.stops < 0 {
			continue
		}
		loss, holds, denies := false, false, false
		for i, r := range q.rows {
			lost := r.lost != q.losses[i]
			loss = loss || lost || r.lost > 0 && q.began-window/2 <= r.lostAt // a retry cannot tell
			p := r.known(q.ID)
			if q.admitted && p.Denies() && !lost {
				return fmt.Errorf("at %d: %v was admitted, and is %d at %s", s.now/tick, q.Sequence, p, r.name)
			}
			holds = holds || p.Admits()
			denies = denies || p.Denies()
		}
		switch {
		case q.admitted && q.refused:
			return fmt.Errorf("at %d: %v was admitted and refused", s.now/tick, q.Sequence)
		case !loss && holds && denies:
			return fmt.Errorf("at %d: %v is charged by some: %v", s.now/tick, q.Sequence, s.phases(q))
		case !loss && holds && q.refused:
			return fmt.Errorf("at %d: %v was refused and is charged: %v", s.now/tick, q.Sequence, s.phases(q))
		}
	}
	return nil
}

func (s *sim) phases(q *request) (all []Phase) {
	for _, r := range q.rows {
		all = append(all, r.known(q.ID))
	}
	return all
}

// end returns what is not as it has to be when nothing has failed for long.
func (s *sim) end() error {
	for _, r := range s.rows {
		var err error
		r.state.Each(func(v *Vote) bool {
			if v.Phase == Held {
				err = fmt.Errorf("%v holds at %s and does not know: %+v", v.Sequence, r.name, v)
			}
			return err == nil
		})
		if err != nil {
			return err
		}
	}
	for _, q := range s.requests {
		settled, not := 0, 0
		for i, r := range q.rows {
			if r.lost != q.losses[i] {
				continue
			}
			switch r.known(q.ID) {
			case Settled:
				settled++
			case Charged, Released:
				not++
			default:
				if q.admitted {
					return fmt.Errorf("%v was admitted, and is %v", q.Sequence, s.phases(q))
				}
			}
		}
		if settled > 0 && not > 0 {
			return fmt.Errorf("%v is settled by some: %v", q.Sequence, s.phases(q))
		}
	}
	return nil
}

func (s *sim) run() error {
	for range faults {
		if err := s.step(); err != nil {
			return err
		}
	}
	s.calm = true
	for _, r := range s.rows {
		r.frozen = min(r.frozen, s.now)
		s.epoch++
		r.epoch, r.waiting = s.epoch, nil
		r.copied()
	}
	for range int(2*window/tick) + 2000 {
		if err := s.step(); err != nil {
			return err
		}
	}
	if err := s.end(); err != nil {
		return err
	}
	for _, r := range s.rows {
		if r.state.Len() != 0 {
			return fmt.Errorf("%d admissions are remembered at %s", r.state.Len(), r.name)
		}
	}
	return nil
}

// TestHistories: all are charged or none, under every fault.
func TestHistories(t *testing.T) {
	var admitted, refused, settled, lost int
	for seed := range uint64(60) {
		s := newSim(seed, weaker{})
		if err := s.run(); err != nil {
			t.Fatalf("history %d: %v", seed, err)
		}
		admitted, refused, settled, lost = admitted+s.admitted, refused+s.refused, settled+s.settled, lost+s.lost
	}
	t.Log(admitted, "admitted,", refused, "refused,", settled, "settled,", lost, "rows lost")
}

// TestEachRuleIsNeeded: what is promised breaks without what the machines' user does.
func TestEachRuleIsNeeded(t *testing.T) {
	for name, w := range map[string]weaker{
		"an answer waits for the standby":                {early: true},
		"nothing is cancelled that nobody has refused":   {gives: true},
		"the question to a silent owner stays open":      {deaf: true},
		"a hold whose time is over asks before it gives": {time: true},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(3000) {
				if err := newSim(seed, w).run(); err != nil {
					t.Logf("history %d: %v", seed, err)
					return
				}
			}
			t.Error("nothing breaks")
		})
	}
}
