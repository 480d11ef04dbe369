package power

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keystead/keystead/client"
)

// done is an operation that was acknowledged.
type done struct {
	name         string // its idempotency key
	begun, acked time.Time
	value        int64 // after it
}

// meter is a counter, or a limit, that one worker raises by one at a time, so that its
// value says which of the operations are there.
type meter struct {
	what, key string
	add       func(ctx context.Context, c *client.Client, key, name string) (value int64, replayed bool, err error)
	read      func(ctx context.Context, c *client.Client, key string) (value int64, lost uint64, err error)

	// In a cluster: a loss is declared for as long as locks may last, which may be over when it is read; and names of operations are
	// unknown for their window then, so that there are none, and an operation that fails is the last one.
	unnamed bool
	tells   bool // a replay has the first answer's value, as that of a counter; that of a limit has what is left now

	count   atomic.Int64 // of acknowledged operations
	n       int          // operations begun
	base    int64        // value when the process was started
	acked   []done       // by this process, in order
	pending string       // the one that was begun and not answered; "" = none
}

// limit has no token back while the tests run.
func limit(c *client.Client) client.Limit {
	return c.Limit("power", client.Per(limited, 100*24*time.Hour).Windowed())
}

const limited = 1 << 30

func newCounter(key string) *meter {
	return &meter{what: "counter", key: key, tells: true,
		add: func(ctx context.Context, c *client.Client, key, name string) (int64, bool, error) {
			var named []client.CounterOption
			if name != "" {
				named = append(named, client.CounterOption(client.IdempotencyKey(name)))
			}
			v, err := c.Counter("power").Add(ctx, key, 1, named...)
			return v.Value, v.Replayed, err
		},
		read: func(ctx context.Context, c *client.Client, key string) (int64, uint64, error) {
			v, err := c.Counter("power").Get(ctx, key)
			return v.Value, v.LostEpoch, err
		}}
}

func newLimit(key string) *meter {
	return &meter{what: "limit", key: key,
		add: func(ctx context.Context, c *client.Client, key, name string) (int64, bool, error) {
			var named []client.CallOption
			if name != "" {
				named = append(named, client.IdempotencyKey(name))
			}
			v, err := limit(c).Check(ctx, key, named...)
			return limited - int64(v.Remaining), v.Replayed, err
		},
		read: func(ctx context.Context, c *client.Client, key string) (int64, uint64, error) {
			v, err := limit(c).Peek(ctx, key)
			return limited - int64(v.Remaining), v.LostEpoch, err
		}}
}

// work raises it until ctx ends.
func (m *meter) work(t *testing.T, ctx context.Context, c *client.Client) {
	m.acked, m.pending = nil, ""
	for ctx.Err() == nil {
		m.n++
		d := done{name: fmt.Sprintf("%s-%d", m.key, m.n), begun: time.Now()}
		m.pending = d.name
		for {
			var err error
			name := d.name
			if m.unnamed {
				name = ""
			}
			if d.value, _, err = m.add(ctx, c, m.key, name); err == nil {
				break
			}
			if m.unnamed {
				return
			}
			select { // it may have taken effect: it is sent again under its name
			case <-ctx.Done():
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
		d.acked, m.pending = time.Now(), ""
		if want := m.last() + 1; d.value != want {
			t.Errorf("%s %s is %d after one more, want %d", m.what, m.key, d.value, want)
		}
		m.acked = append(m.acked, d)
		m.count.Add(1)
	}
}

// last returns the value that was acknowledged last.
func (m *meter) last() int64 {
	if len(m.acked) == 0 {
		return m.base
	}
	return m.acked[len(m.acked)-1].value
}

// replayed is how many of the last operations are sent again.
const replayed = 5

// check compares it with what was acknowledged. Nothing may be missing that was answered
// before a moment; under always nothing at all, and what was answered is answered again
// under its name, and what was not takes effect once.
func (m *meter) check(t *testing.T, ctx context.Context, c *client.Client, always bool, before time.Time) (lost int) {
	t.Helper()
	v, declared, err := m.read(ctx, c, m.key)
	must(t, err)
	most := m.last()
	if m.pending != "" {
		most++
	}
	if v > most {
		t.Errorf("%s %s is %d, and only %d were asked for", m.what, m.key, v, most)
	}
	if always && declared != 0 || !always && declared == 0 && !m.unnamed {
		t.Errorf("%s %s: loss declared in epoch %d", m.what, m.key, declared)
	}
	for _, d := range m.acked {
		if d.value <= v {
			continue
		}
		lost++
		if lost == 1 && (always || d.acked.Before(before)) { // the oldest of them
			t.Errorf("%s %s is %d: %q was answered with %d, %s before the end, and is lost", m.what, m.key, v, d.name, d.value, before.Add(interval).Sub(d.acked))
		}
	}
	if v < m.base {
		t.Errorf("%s %s is %d, and the process had begun with %d", m.what, m.key, v, m.base)
	}
	if always {
		v = m.again(t, ctx, c)
	}
	m.base = v
	return lost
}

// again sends the last operations once more under their names. It returns the value then.
func (m *meter) again(t *testing.T, ctx context.Context, c *client.Client) int64 {
	t.Helper()
	for _, d := range m.acked[max(0, len(m.acked)-replayed):] {
		is, again, err := m.add(ctx, c, m.key, d.name)
		if err != nil || !again || m.tells && is != d.value {
			t.Errorf("%s %s: %q again is %d, replayed: %t, %v; it was answered with %d", m.what, m.key, d.name, is, again, err, d.value)
		}
	}
	want := m.last()
	if m.pending != "" {
		want++
		if is, _, err := m.add(ctx, c, m.key, m.pending); err != nil || is != want {
			t.Errorf("%s %s: %q, which was not answered, is %d when it is sent again, %v; want %d", m.what, m.key, m.pending, is, err, want)
		}
	}
	v, _, err := m.read(ctx, c, m.key)
	must(t, err)
	if v != want {
		t.Errorf("%s %s is %d after all were sent again, want %d", m.what, m.key, v, want)
	}
	return v
}

// hold is one state of a lock.
type hold struct {
	acked time.Time
	token uint64 // 0 = free
}

// latch is a lock that one worker acquires and releases.
type latch struct {
	key     string
	top     uint64 // the greatest token that was ever answered
	base    []hold // what it was when the process was started, and was made then
	acked   []hold
	begun   time.Time // of the last one that was answered
	pending string    // "acquire", "release" or ""
}

// lockTTL outlives a test's cycle.
const lockTTL = time.Minute

func (l *latch) work(t *testing.T, ctx context.Context, c *client.Client) {
	l.acked, l.pending = nil, ""
	for ctx.Err() == nil {
		begun := time.Now()
		l.pending = "acquire"
		h, err := c.Lock("power").TryAcquire(ctx, l.key, client.TTL(lockTTL))
		if err != nil {
			if errors.Is(err, client.ErrLockHeld) {
				t.Errorf("lock %s: %v", l.key, err)
			}
			return
		}
		if h.Token() <= l.top {
			t.Errorf("lock %s: token %d after %d", l.key, h.Token(), l.top)
		}
		l.top = max(l.top, h.Token())
		l.acked, l.begun = append(l.acked, hold{time.Now(), h.Token()}), begun
		begun, l.pending = time.Now(), "release"
		if err := h.Release(ctx); err != nil {
			return
		}
		l.acked, l.begun, l.pending = append(l.acked, hold{time.Now(), 0}), begun, ""
	}
}

// check compares the lock with what was acknowledged, and frees it.
func (l *latch) check(t *testing.T, ctx context.Context, c *client.Client, always bool, before time.Time) (lost int) {
	t.Helper()
	s, err := c.Lock("power").Inspect(ctx, l.key)
	must(t, err)
	var is uint64
	if s.Holder != nil {
		is = s.Holder.Token
	}
	if len(l.base) == 0 {
		l.base = []hold{{}}
	}
	states := append(l.base, l.acked...)
	last := states[len(states)-1]
	switch fits := -1; {
	case is == last.token, l.pending == "release" && is == 0, l.pending == "acquire" && is > l.top:
	default:
		for i, h := range states {
			if h.token == is {
				fits = i
			}
		}
		lost = min(len(states)-1-max(fits, 0), len(l.acked))
		if fits < 0 || always || fits+1 < len(states) && states[fits+1].acked.Before(before) {
			t.Errorf("lock %s has token %d; the last answer was %d, and %q was under way: of %d answers %d are lost, one %s before the end",
				l.key, is, last.token, l.pending, len(l.acked), lost, before.Add(interval).Sub(states[min(max(fits, 0)+1, len(states)-1)].acked))
		}
	}
	if is != 0 {
		if _, err := c.Lock("power").Revoke(ctx, l.key, is); err != nil {
			t.Errorf("lock %s: %v", l.key, err)
		}
	}
	l.base = []hold{{token: is}, {acked: time.Now()}} // that it was freed may be lost in turn
	return lost
}
