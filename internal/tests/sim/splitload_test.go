package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/internal/tests/caller"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// What callers of split objects do.
const (
	splitThink = slower * 24 * time.Millisecond // between calls of one worker, at most
	splitCall  = time.Second                    // for one attempt
	// splitGiveUp is how long an operation may go without an outcome, after the faults
	// are over.
	splitGiveUp = 40 * time.Second
	// splitRepeat: of so many operations with a known outcome one is sent again, as if its
	// answer had been late, up to splitLate later. It must have the same outcome.
	splitRepeat = 16
	splitLate   = 500 * time.Millisecond
	casStep     = 100 // that a CompareAndSet adds
)

// Objects that are split. casCounter belongs to one worker, which needs it whole from
// time to time.
const casCounter = "cas"

// keptLimit is split until all faults are over: what is lost of it then counts as spent,
// so that it never admits too much.
const keptLimit = "kept"

var sumCounters = []string{"sum-a", "sum-b", "sum-c"}

// bucket is a limit that is split.
type bucket struct {
	key         string
	rate, burst uint64 // tokens a second, and at most
	weight      int    // of 10 checks, how many are on it
}

var buckets = []bucket{{"big", 2000, 2000, 3}, {"tight", 30, 40, 3}, {"small", 100, 20, 2}, {keptLimit, 2, 30, 2}}

// splitCaller is a client process: it sends each operation through any node, under its
// number, until what became of it is known.
type splitCaller struct {
	*caller.Caller
	s     *scene
	conns []*grpc.ClientConn // by host
	quit  <-chan struct{}    // no more operations are begun
}

func (l *splitLoad) newCaller(number int) (*splitCaller, error) {
	began := time.Now()
	k := &splitCaller{Caller: caller.New(l.s.seed, uint64(number), func() int64 { return int64(time.Since(began)) }), s: l.s, quit: l.quit}
	for i := range l.s.hosts {
		conn, err := l.s.Dial(fmt.Sprintf("10.0.7.%d", number), i)
		if err != nil {
			return nil, err
		}
		k.conns = append(k.conns, conn)
	}
	return k, nil
}

func (k *splitCaller) close() {
	for _, c := range k.conns {
		_ = c.Close()
	}
}

func (k *splitCaller) over() bool {
	select {
	case <-k.quit:
		return true
	default:
		return false
	}
}

// known does an operation under a request id until its outcome is known, and sometimes
// once more; it returns an error if that cannot be, or takes too long.
func (k *splitCaller) known(rnd *rand.Rand, failed func(error), call func(context.Context, *grpc.ClientConn, *commonpb.RequestId) error) error {
	r := k.Begin()
	defer r.End()
	var late time.Time // since when it is over
	again := rnd.IntN(splitRepeat) == 0
	for {
		ctx, cancel := context.WithTimeout(context.Background(), splitCall)
		err := call(ctx, k.conns[rnd.IntN(len(k.conns))], r.ID())
		cancel()
		if err == nil && !again {
			return nil
		}
		if err == nil {
			again = false
			k.s.sleep(time.Duration(rnd.Int64N(int64(splitLate))))
			continue
		}
		failed(err)
		switch status.Code(err) {
		case codes.InvalidArgument, codes.FailedPrecondition, codes.Internal, codes.Unimplemented, codes.OutOfRange:
			return err
		}
		if k.over() {
			if late.IsZero() {
				late = time.Now()
			}
			if time.Since(late) > splitGiveUp {
				return err
			}
		}
		k.s.sleep(time.Duration(rnd.Int64N(int64(splitThink))))
	}
}

// splitLoad is all callers of split objects of a scene, and what they were told.
type splitLoad struct {
	s       *scene
	quit    chan struct{}
	running sync.WaitGroup
	callers []*splitCaller
	sums    map[string]*sumLog
	checks  map[string]*checkLog

	mu     sync.Mutex
	faults []loadFault    // guarded by mu
	errs   map[string]int // guarded by mu
}

func newSplitLoad(s *scene) *splitLoad {
	l := &splitLoad{s: s, quit: make(chan struct{}), sums: map[string]*sumLog{casCounter: {}}, checks: map[string]*checkLog{}, errs: map[string]int{}}
	for _, key := range sumCounters {
		l.sums[key] = &sumLog{}
	}
	for _, b := range buckets {
		l.checks[b.key] = &checkLog{}
	}
	return l
}

// start has clients call until stop.
func (l *splitLoad) start() {
	l.s.t.Helper()
	work := func(number int, workers ...func(*splitCaller, *rand.Rand)) {
		k, err := l.newCaller(number)
		if err != nil {
			l.s.t.Fatal(err)
		}
		l.callers = append(l.callers, k)
		for i, f := range workers {
			rnd := rand.New(rand.NewPCG(l.s.seed, uint64(number*100+i)))
			l.running.Go(func() {
				for !k.over() {
					f(k, rnd)
					l.s.sleep(time.Duration(rnd.Int64N(int64(splitThink))))
				}
			})
		}
	}
	work(1, l.count, l.count)
	work(2, l.count, l.count)
	work(3, l.check, l.check, l.check)
	work(4, l.check, l.check)
	work(5, l.compare)
}

// stop has them finish what they have begun.
func (l *splitLoad) stop() {
	close(l.quit)
	l.running.Wait()
	for _, k := range l.callers {
		k.close()
	}
}

// loadFault is an answer about an object that cannot be, or none when there has to be one.
type loadFault struct{ key, text string }

func (l *splitLoad) fault(key, format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.faults) < maxFaults {
		l.faults = append(l.faults, loadFault{key, fmt.Sprintf(format, args...)})
	}
}

// faultTexts returns those of all faults.
func (l *splitLoad) faultTexts() (all []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.faults {
		all = append(all, f.text)
	}
	return all
}

func (l *splitLoad) failed(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.errs[status.Code(err).String()]++
}

// count adds to one of the counters, or reads it.
func (l *splitLoad) count(k *splitCaller, rnd *rand.Rand) {
	key := sumCounters[rnd.IntN(len(sumCounters))]
	if rnd.IntN(5) == 0 {
		l.get(k, rnd, key)
		return
	}
	l.add(k, rnd, key, nil)
}

func (l *splitLoad) add(k *splitCaller, rnd *rand.Rand, key string, most *int64) {
	op, delta := l.sums[key].begin(1), int64(1)
	var got *counterpb.AddResponse
	same := l.same(key, "add to "+key, op.start)
	err := k.known(rnd, l.failed, func(ctx context.Context, conn *grpc.ClientConn, id *commonpb.RequestId) error {
		r, err := counterpb.NewCounterServiceClient(conn).Add(ctx, &counterpb.AddRequest{Key: key, Delta: delta, Max: most, RequestId: id})
		if err == nil && same(r.Applied, r.Replay, r.Owner) {
			got = r
			l.sums[key].end(op, r.Applied)
		}
		return err
	})
	if err != nil {
		l.fault(key, "add %d to %s, begun at %s: %v", delta, key, stamp(op.start), err)
		return
	}
	if got.Applied && got.Replay == nil && got.Parts == 0 {
		l.sums[key].readUntil(op.start, op.end, got.Value, "add by "+got.Owner)
	}
}

// get reads a counter, and returns what it has read.
func (l *splitLoad) get(k *splitCaller, rnd *rand.Rand, key string) *counterpb.GetResponse {
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), splitCall)
	defer cancel()
	got, err := counterpb.NewCounterServiceClient(k.conns[rnd.IntN(len(k.conns))]).Get(ctx, &counterpb.GetRequest{Key: key})
	if err != nil {
		l.failed(err)
		return nil
	}
	l.sums[key].read(began, got.Value, fmt.Sprintf("get of %d parts by %s", got.Parts, got.Owner))
	return got
}

// compare does operations on a counter of its own: some of them need it whole.
func (l *splitLoad) compare(k *splitCaller, rnd *rand.Rand) {
	switch x := rnd.IntN(40); {
	case x > 1:
		l.add(k, rnd, casCounter, nil)
	case x == 1:
		most := int64(1) << 40
		l.add(k, rnd, casCounter, &most)
	default:
		l.compareAndSet(k, rnd)
	}
}

// compareAndSet reads, and sets if nobody has written since.
func (l *splitLoad) compareAndSet(k *splitCaller, rnd *rand.Rand) {
	was := l.get(k, rnd, casCounter)
	if was == nil {
		return
	}
	op := l.sums[casCounter].begin(casStep)
	same := l.same(casCounter, "set "+casCounter, op.start)
	err := k.known(rnd, l.failed, func(ctx context.Context, conn *grpc.ClientConn, id *commonpb.RequestId) error {
		r, err := counterpb.NewCounterServiceClient(conn).CompareAndSet(ctx, &counterpb.CompareAndSetRequest{Key: casCounter, Value: was.Value + casStep, Version: was.Version, RequestId: id})
		if err == nil && same(r.Applied, r.Replay, r.Owner) {
			l.sums[casCounter].end(op, r.Applied)
		}
		return err
	})
	if err != nil {
		l.fault(casCounter, "set %s, begun at %s: %v", casCounter, stamp(op.start), err)
	}
}

// same judges the answers to one operation: those after the first are replays of the same
// outcome. It reports whether it is the first one.
func (l *splitLoad) same(key, what string, start time.Time) func(yes bool, replay *commonpb.Replay, owner string) bool {
	answers, first := 0, false
	return func(yes bool, replay *commonpb.Replay, owner string) bool {
		answers++
		if answers == 1 {
			first = yes
			return true
		}
		if yes != first || replay == nil {
			l.fault(key, "%s, begun at %s: answer %d, by %s at %s, is %v, replay %v, and the first was %v", what, stamp(start), answers, owner, stamp(time.Now()), yes, replay, first)
		}
		return false
	}
}

// check spends a token of one of the limits, with a request id or without.
func (l *splitLoad) check(k *splitCaller, rnd *rand.Rand) {
	x, i := rnd.IntN(10), 0
	for x >= buckets[i].weight {
		x -= buckets[i].weight
		i++
	}
	b := buckets[i]
	if rnd.IntN(2) == 0 {
		began := time.Now()
		same := l.same(b.key, "check of "+b.key, began)
		err := k.known(rnd, l.failed, func(ctx context.Context, conn *grpc.ClientConn, id *commonpb.RequestId) error {
			r, err := l.spend(ctx, conn, b, id)
			if err == nil && same(r.Allowed, r.Replay, r.Owner) {
				l.checks[b.key].took(began, r.Allowed, r.Parts)
			}
			return err
		})
		if err != nil {
			l.fault(b.key, "check of %s, begun at %s: %v", b.key, stamp(began), err)
		}
		return
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), splitCall)
	defer cancel()
	got, err := l.spend(ctx, k.conns[rnd.IntN(len(k.conns))], b, nil)
	if err != nil {
		l.failed(err)
		return
	}
	l.checks[b.key].took(began, got.Allowed, got.Parts)
}

func (l *splitLoad) spend(ctx context.Context, conn *grpc.ClientConn, b bucket, id *commonpb.RequestId) (*limitpb.CheckResponse, error) {
	return limitpb.NewLimitServiceClient(conn).Check(ctx, &limitpb.CheckRequest{Key: b.key, Limit: b.rate, PeriodNs: int64(time.Second), Burst: b.burst, RequestId: id})
}
