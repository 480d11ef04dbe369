package sim

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc"

	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	"github.com/keystead/keystead/ring/epoch"
)

// windowTime is the length of the windows of a quota, by the clock.
const windowTime = 10 * time.Second

// quota is a limit by the clock, and what is known of it.
type quota struct {
	s       *scene
	key     string
	conns   []*grpc.ClientConn
	asked   int
	ends    int64  // of the window that was told last
	spent   uint64 // in that one, at least
	allowed int
	denied  int
}

// mostOfQuota is how much a window of a quota has.
const mostOfQuota = 5

func (s *scene) quotaFor(key string) *quota {
	q := &quota{s: s, key: key}
	for i := range s.hosts {
		conn, err := s.Dial("10.0.8.1", i)
		if err != nil {
			s.t.Fatal(err)
		}
		q.conns = append(q.conns, conn)
	}
	return q
}

func (q *quota) close() {
	for _, c := range q.conns {
		_ = c.Close()
	}
}

// check spends one, insists on an answer, and judges it: in a window at most so much is spent, and
// windows follow one another.
func (q *quota) check() *limitpb.CheckResponse {
	q.s.t.Helper()
	q.asked++
	req := &limitpb.CheckRequest{Key: q.key, Limit: mostOfQuota, PeriodNs: int64(windowTime), Algorithm: limitpb.Algorithm_ALGORITHM_CALENDAR_WINDOW, IdempotencyKey: fmt.Sprint(q.asked)}
	var r *limitpb.CheckResponse
	err, at := errors.New("nobody was asked"), q.s.rnd.IntN(len(q.conns))
	for over := time.Now().Add(insistTime); err != nil && time.Now().Before(over); {
		ctx, cancel := context.WithTimeout(q.s.t.Context(), callTime)
		r, err = limitpb.NewLimitServiceClient(q.conns[at]).Check(ctx, req)
		cancel()
		if err != nil {
			at = (at + 1) % len(q.conns)
			q.s.sleep(50 * time.Millisecond)
		}
	}
	if err != nil {
		q.s.t.Fatal(err)
	}
	if r.Allowed {
		q.allowed++
	} else {
		q.denied++
	}
	if r.PeriodEnds < q.ends {
		q.s.t.Errorf("the window ends at %d, after one that ended at %d", r.PeriodEnds, q.ends)
	}
	if r.PeriodEnds > q.ends {
		q.ends, q.spent = r.PeriodEnds, 0
	}
	if r.Allowed && r.Replay == nil { // the first attempt may have spent in a window before
		q.spent++
	}
	if q.spent > mostOfQuota || r.Remaining > mostOfQuota-q.spent {
		q.s.t.Errorf("at least %d are spent, %d left in the window that ends at %d", q.spent, r.Remaining, q.ends)
	}
	return r
}

// rightly reports whether a window that was told is one of the time that is right.
func rightly(r *limitpb.CheckResponse) bool {
	left := time.Until(time.Unix(r.PeriodEnds, 0).Add(-sinceThen))
	return left > -2*time.Second && left <= windowTime+2*time.Second
}

// wrongClocks returns the hosts whose nodes find their clock wrong, a bit for each.
func (s *scene) wrongClocks() (hosts int) {
	for _, p := range s.Live() {
		if ahead, known := p.Group.WallAhead(); known && epoch.WallWrong(ahead) {
			hosts |= 1 << p.Host
		}
	}
	return hosts
}

// wrongOf is what wrongClocks returns when the clock of one host was set by so much.
func wrongOf(host int, by time.Duration) int {
	if by == 0 {
		return 0
	}
	return 1 << host
}

// TestOneClockIsYearsAhead: the clock of one node after the other is set ahead, or back, by years, and
// nodes die. Windows by the clock are those of the right time, and none admits more than it has.
func TestOneClockIsYearsAhead(t *testing.T) {
	t.Parallel()
	const year = 365 * 24 * time.Hour
	play(t, setting{nodes: 3, clients: 2}, func(s *scene) {
		q := s.quotaFor(s.keyAt(0))
		defer q.close()
		for range 6 {
			wrong := s.rnd.IntN(3)
			by := time.Duration(s.rnd.IntN(20)-10) * year
			s.JumpWall(wrong, by)
			for range 10 {
				if r := q.check(); !rightly(r) {
					s.t.Errorf("n%d is wrong by %s, and the window ends in %s", wrong+1, by, time.Until(time.Unix(r.PeriodEnds, 0).Add(-sinceThen)))
				}
				s.sleep(s.between(10*time.Millisecond, 2*time.Second))
			}
			s.until(stableTime, "the clock that is wrong is told of, and no other", func() bool { return s.wrongClocks() == wrongOf(wrong, by) })
			if dies := s.ownerOf(q.key); s.rnd.IntN(2) == 0 && dies >= 0 {
				s.Crash(dies)
				q.check()
				if err := s.Start(dies); err != nil {
					s.t.Fatal(err)
				}
			}
			s.JumpWall(wrong, -by)
			s.until(stableTime, "all is well again", s.stable)
		}
		if q.allowed == 0 || q.denied == 0 {
			s.t.Errorf("%d allowed, %d denied", q.allowed, q.denied)
		}
		s.restore()
	})
}

// TestClocksAreSetBack: those of a majority are set back over the beginning of a window. The one that has
// begun goes on, and gives nothing twice, also at the next owner.
func TestClocksAreSetBack(t *testing.T) {
	t.Parallel()
	play(t, setting{nodes: 3, clients: 2}, func(s *scene) {
		q := s.quotaFor(s.keyAt(0))
		defer q.close()
		for range 4 {
			for range 8 {
				q.check()
				s.sleep(s.between(0, 200*time.Millisecond))
			}
			back := s.between(windowTime/2, 2*windowTime)
			for i := range s.hosts {
				s.JumpWall(i, -back)
			}
			for range 8 {
				q.check()
				s.sleep(s.between(0, time.Second))
			}
			if dies := s.ownerOf(q.key); dies >= 0 {
				s.Crash(dies)
				q.check()
				if err := s.Start(dies); err != nil {
					s.t.Fatal(err)
				}
			}
			for range 8 {
				q.check()
				s.sleep(s.between(0, time.Second))
			}
			s.until(stableTime, "all is well again", s.stable)
		}
		if q.allowed == 0 || q.denied == 0 {
			s.t.Errorf("%d allowed, %d denied", q.allowed, q.denied)
		}
		s.restore()
	})
}
