package replay

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/keystead/keystead/internal/cli/accesslog"
)

// run is one replay.
type run struct {
	cfg     Config
	by      accesslog.By
	table   *table
	workers []*worker
	queues  []chan []*keyStat // of each worker
	idleTTL time.Duration     // of the counters; 0 = they stay
	bases   bool              // counters may have values already: read them first
	begun   time.Time
	judge   *judge // in the log's own time; else nil

	answered atomic.Bool // the server has answered something
	retries  atomic.Int64
	read     atomic.Int64 // bytes of the log
	lines    atomic.Int64
	entries  atomic.Int64
	verified atomic.Int64
	phase    atomic.Bool // the counters are being read back

	mu     sync.Mutex // guards what follows
	broken int64
	empty  int64
	sample []accesslog.BrokenLine
	timed  bool // there was an entry; else there is no
	first  time.Time
	last   time.Time
	behind int64 // entries that stood behind one of a later time
}

// Run replays a log. If the configuration is bad, there is no report. If the
// run ends early, the report shows how far it came and the error why.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	cfg.setDefaults()
	by, err := cfg.validate()
	if err != nil {
		return nil, err
	}
	r := &run{cfg: cfg, by: by, table: newTable(&cfg), begun: time.Now(), bases: cfg.Verify && cfg.Name != ""}
	switch {
	case cfg.Name != "":
	case cfg.Verify:
		var id [4]byte
		_, _ = rand.Read(id[:]) // never fails
		r.cfg.Name, r.idleTTL = fmt.Sprintf("replay-%x", id), freshTTL
	default:
		r.cfg.Name = "replay"
	}
	if cfg.Clock == LogTime {
		if r.judge, err = judgeFor(r); err != nil {
			return nil, err
		}
		return r.finish(ctx, r.inLogTime, func(_ context.Context, v *verification) error { r.verifyInLogTime(v); return nil })
	}
	for range cfg.Concurrency {
		r.workers = append(r.workers, newWorker(r))
		r.queues = append(r.queues, make(chan []*keyStat, 1))
	}
	return r.finish(ctx, r.replay, r.verify)
}

// finish replays the log, verifies if that is asked for, and reports.
func (r *run) finish(ctx context.Context, replay func(context.Context) error, verify func(context.Context, *verification) error) (*Report, error) {
	stop := r.reportProgress()
	err := replay(ctx)
	took := time.Since(r.begun)
	var v verification
	if err == nil && r.cfg.Verify {
		err = verify(ctx, &v)
	}
	stop()
	return r.report(took, &v), err
}

// replay sends the whole log.
func (r *run) replay(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	fed := make(chan error, 1)
	go func() {
		err := r.feed(ctx)
		for _, q := range r.queues {
			close(q)
		}
		fed <- err
	}()
	var wg sync.WaitGroup
	for i, w := range r.workers {
		wg.Go(func() {
			if err := w.work(ctx, r.queues[i]); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	if ctx.Err() == nil {
		return <-fed
	}
	// A Read that waits for more of the log cannot be interrupted.
	select {
	case <-fed:
	case <-time.After(feedGrace):
	}
	return context.Cause(ctx)
}

// feedGrace is how long a run that ends early waits for its reader: enough
// unless there is nothing to read.
const feedGrace = 100 * time.Millisecond

// feed reads the log and deals its entries out. What was read before an error
// is sent.
func (r *run) feed(ctx context.Context) error {
	log := accesslog.NewReader(&source{ctx: ctx, run: r})
	batches := make([][]*keyStat, len(r.queues))
	err := r.deal(ctx, log, func(_ time.Time, s *keyStat) bool {
		b := batches[s.worker]
		if b == nil {
			b = make([]*keyStat, 0, r.cfg.Batch)
		}
		if b = append(b, s); len(b) == r.cfg.Batch {
			if !r.enqueue(ctx, s.worker, b) {
				return false
			}
			b = nil
		}
		batches[s.worker] = b
		return true
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for i, b := range batches {
		if len(b) > 0 && !r.enqueue(ctx, i, b) {
			return context.Cause(ctx)
		}
	}
	return err
}

// deal gives each entry to take until the log ends, or take wants no more.
func (r *run) deal(ctx context.Context, log *accesslog.Reader, take func(at time.Time, s *keyStat) bool) error {
	defer r.note(log)
	var buf []byte
	for {
		e, err := log.Next()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
		r.seen(log, e.Time)
		buf = r.by.AppendKey(buf[:0], e)
		key, shortened := fit(buf)
		s, err := r.table.see(key, shortened)
		if err != nil {
			return err
		}
		if !take(e.Time, s) {
			return context.Cause(ctx)
		}
	}
}

// seen counts an entry for the report.
func (r *run) seen(log *accesslog.Reader, at time.Time) {
	r.lines.Store(log.Lines())
	r.entries.Store(log.Entries())
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.timed {
		r.timed, r.first, r.last = true, at, at
	}
	if at.Before(r.last) {
		r.behind++
	} else {
		r.last = at
	}
	if at.Before(r.first) {
		r.first = at
	}
	r.noteLocked(log)
}

func (r *run) enqueue(ctx context.Context, worker int, batch []*keyStat) bool {
	select {
	case r.queues[worker] <- batch:
		return true
	case <-ctx.Done():
		return false
	}
}

// note copies the figures of the reader for the report.
func (r *run) note(log *accesslog.Reader) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines.Store(log.Lines())
	r.entries.Store(log.Entries())
	r.noteLocked(log)
}

func (r *run) noteLocked(log *accesslog.Reader) {
	r.broken, r.empty = log.Broken(), log.Empty()
	if s := log.Samples(); len(s) > len(r.sample) {
		r.sample = append([]accesslog.BrokenLine(nil), s...)
	}
}

// source is the log as it is read: it counts bytes, and ends with the run.
type source struct {
	ctx context.Context
	run *run
}

func (s *source) Read(p []byte) (int, error) {
	if s.ctx.Err() != nil {
		return 0, context.Cause(s.ctx)
	}
	n, err := s.run.cfg.Source.Read(p)
	s.run.read.Add(int64(n))
	return n, err
}

// reportProgress calls cfg.Progress until the returned function is called, which
// calls it for the last time.
func (r *run) reportProgress() (stop func()) {
	if r.cfg.Progress == nil {
		return func() {}
	}
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				r.cfg.Progress(r.progress())
			case <-done:
				p := r.progress()
				p.Finished = true
				r.cfg.Progress(p)
				return
			}
		}
	}()
	return func() {
		close(done)
		<-stopped
	}
}

func (r *run) progress() Progress {
	p := Progress{
		Read: r.read.Load(), Size: r.cfg.Size, Lines: r.lines.Load(), Retries: r.retries.Load(),
		Verifying: r.phase.Load(), Verified: r.verified.Load(), Elapsed: time.Since(r.begun),
	}
	t := r.table
	t.mu.Lock()
	defer t.mu.Unlock()
	p.Keys, p.Errors, p.Answered = int64(len(t.stats)), t.failed, t.yes+t.no+t.failed
	if r.cfg.Mode == Count {
		p.Counted = t.yes
	} else {
		p.Allowed, p.Denied = t.yes, t.no
	}
	return p
}
