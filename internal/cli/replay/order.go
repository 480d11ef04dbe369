package replay

import "slices"

// maxHeld is how many entries a run in the log's own time holds back, so that those
// that were logged late come to their place: four minutes of a server with 2,000 requests
// a second, about 25 MB, and less than a second to decide when the run is interrupted.
// Shorter logs are put in order as a whole.
const maxHeld = 500_000

// order puts entries in the order of their times; those of one time stay in the
// order of the log. It holds a bounded number of them back.
//
//	log ─▶ seconds, each with its keys in the order of the log ─▶ the earliest, when there are too many
//
// A server that stamps the beginning of a request and logs its end writes lines out of
// order, by as much as a request takes.
type order struct {
	decide func(at int64, s *keyStat) // receives the entries in their order
	most   int                        // held back at most

	seconds map[int64][]*keyStat // held back
	times   []int64              // those of seconds. Invariant: sorted, each once
	held    int                  // entries in seconds
	reached int64                // time of the last entry decided
	any     bool                 // one was decided
	late    int64                // entries that came when a later one was decided already
}

func newOrder(most int, decide func(at int64, s *keyStat)) *order {
	return &order{decide: decide, most: most, seconds: map[int64][]*keyStat{}}
}

// add receives the next entry of the log. One that is late is taken for one of the
// moment reached.
func (o *order) add(at int64, s *keyStat) {
	if o.any && at < o.reached {
		o.late++
		//guard:replay-late
		at = o.reached
	}
	keys, known := o.seconds[at]
	if !known {
		// Nearly always at the end, or close to it.
		i := len(o.times)
		for i > 0 && o.times[i-1] > at && i > len(o.times)-nearEnd {
			i--
		}
		if i > 0 && o.times[i-1] > at {
			i, _ = slices.BinarySearch(o.times, at)
		}
		o.times = slices.Insert(o.times, i, at)
	}
	o.seconds[at] = append(keys, s)
	o.held++
	//guard:replay-order o.most -> 0
	for o.held > o.most {
		o.first()
	}
}

// nearEnd is how many times are compared one by one before they are searched.
const nearEnd = 8

// first decides the entries of the earliest time.
func (o *order) first() {
	at := o.times[0]
	keys := o.seconds[at]
	o.times = o.times[1:]
	delete(o.seconds, at)
	o.held -= len(keys)
	o.reached, o.any = at, true
	for _, s := range keys {
		o.decide(at, s)
	}
}

// flush decides all that is held back.
func (o *order) flush() {
	for o.held > 0 {
		o.first()
	}
}
