package middleware

import (
	"math"
	"sync"
	"time"

	"github.com/keystead/keystead/client"
)

// maxLocalKeys is how many keys a process limits by itself. Of more, some are forgotten,
// and begin with a full bucket: about 1 MB in all.
const maxLocalKeys = 10_000

// local is a share of a limit, kept in this process as token buckets, whatever the
// algorithm of the limit is.
type local struct {
	capacity float64
	perSec   float64

	mu   sync.Mutex // guards what follows
	keys map[string]bucket
}

// bucket has so many tokens at a moment.
type bucket struct {
	tokens float64
	at     time.Time
}

func newLocal(r client.Rate, share float64) *local {
	return &local{capacity: max(1, share*float64(capacity(r))), perSec: share * float64(r.Limit) / r.Period.Seconds(), keys: map[string]bucket{}}
}

// capacity returns the most tokens that a limit has at once.
func capacity(r client.Rate) uint64 {
	if r.Burst == 0 || r.Algorithm != client.TokenBucket {
		return r.Limit
	}
	return r.Burst
}

func (l *local) check(now time.Time, key string, cost uint64) client.Decision {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, ok := l.keys[key]
	if !ok {
		b = bucket{l.capacity, now}
		l.makeRoomLocked()
	}
	b.tokens = min(l.capacity, b.tokens+max(now.Sub(b.at).Seconds(), 0)*l.perSec)
	b.at = now
	d := client.Decision{Allowed: b.tokens >= float64(cost), Capacity: uint64(l.capacity)}
	if d.Allowed {
		b.tokens -= float64(cost)
	} else {
		d.RetryAfter = l.fills(float64(cost) - b.tokens)
	}
	d.Remaining, d.ResetAfter = uint64(b.tokens), l.fills(l.capacity-b.tokens)
	l.keys[key] = b
	return d
}

// fills returns how long it takes until there are so many tokens more.
func (l *local) fills(tokens float64) time.Duration {
	return time.Duration(min(tokens/l.perSec*float64(time.Second), math.MaxInt64/2))
}

// makeRoomLocked forgets keys so that there is room for one.
func (l *local) makeRoomLocked() {
	for key := range l.keys {
		if len(l.keys) < maxLocalKeys {
			return
		}
		delete(l.keys, key)
	}
}
