package owner

import (
	"bytes"

	"github.com/keystead/keystead/owner/once"
)

// crowd is all callers here that wait for one key whose work another does. An await is no place:
// nothing of it moves or is recorded, and asked again, at another owner, it has the same answer.
//
// A crowd is no herd. One caller of it, the lookout, asks the shard: when the lease is over, when
// the turn was abandoned, and now and then. The others wait until it leaves, and one of them is
// the next, or until the work is done, and are told the result without asking.
type crowd struct {
	size    int           // callers; guarded by the shard's mutex
	lookout chan struct{} // has the right to ask while no caller has it; capacity 1
	stirred chan struct{} // something has changed; capacity 1
	done    chan struct{} // closed when the work is done
	turn    Turn          // its result, constant once done is closed
}

// OnceWait is a caller that waits for work that another does.
type OnceWait struct {
	s  *Store
	of Ref
	in *crowd
	// asks says that the caller is the lookout.
	asks bool
}

// AwaitOnce has a caller wait that was told that another does the work: until Leave.
func (s *Store) AwaitOnce(ref Ref) (*OnceWait, error) {
	if s.waiting.Add(1) > s.cfg.MaxWaiters {
		s.waiting.Add(-1)
		return nil, errWaiters
	}
	sh, of := s.shard(ref.hash()), address{ref.Key, ref.Name}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	c := sh.crowds[of]
	if c == nil {
		c = &crowd{lookout: make(chan struct{}, 1), stirred: make(chan struct{}, 1), done: make(chan struct{})}
		c.lookout <- struct{}{}
		if sh.crowds == nil {
			sh.crowds = map[address]*crowd{}
		}
		sh.crowds[of] = c
	}
	c.size++
	return &OnceWait{s: s, of: ref, in: c}, nil
}

// Lookout receives when the caller is to ask from now on: with BeginOnce, at once and whenever
// Stirred or time says so. It is told by Asks that it does.
func (w *OnceWait) Lookout() <-chan struct{} { return w.in.lookout }

// Asks says that the caller has received from Lookout.
func (w *OnceWait) Asks() { w.asks = true }

// Stirred receives, at the lookout, when something has changed.
func (w *OnceWait) Stirred() <-chan struct{} { return w.in.stirred }

// Done is closed when the work is done.
func (w *OnceWait) Done() <-chan struct{} { return w.in.done }

// Turn returns the result, once Done is closed. ok is false if it is that of other work, which
// has come under the key since the caller began to wait: it is to ask.
func (w *OnceWait) Turn(print []byte) (t Turn, ok bool) {
	//guard:once-crowd-fingerprint
	if !bytes.Equal(w.in.turn.Print, print) {
		return Turn{}, false
	}
	return w.in.turn, true
}

// Leave ends the wait. If the caller was the lookout, another is.
func (w *OnceWait) Leave() {
	//guard:once-lookout-passed
	if w.asks {
		w.in.lookout <- struct{}{}
	}
	w.s.waiting.Add(-1)
	sh, of := w.s.shard(w.of.hash()), address{w.of.Key, w.of.Name}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if w.in.size--; w.in.size == 0 && sh.crowds[of] == w.in {
		delete(sh.crowds, of)
	}
}

// stirLocked tells the lookout of the target that something has changed.
func (t *target) stirLocked() {
	if c := t.sh.crowds[address{t.ref.Key, t.ref.Name}]; c != nil {
		select {
		case c.stirred <- struct{}{}:
		default: // it was told already, and has not looked yet
		}
	}
}

// doneLocked tells the result to all who wait.
func (t *target) doneLocked(is *once.State) {
	of := address{t.ref.Key, t.ref.Name}
	if c := t.sh.crowds[of]; c != nil {
		c.turn = Turn{Outcome: once.Done, State: *is, Left: leftOf(is, t.now), Meta: Meta{Permit: t.permit}}
		close(c.done)
		delete(t.sh.crowds, of)
	}
}
