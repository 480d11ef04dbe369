//go:build system

package system

import (
	"context"
	"fmt"
	"math/big"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/keystead/keystead/internal/policy"
	admissionpb "github.com/keystead/keystead/proto/keystead/admission/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

const explained = `policies:
  closed: {limit: 3000/24h}
  open: {limit: 3000/24h, fallback: "local-cap:4/24h", budget: 200ms}
admissions:
  chat:
    key: "{org}"
    fields: [org]
    demands:
    - {name: chat/rpm, limit: 3000/24h, fallback: "local-cap:5/24h", budget: 200ms}
    - {name: chat/open, policy: open}
`

// decided is what a caller was told.
type decided struct{ admitted, degraded, lost bool }

// tally is what callers of one policy were told.
type tally struct {
	ask func(ctx context.Context, n *testNode) (decided, error)

	mu                 sync.Mutex // guards what follows
	admitted, degraded int        // degraded of those that were admitted
	dead               bool       // the owner is
	taken              bool       // another one has decided since
	full               bool       // … and refused
	lost               bool       // … and said that what was kept was lost
}

// pace keeps the limits from being used up before the owner is killed.
const pace = 5 * time.Millisecond

func (l *tally) work(ctx context.Context, n *testNode) {
	next := time.NewTicker(pace)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		}
		try, cancel := context.WithTimeout(ctx, callTime)
		l.mu.Lock()
		after := l.dead
		l.mu.Unlock()
		a, err := l.ask(try, n)
		cancel()
		if err != nil {
			continue
		}
		l.mu.Lock()
		if a.admitted {
			l.admitted++
			if a.degraded {
				l.degraded++
			}
		}
		if after && !a.degraded {
			l.taken, l.full, l.lost = true, l.full || !a.admitted, l.lost || a.lost
		}
		l.mu.Unlock()
	}
}

func (l *tally) sees(what func() bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return what()
}

// TestClusterExplainedLoss: the owner of a key is killed under load, and callers ask through all nodes until another one
// has taken over and the limits are used up: no more is admitted than explain says of that, with a fallback and without,
// of checks and of an admission.
func TestClusterExplainedLoss(t *testing.T) {
	t.Parallel()
	explainedLoss(t, 3, 30, false)
}

// TestClusterExplainedLossOfBoth: the owner and its standby are killed together, so what was spent is lost. Limits start
// full, answers say that, and no more is admitted than once more as much as explain says.
func TestClusterExplainedLossOfBoth(t *testing.T) {
	t.Parallel()
	explainedLoss(t, 5, 2000, true)
}

// explainedLoss kills the owner of what policies limit, in a cluster of so many nodes, or the owner and its standby, when it
// has admitted at least so much.
func explainedLoss(t *testing.T, nodes, first int, both bool) {
	c := newCluster(t, nodes, false, "--max-lock-ttl", "10s") // for as long answers say what was lost
	c.protected(c.nodes...)
	file := filepath.Join(t.TempDir(), "p.yaml")
	write(t, file, explained)
	eventually(t, "all nodes know policies", func() bool {
		return keystead(t, "policy", "apply", file, "--addr", c.nodes[0].grpc).code == 0
	})
	set, err := policy.Parse(file, []byte(explained))
	if err != nil {
		t.Fatal(err)
	}
	victim, standby := c.nodes[1], c.nodes[2]
	keys := c.keysOf(victim, standby)
	key, org := keys[0], keys[1] // what is demanded has names of the second
	request, err := set.Admission("chat").Select(map[string]string{"org": org}, nil)
	if err != nil || request.Key != org || !request.Falls() {
		t.Fatalf("%+v %v", request, err)
	}
	check := func(name string) *tally {
		return &tally{ask: func(ctx context.Context, n *testNode) (decided, error) {
			r, err := limitpb.NewLimitServiceClient(n.conn).Check(ctx, &limitpb.CheckRequest{Key: key, Policy: name})
			return decided{r.GetAllowed(), r.GetDegraded(), r.GetLostEpoch() != 0}, err
		}}
	}
	all := map[string]*tally{"closed": check("closed"), "open": check("open"), "chat": {ask: func(ctx context.Context, n *testNode) (decided, error) {
		r, err := admissionpb.NewAdmissionServiceClient(n.conn).Admit(ctx, &admissionpb.AdmitRequest{Policy: "chat", Fields: []*admissionpb.Field{{Name: "org", Value: org}}})
		return decided{r.GetAdmitted(), r.GetDegraded(), r.GetLostEpoch() != 0}, err
	}}}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	began := time.Now()
	var work sync.WaitGroup
	for _, l := range all {
		for _, n := range c.nodes {
			work.Go(func() { l.work(ctx, n) })
		}
	}
	for name, l := range all {
		eventually(t, name+" admits", func() bool { return l.sees(func() bool { return l.admitted >= first }) })
	}
	if both {
		standby.kill()
	}
	victim.kill()
	for _, l := range all {
		l.sees(func() bool { l.dead = true; return true })
	}
	for name, l := range all {
		eventually(t, name+" is decided by another owner, and used up", func() bool { return l.sees(func() bool { return l.taken && l.full }) })
	}
	cancel()
	work.Wait()
	took := time.Since(began)

	bounds := map[string]*policy.Policy{"closed": set.Lookup("closed"), "open": set.Lookup("open"), "chat": &request.Demands[0].Limit}
	for name, l := range all {
		p := bounds[name]
		most, beside := p.AtMost(took), new(big.Int)
		if w := p.WithoutOwner(); w != nil {
			beside = w.Of(int64(len(c.nodes)))
		}
		most.Add(most, beside)
		lost := new(big.Int)
		if both {
			if big.NewInt(int64(l.admitted)).Cmp(most) <= 0 {
				t.Errorf("%s: %d admitted: nothing was lost", name, l.admitted)
			}
			lost.SetUint64(p.AfterLoss())
			most.Add(most, lost)
		}
		t.Logf("%s: %d admitted in %s, %d by fallbacks; explain says at most %s, of which %s are those, and %s what is lost", name, l.admitted, took.Round(time.Second), l.degraded, most, beside, lost)
		if l.lost != both {
			t.Errorf("%s: answers say of a loss: %v, want %v", name, l.lost, both)
		}
		if big.NewInt(int64(l.admitted)).Cmp(most) > 0 || big.NewInt(int64(l.degraded)).Cmp(beside) > 0 {
			t.Errorf("%s: %d admitted, %d by fallbacks, of at most %s and %s", name, l.admitted, l.degraded, most, beside)
		}
		if beside.Sign() > 0 && l.degraded == 0 {
			t.Errorf("%s: no fallback has decided", name)
		}
	}
	for name, args := range map[string][]string{"open": {"open"}, "chat": {"chat", "--field", "org=" + org}} {
		text := succeeds(t, append([]string{"policy", "explain", "--file", file}, args...)...)
		for _, says := range []string{
			fmt.Sprintf("3 nodes %s", bounds[name].WithoutOwner().Of(3)),
			map[string]string{"open": "Owner and standby die together, or the owner while it has none: the limit starts full, so once up to 3000 more.", "chat": "and once 3000 more after a loss"}[name],
		} {
			if !strings.Contains(text, says) {
				t.Errorf("explain of %s does not say %q:\n%s", name, says, text)
			}
		}
	}
}

// keysOf are keys that one node owns and another stands by for, at least two.
func (c *testCluster) keysOf(owner, standby *testNode) (keys []string) {
	c.t.Helper()
	all := c.keys(60)[owner.id]
	for i, o := range owner.owners(all...) {
		if o.Owner == owner.id && o.Standby == standby.id {
			keys = append(keys, all[i])
		}
	}
	if len(keys) < 2 {
		c.t.Fatalf("%s stands by for %d keys of %s", standby.id, len(keys), owner.id)
	}
	return keys
}
