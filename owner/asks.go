package owner

import (
	"sync"

	"github.com/keystead/keystead/owner/across"
)

// Ask is what an object of this store has to send to others, about one admission.
type Ask struct {
	Ref
	Questions []across.Question
	Words     []across.Word
	Permit    Permit // by which the words are so: they leave when the copies have that
}

// maxAsks is how many wait to be sent. Others come again, as all do that are not answered.
const maxAsks = 1 << 14

// askQueue is what is to be sent.
type askQueue struct {
	mu     sync.Mutex
	all    []Ask         // guarded by mu
	signal chan struct{} // capacity 1: there are some
}

func (q *askQueue) add(a Ask) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.all) >= maxAsks {
		return
	}
	q.all = append(q.all, a)
	select {
	case q.signal <- struct{}{}:
	default:
	}
}

// Asks returns what is to be sent to the owners of other keys, and forgets it. Their answers are for Answered. What is
// not answered is asked again, ever more slowly.
func (s *Store) Asks() []Ask {
	s.asks.mu.Lock()
	defer s.asks.mu.Unlock()
	all := s.asks.all
	s.asks.all = nil
	return all
}

// AsksCame receives when Asks has something to send.
func (s *Store) AsksCame() <-chan struct{} { return s.asks.signal }
