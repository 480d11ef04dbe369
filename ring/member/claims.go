package member

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/serf/serf"
)

// Claims of names.
const (
	claimShown = 90 * time.Second // longer than whole states take to come round
	maxClaims  = 256
)

// claims remembers who claims a name that another address has. Serf only logs
// this; but it shows each word of life to its merge delegate first, and that is
// where claims are found. Nothing is ever refused here.
type claims struct {
	// known are the addresses of the members that are alive, as of the last look.
	known atomic.Pointer[map[string]string]
	noted func() // called after a claim is noted; does not wait

	mu     sync.Mutex // guards byName
	byName map[string]claim
}

type claim struct {
	addr string
	at   time.Time
}

func newClaims(noted func()) *claims {
	c := &claims{noted: noted, byName: map[string]claim{}}
	c.known.Store(&map[string]string{})
	return c
}

// NotifyMerge looks at a word of life. Memberlist holds its lock meanwhile, so
// nothing of serf's may be called. A whole state, which has words of the dead as
// well, comes with several members and is left out; its living ones come again,
// one by one.
func (c *claims) NotifyMerge(ms []*serf.Member) error {
	if len(ms) != 1 || ms[0].Status == serf.StatusLeft {
		return nil
	}
	addr := addrOf(ms[0].Addr, ms[0].Port)
	if has, ok := (*c.known.Load())[ms[0].Name]; ok && has != addr {
		c.note(time.Now(), ms[0].Name, addr)
		c.noted()
	}
	return nil
}

func (c *claims) note(now time.Time, name, addr string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.byName[name]; !ok && len(c.byName) >= maxClaims {
		for n, old := range c.byName {
			if now.Sub(old.at) > claimShown {
				delete(c.byName, n)
			}
		}
		if len(c.byName) >= maxClaims {
			return
		}
	}
	c.byName[name] = claim{addr, now}
}

// of returns the last claim of a name that another than addr made, if it is
// recent.
func (c *claims) of(now time.Time, name, addr string) (claim, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cl, ok := c.byName[name]
	return cl, ok && cl.addr != addr && now.Sub(cl.at) <= claimShown
}
