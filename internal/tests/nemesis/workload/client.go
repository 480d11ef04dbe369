package workload

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/internal/tests/history"
	pb "github.com/keystead/keystead/proto/keystead/v1"
)

// client is a worker or a probe. It belongs to one goroutine.
type client struct {
	*Workload
	n     int
	rng   *rand.Rand
	id    []byte // of its requests
	seq   uint64
	nodes int // as many as there were when it connected
	conns []*grpc.ClientConn
	at    int // the connection that it uses, until it fails

	versions map[string]uint64 // of counters, as last seen
}

func (w *Workload) newClient(n int, seed uint64) *client {
	c := &client{Workload: w, n: n, rng: rand.New(rand.NewPCG(seed, uint64(n))), versions: map[string]uint64{}}
	c.id = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, c.rng.Uint64()), uint64(n))
	c.connect()
	return c
}

// connect connects to all nodes that there are now.
func (c *client) connect() {
	n := c.cfg.Nodes()
	if n == c.nodes {
		return
	}
	conns, err := c.cfg.Connect()
	if err != nil {
		c.note(0, 0, err.Error())
		return
	}
	c.close()
	c.nodes, c.conns, c.at = n, conns, c.rng.IntN(len(conns))
}

func (c *client) close() {
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.conns = nil
}

func (c *client) conn() *grpc.ClientConn { return c.conns[c.at] }

// moveOn goes to another node.
func (c *client) moveOn() {
	c.at = (c.at + 1 + c.rng.IntN(max(1, len(c.conns)-1))) % len(c.conns)
}

func (c *client) rest(ctx context.Context, most time.Duration) bool {
	t := time.NewTimer(time.Duration(1 + c.rng.Int64N(int64(most))))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// fate is what is known of an attempt that failed.
type fate uint8

const (
	lost    fate = iota // it may have acted, or act yet
	nothing             // it did nothing and never will
	over                // … and it makes no sense to try again
)

// judge says what is known after an error. sent says whether a connection took it.
func judge(err error, sent bool) (f fate, odd string) {
	for _, d := range status.Convert(err).Details() {
		info, ok := d.(*errdetails.ErrorInfo)
		if !ok || info.Domain != "keystead" {
			continue
		}
		switch info.Reason {
		case "UNAVAILABLE", "NOT_OWNER", "OVERLOADED", "TOO_MANY_WAITERS", "STORE_FULL", "SUPERSEDED", "RECOVERING":
			return nothing, ""
		case "REQUEST_TOO_OLD":
			return over, ""
		case "OUTCOME_UNKNOWN", "GAVE_UP": // a lock may have been granted and given back
			return lost, ""
		}
		return over, fmt.Sprintf("%s: %v", info.Reason, err)
	}
	if !sent {
		return nothing, ""
	}
	return lost, ""
}

// request is one operation of a client.
type request struct {
	rec  *history.Recorder
	key  string
	in   any
	wait time.Duration // for which the node may let it wait
	bare bool          // it has no request id: it is not sent again once it is lost
}

// repeats is how many operations there are, for one that is sent again, of those that a
// part can do.
const repeats = 6

// repeatLater is the longest rest before that: time for a split, or for a merge.
const repeatLater = 200 * time.Millisecond

// repeatable says whether the request can be sent again though it was answered.
func (r *request) repeatable() bool {
	if in, ok := r.in.(history.CounterInput); ok {
		return in.Op == history.CounterAdd
	}
	_, check := r.in.(history.BucketInput)
	return check && !r.bare
}

// again sends a request once more that was answered, as whoever has not heard of the
// answer does: its first result has to be found, wherever the object is by then.
func again[O any](c *client, r request, name string, first int64, call func(ctx context.Context, id *pb.RequestId, opt grpc.CallOption) (O, error)) {
	c.moveOn()
	c.rest(context.Background(), repeatLater)
	p := r.rec.Begin(c.n, r.key, name, r.in)
	start := c.cfg.Now()
	var by peer.Peer
	attempt, cancel := context.WithTimeout(context.Background(), attemptTime)
	defer cancel()
	out, err := call(attempt, &pb.RequestId{Client: c.id, Sequence: c.seq, Settled: c.seq, AgeNs: max(1, start-first)}, grpc.Peer(&by))
	if err == nil {
		p.Answer(out)
		c.answered(r.key, start, c.cfg.Now(), false)
		return
	}
	f, odd := judge(err, by.Addr != nil)
	if f != lost {
		p.Nothing()
	}
	c.note(0, 0, odd)
}

// send does one operation: attempt after attempt, at one node after the other,
// until there is an answer or the time is over. first is when the first was sent.
func send[O any](c *client, r request, call func(ctx context.Context, id *pb.RequestId, opt grpc.CallOption) (O, error)) (out O, first int64, ok bool) {
	c.seq++
	first = c.cfg.Now()
	name := ""
	if !r.bare {
		name = fmt.Sprint(c.n, "/", c.seq)
	}
	open := false
	ctx := context.Background()
	for most := leastRest; c.cfg.Now()-first < int64(insistFor); most = min(2*most, mostRest) {
		id := &pb.RequestId{Client: c.id, Sequence: c.seq, Settled: c.seq}
		if now := c.cfg.Now(); most > leastRest {
			id.AgeNs = max(1, now-first)
		}
		p := r.rec.Begin(c.n, r.key, name, r.in)
		start := c.cfg.Now()
		var by peer.Peer
		attempt, cancel := context.WithTimeout(ctx, attemptTime+r.wait)
		out, err := call(attempt, id, grpc.Peer(&by))
		cancel()
		if err == nil {
			p.Answer(out)
			c.answered(r.key, start, c.cfg.Now(), false)
			if c.cfg.Splits && r.repeatable() && c.rng.IntN(repeats) == 0 {
				again(c, r, name, first, call)
			}
			return out, first, true
		}
		f, odd := judge(err, by.Addr != nil)
		if f == nothing && r.wait > 0 && !r.bare {
			f = lost // its place in the queue, and the time in it, may be the next attempt's
		}
		if f != lost {
			p.Nothing()
		} else {
			open = true
			c.note(1, 0, "")
		}
		if odd != "" {
			c.note(0, 0, odd)
		}
		if f == over || open && r.bare {
			break
		}
		c.moveOn()
		c.rest(ctx, most)
		c.connect()
	}
	if open {
		c.note(0, 1, "")
	}
	return out, first, false
}

// probe reads an object at a steady pace.
func (c *client) probe(ctx context.Context, k kind, key string) {
	for c.rest(ctx, 2*probePace) {
		c.connect()
		rec, in := c.counters, any(history.CounterInput{Op: history.CounterGet})
		switch k {
		case bucketKind:
			rec, in = c.buckets, history.BucketInput{Cost: 1, Peek: true}
		case windowKind:
			rec, in = c.windows, history.BucketInput{Cost: 1, Peek: true}
		case lockKind:
			rec, in = c.locks, history.LockInput{Op: history.LockInspect}
		}
		p := rec.Begin(c.n, key, "", in)
		start := c.cfg.Now()
		attempt, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeTime)
		out, err := c.read(attempt, k, key)
		cancel()
		if err != nil {
			p.Nothing()
			c.moveOn()
			continue
		}
		p.Answer(out)
		c.answered(key, start, c.cfg.Now(), true)
	}
}

func (c *client) read(ctx context.Context, k kind, key string) (any, error) {
	switch k {
	case counterKind:
		r, err := pb.NewCounterServiceClient(c.conn()).Get(ctx, &pb.GetRequest{Key: key})
		return history.CounterOutput{Value: r.GetValue(), Version: r.GetVersion(), Parts: r.GetParts()}, err
	case bucketKind, windowKind:
		r, err := pb.NewLimitServiceClient(c.conn()).Check(ctx, checkRequest(k, key, history.BucketInput{Cost: 1, Peek: true}))
		return bucketOutput(r), err
	}
	r, err := pb.NewLockServiceClient(c.conn()).Inspect(ctx, &pb.InspectRequest{Key: key})
	return lockOutput(r.GetHolder()), err
}
