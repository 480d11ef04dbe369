package sim

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/internal/node"
	"github.com/keystead/keystead/owner"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
	"github.com/keystead/keystead/ring"
	"github.com/keystead/keystead/ring/epoch/table"
)

// queueTTL is that of grants here: nobody's ends while a test runs.
const queueTTL = 2 * time.Minute

// longLocks lets locks be held for that long.
func longLocks(c *Config) {
	c.Tune = func(_ int, cfg *node.Config) { cfg.Store = owner.Config{MaxLockTTL: int64(queueTTL)} }
}

// line is a lock with callers in its queue, each with a request id.
type line struct {
	*scene
	key   string
	conns []*grpc.ClientConn // by host
	token uint64             // of who has it first

	callers sync.WaitGroup
	mu      sync.Mutex
	order   []int // guarded by mu: who was granted the lock, by place
	waiting int
}

// lineAt makes a lock that a host owns, and takes it.
func (s *scene) lineAt(host int) *line { return s.lineFor(s.keyAt(host), host) }

// keyAt is a key that a host owns.
func (s *scene) keyAt(host int) string {
	for i := 0; ; i++ {
		if key := fmt.Sprintf("line-%d", i); s.ownerOf(key) == host {
			return key
		}
	}
}

func (s *scene) lineFor(key string, host int) *line {
	l := &line{scene: s, key: key}
	for i := range s.hosts {
		conn, err := s.Dial("10.0.8.1", i)
		if err != nil {
			s.t.Fatal(err)
		}
		l.conns = append(l.conns, conn)
	}
	r, err := lockpb.NewLockServiceClient(l.conns[host]).Acquire(context.Background(), &lockpb.AcquireRequest{Key: l.key, Holder: "first", TtlNs: int64(queueTTL)})
	if err != nil || !r.Acquired {
		s.t.Fatalf("the lock is not free: %v %v", r, err)
	}
	l.token = r.Token
	return l
}

// ownerOf returns the host that owns a key in the eyes of all, -1 if there is none.
func (s *scene) ownerOf(key string) int {
	at := -1
	for i, p := range s.Live() {
		m, _, ok := p.Group.Table().Owner(ring.Hash(key))
		if !ok {
			return -1
		}
		host := slices.IndexFunc(s.hosts, func(h *host) bool { return h.name == m.Node })
		if i > 0 && host != at {
			return -1
		}
		at = host
	}
	return at
}

// joins has a caller join the queue, and waits until it stands there.
func (l *line) joins(acquire func(n int) error) {
	l.waiting++
	n := l.waiting
	l.callers.Go(func() {
		if err := acquire(n); err != nil {
			l.t.Errorf("caller %d: %v", n, err)
		}
	})
	l.until(10*time.Second, "the caller stands in the queue", func() bool { return l.length() == n })
}

// length returns how many wait, -1 if no node says.
func (l *line) length() int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for i, c := range l.conns {
		if !l.Running(i) {
			continue
		}
		if r, err := lockpb.NewLockServiceClient(c).Inspect(ctx, &lockpb.InspectRequest{Key: l.key}); err == nil {
			return int(r.Waiting)
		}
	}
	return -1
}

func (l *line) granted(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.order = append(l.order, n)
}

// goClient is a caller that uses the Go client.
func (l *line) goClient() func(n int) error {
	return func(n int) error {
		from := fmt.Sprintf("10.0.7.%d", n)
		c, err := client.Config{DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return l.Net.Dial(ctx, from, addr)
		})}}.Dial(context.Background(), net.JoinHostPort(l.hosts[0].addr, grpcPort))
		if err != nil {
			return err
		}
		defer c.Close()
		lock, err := c.Lock("").Acquire(context.Background(), l.key, client.TTL(queueTTL), client.Wait(queueTTL))
		if err != nil {
			return err
		}
		l.granted(n)
		return lock.Release(context.Background())
	}
}

// plain is a caller that begins at a host, and tries the next one with the same
// request id as soon as it gets no answer.
func (l *line) plain(host int) func(n int) error {
	return func(n int) error {
		id := make([]byte, 16)
		binary.BigEndian.PutUint64(id, uint64(n))
		began := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), queueTTL)
		defer cancel()
		for at := host; ; at = (at + 1) % len(l.conns) {
			r, err := lockpb.NewLockServiceClient(l.conns[at]).Acquire(ctx, &lockpb.AcquireRequest{Key: l.key, Holder: fmt.Sprint(n), TtlNs: int64(queueTTL), WaitNs: int64(queueTTL),
				RequestId: &commonpb.RequestId{Client: id, Sequence: 1, Settled: 1, AgeNs: int64(time.Since(began))}})
			switch {
			case err == nil && r.Acquired:
				l.granted(n)
				return l.release(r.Token)
			case err == nil:
				return fmt.Errorf("refused: %v", r)
			case ctx.Err() != nil || status.Code(err) == codes.InvalidArgument:
				return err
			}
			l.sleep(time.Millisecond)
		}
	}
}

// release gives the lock back through whatever node runs.
func (l *line) release(token uint64) (err error) {
	for range 100 {
		for i, c := range l.conns {
			if !l.Running(i) {
				continue
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			_, err = lockpb.NewLockServiceClient(c).Release(ctx, &lockpb.ReleaseRequest{Key: l.key, Token: token})
			cancel()
			if err == nil {
				return nil
			}
		}
		l.sleep(10 * time.Millisecond)
	}
	return err
}

// ends lets the callers have the lock, one after the other, and checks that it was in
// the order in which they came.
func (l *line) ends() {
	l.t.Helper()
	l.sleep(5 * time.Second)
	if n := l.length(); n != l.waiting {
		l.t.Errorf("%d wait, not %d", n, l.waiting)
	}
	if err := l.release(l.token); err != nil {
		l.t.Error(err)
	}
	l.callers.Wait()
	if !slices.IsSorted(l.order) || len(l.order) != l.waiting {
		l.t.Errorf("granted in the order %v", l.order)
	}
	for _, c := range l.conns {
		_ = c.Close()
	}
}

// adopted waits until all nodes go by the latest level: nodes that stop say so then.
func (s *scene) adopted() {
	s.t.Helper()
	s.until(stableTime, "the level is committed", func() bool {
		return !slices.ContainsFunc(s.Live(), func(p Process) bool { return !p.Group.Table().Uses(table.Level) })
	})
}

// sometimesAdopted has that before places are taken, with the seeds whose clusters are made
// so: records name places one by one then.
func (s *scene) sometimesAdopted() {
	s.t.Helper()
	if !s.cfg.Old {
		s.adopted()
	}
}

// delays are those of a network that is well.
var delays = Faults{Min: 100 * time.Microsecond, Max: 500 * time.Microsecond}

// TestQueueMovesWithClients: a lock that goes to a node that has just joined keeps its
// queue of Go clients, which go on to the new owner by themselves. None of them is
// connected to it yet.
func TestQueueMovesWithClients(t *testing.T) {
	t.Parallel()
	play(t, setting{nodes: 3, config: longLocks}, func(s *scene) {
		s.Net.SetFaults("", "", delays)
		s.sometimesAdopted()
		i := 1 + s.rnd.IntN(2) // clients begin at the first host
		key := s.keyAt(i)
		s.hosts[i].node.DrainBeforeStop(context.Background(), stableTime)
		s.Stop(i)
		s.until(stableTime, "another node has the key", func() bool { at := s.ownerOf(key); return at >= 0 && at != i })
		l := s.lineFor(key, s.ownerOf(key))
		for range 6 {
			l.joins(l.goClient())
		}
		if err := s.Start(i); err != nil {
			s.t.Fatal(err)
		}
		s.until(stableTime, "the lock has moved", func() bool { return s.ownerOf(key) == i })
		l.ends()
	})
}

// TestQueueOutlivesOwner: callers that waited at the owner of a lock, which gave its
// keys away and stopped, keep their places among those that waited elsewhere.
func TestQueueOutlivesOwner(t *testing.T) {
	t.Parallel()
	play(t, setting{nodes: 3, config: longLocks}, func(s *scene) {
		s.Net.SetFaults("", "", delays)
		s.sometimesAdopted()
		i := s.follower()
		l := s.lineAt(i)
		for n := range 5 {
			l.joins(l.plain((i + n%2) % 3))
		}
		s.adopted()
		s.hosts[i].node.DrainBeforeStop(context.Background(), stableTime)
		s.Stop(i)
		l.ends()
	})
}

// TestQueueOutlivesForwarder: a node that only passed callers on stops, in order or
// not. They keep their places at the owner.
func TestQueueOutlivesForwarder(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"stop", "kill"} {
		t.Run(how, func(t *testing.T) {
			play(t, setting{nodes: 3, config: longLocks}, func(s *scene) {
				s.Net.SetFaults("", "", delays)
				i := s.follower()
				at := (i + 1 + s.rnd.IntN(2)) % 3
				l := s.lineAt(at)
				for n := range 4 {
					l.joins(l.plain([]int{i, at}[n%2]))
				}
				s.adopted()
				if how == "stop" {
					s.hosts[i].node.DrainBeforeStop(context.Background(), stableTime)
					s.Stop(i)
				} else {
					s.Kill(i)
				}
				l.ends()
			})
		})
	}
}

// TestQueueOutlivesCrash: the owner of a lock dies, and its standby goes on with the
// queue, which has changed in many ways before: some of the places were left.
func TestQueueOutlivesCrash(t *testing.T) {
	t.Parallel()
	play(t, setting{nodes: 3, config: longLocks}, func(s *scene) {
		s.Net.SetFaults("", "", delays)
		s.sometimesAdopted()
		i := s.follower()
		l := s.lineAt(i)
		for n := range 4 {
			l.joins(l.plain((i + 1 + n%2) % 3))
			l.passes(i, n)
		}
		s.Kill(i)
		l.ends()
	})
}

// passes has a caller come to the queue and leave it.
func (l *line) passes(host, n int) {
	ctx, cancel := context.WithCancel(context.Background())
	id := binary.BigEndian.AppendUint64(make([]byte, 8), uint64(n)+1)
	l.callers.Go(func() {
		_, _ = lockpb.NewLockServiceClient(l.conns[host]).Acquire(ctx, &lockpb.AcquireRequest{Key: l.key, Holder: "passes", TtlNs: int64(queueTTL), WaitNs: int64(queueTTL),
			RequestId: &commonpb.RequestId{Client: id, Sequence: 1, Settled: 1}})
	})
	l.until(10*time.Second, "the caller has come", func() bool { return l.length() == l.waiting+1 })
	cancel()
	l.until(10*time.Second, "the caller has left", func() bool { return l.length() == l.waiting })
}
