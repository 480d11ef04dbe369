package replay

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	mrand "math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	"github.com/keystead/keystead/internal/cli/latency"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
)

// worker sends the entries of its keys, one batch after the other.
type worker struct {
	run    *run
	client []byte // names the worker to the server, for request ids
	next   uint64 // sequence of the next operation
	rng    *mrand.Rand
	times  latency.Histogram // of calls of the run that brought an answer
	calls  calls
}

func newWorker(r *run) *worker {
	w := &worker{run: r, client: make([]byte, 16), next: 1}
	_, _ = rand.Read(w.client) // never fails
	var seed [16]byte
	_, _ = rand.Read(seed[:])
	w.rng = mrand.New(mrand.NewPCG(binary.LittleEndian.Uint64(seed[:]), binary.LittleEndian.Uint64(seed[8:])))
	w.calls.worker = w
	return w
}

// work sends batches until there are no more.
func (w *worker) work(ctx context.Context, queue <-chan []*keyStat) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case batch, ok := <-queue:
			if !ok {
				return nil
			}
			if err := w.send(ctx, batch); err != nil {
				return err
			}
		}
	}
}

// send sends one batch until each of its items has its final outcome.
func (w *worker) send(ctx context.Context, batch []*keyStat) error {
	if w.run.bases {
		if err := w.readBases(ctx, batch); err != nil {
			return err
		}
	}
	first := w.next
	w.next += uint64(len(batch))
	call := w.calls.check
	if w.run.cfg.Mode == Count {
		call = w.calls.add
	}
	return w.finish(ctx, len(batch), attempt{
		call: func(ctx context.Context, open []int, age time.Duration, opts ...grpc.CallOption) ([]outcome, error) {
			return call(ctx, batch, open, first, age, opts)
		},
		done:  func(i int, o *outcome) { w.run.table.tally(batch[i], o) },
		times: &w.times,
	})
}

// readBases reads the counters of keys that come for the first time.
func (w *worker) readBases(ctx context.Context, batch []*keyStat) error {
	var fresh []*keyStat
	for _, s := range batch {
		if !s.started {
			s.started = true
			fresh = append(fresh, s)
		}
	}
	return w.read(ctx, fresh, func(i int, o *outcome) {
		s := fresh[i]
		if s.base = o.value; o.reason != "" {
			s.noBase = true
			w.run.table.fail(s.key, o)
		}
	})
}

// read reads the counters of keys.
func (w *worker) read(ctx context.Context, keys []*keyStat, done func(i int, o *outcome)) error {
	return w.finish(ctx, len(keys), attempt{
		call: func(ctx context.Context, open []int, _ time.Duration, opts ...grpc.CallOption) ([]outcome, error) {
			return w.calls.get(ctx, keys, open, opts)
		},
		done: done,
	})
}

// attempt is a call that can be made again for the items that are still open.
type attempt struct {
	// call returns one outcome for each open item, in order. age is the time
	// since the first attempt that may have reached the server.
	call func(ctx context.Context, open []int, age time.Duration, opts ...grpc.CallOption) ([]outcome, error)
	// done takes the final outcome of item i.
	done  func(i int, o *outcome)
	times *latency.Histogram // nil = not timed
}

// Pauses before a call is made again: the shortest, doubled each time, up to
// the longest. Jitter takes off up to half.
const (
	firstPause = 20 * time.Millisecond
	maxPause   = 2 * time.Second
)

// finish makes attempts until each of n items has its final outcome. It fails
// if the server does not answer, or refuses, for longer than cfg.Patience.
func (w *worker) finish(ctx context.Context, n int, a attempt) error {
	open := make([]int, n)
	for i := range open {
		open[i] = i
	}
	begun := time.Now()
	var sent time.Time // when an attempt first may have reached the server
	for pause := firstPause; len(open) > 0; pause = min(2*pause, maxPause) {
		var age time.Duration
		if !sent.IsZero() {
			age = max(time.Since(sent), 1)
		}
		start := time.Now()
		outcomes, left, err := w.try(ctx, open, age, &a)
		if left && sent.IsZero() {
			sent = start
		}
		again, wait := retry{err: err}, pause
		if err == nil {
			if open, again = w.sift(open, outcomes, &a); len(open) == 0 {
				return nil
			}
		} else if ctx.Err() != nil {
			return context.Cause(ctx)
		} else if again = retryOf(err); !again.ok || !left && !w.run.answered.Load() {
			return err // a server that was never there is not waited for
		}
		wait -= time.Duration(w.rng.Int64N(int64(wait)/2 + 1))
		wait = max(wait, min(again.after, maxPause))
		if time.Since(begun)+wait > w.run.cfg.Patience {
			w.giveUp(open, &a, again)
			return fmt.Errorf("gave up after %s of retries: %w", time.Since(begun).Round(time.Millisecond), again.err)
		}
		w.run.retries.Add(1)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(wait):
		}
	}
	return nil
}

// try makes one attempt. left reports whether it may have reached the server.
func (w *worker) try(ctx context.Context, open []int, age time.Duration, a *attempt) (outcomes []outcome, left bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, w.run.cfg.Timeout)
	defer cancel()
	var p peer.Peer // set if the call was given to a connection
	start := time.Now()
	outcomes, err = a.call(ctx, open, age, grpc.Peer(&p))
	if err != nil {
		return nil, p.Addr != nil, err
	}
	if a.times != nil {
		a.times.Record(time.Since(start))
	}
	w.run.answered.Store(true)
	if len(outcomes) != len(open) {
		return nil, true, fmt.Errorf("the server sent %d results for %d items", len(outcomes), len(open))
	}
	return outcomes, true, nil
}

// sift reports final outcomes, and returns the items that remain open and the
// reason of the last of them.
func (w *worker) sift(open []int, outcomes []outcome, a *attempt) (still []int, again retry) {
	still = open[:0]
	for j, i := range open {
		o := &outcomes[j]
		if !o.again.ok {
			a.done(i, o)
			continue
		}
		still = append(still, i)
		o.again.after = max(o.again.after, again.after)
		again = o.again
	}
	return still, again
}

// giveUp counts items that the server kept refusing. Those without any answer
// are left open.
func (w *worker) giveUp(open []int, a *attempt, again retry) {
	if again.item == nil {
		return
	}
	for _, i := range open {
		a.done(i, again.item)
	}
}

// requestID fills the id of an operation for an attempt.
func (w *worker) requestID(id *commonpb.RequestId, sequence, settled uint64, age time.Duration) *commonpb.RequestId {
	id.Client, id.Sequence, id.Settled, id.AgeNs = w.client, sequence, settled, int64(age)
	return id
}
