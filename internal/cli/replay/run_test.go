package replay

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func logLine(client string) string {
	return client + ` - - [02/Mar/2024:23:59:58 +0100] "GET /page HTTP/1.1" 200 5120 "-" "agent"` + "\n"
}

// makeLog makes a log in which few clients make most of the calls, with a
// broken line and an empty one for every 500 entries, and counts its clients.
func makeLog(seed uint64, entries int) (log string, counts map[string]int64) {
	rng := rand.New(rand.NewPCG(seed, 2))
	zipf := rand.NewZipf(rng, 1.3, 1, 400)
	counts = map[string]int64{}
	var b strings.Builder
	for i := range entries {
		client := fmt.Sprintf("198.51.100.%d", zipf.Uint64())
		counts[client]++
		b.WriteString(logLine(client))
		if i%500 == 499 {
			b.WriteString("a broken line\n\n")
		}
	}
	return b.String(), counts
}

func countConfig(log string, conn *grpc.ClientConn) Config {
	return Config{Source: strings.NewReader(log), By: "client_ip", Mode: Count, Counters: counterpb.NewCounterServiceClient(conn)}
}

func limitConfig(log string, limit uint64, conn *grpc.ClientConn) Config {
	return Config{Source: strings.NewReader(log), By: "client_ip", Limit: limit, Period: time.Minute, Limits: limitpb.NewLimitServiceClient(conn)}
}

// checkLog checks what a report says about a log of makeLog.
func checkLog(t *testing.T, rep *Report, entries int, counts map[string]int64) {
	t.Helper()
	bad := int64(entries / 500)
	if rep.Entries != int64(entries) || rep.Broken != bad || rep.Empty != bad || rep.Lines != int64(entries)+2*bad {
		t.Errorf("%d lines, %d entries, %d broken, %d empty", rep.Lines, rep.Entries, rep.Broken, rep.Empty)
	}
	if rep.DistinctKeys != int64(len(counts)) {
		t.Errorf("%d distinct keys, want %d", rep.DistinctKeys, len(counts))
	}
	if len(rep.Errors) > 0 || rep.Unanswered != 0 {
		t.Errorf("errors %v, first %s; %d unanswered", rep.Errors, rep.FirstError, rep.Unanswered)
	}
}

func TestCountingIsExact(t *testing.T) {
	const entries = 4000
	for seed := range uint64(4) {
		for _, name := range []string{"", "mine"} {
			t.Run(fmt.Sprintf("seed %d name %q", seed, name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					log, counts := makeLog(seed, entries)
					s := newServer()
					for client := range counts {
						s.values[ref{client, "mine"}] = int64(len(client)) * 1000 // from before
					}
					s.lossy(seed)
					cfg := countConfig(log, s.dial(t))
					cfg.Verify, cfg.Name, cfg.Timeout = true, name, time.Second
					cfg.Patience = 2 * time.Minute
					rep, err := Run(t.Context(), cfg)
					if err != nil {
						t.Fatal(err)
					}
					checkLog(t, rep, entries, counts)
					if rep.Counted != entries || !rep.VerifyOK || rep.Verified != int64(len(counts)) || rep.Mismatches != 0 {
						t.Errorf("counted %d, verified %d (%v), mismatches %v", rep.Counted, rep.Verified, rep.VerifyOK, rep.MismatchSamples)
					}
					for client, n := range counts {
						got := s.values[ref{client, rep.Name}]
						if name != "" {
							got -= int64(len(client)) * 1000
						}
						if got != n {
							t.Errorf("%s was counted %d times, want %d", client, got, n)
						}
					}
					if rep.Retries < 10 || rep.Calls == 0 {
						t.Errorf("%d retries of %d calls: the faults were not felt", rep.Retries, rep.Calls)
					}
					checkIDs(t, s, cfg.Batch)
				})
			})
		}
	}
}

// checkIDs checks that the server never had to remember many ids at once.
func checkIDs(t *testing.T, s *server, batch int) {
	t.Helper()
	if batch == 0 {
		batch = defaultBatch
	}
	if s.most > batch || s.most >= maxIDs {
		t.Errorf("the server remembered %d ids of a client on an object", s.most)
	}
	for r, clients := range s.clients {
		if len(clients) != 1 {
			t.Errorf("%v was used by %d clients", r, len(clients))
		}
	}
}

func TestLimitsAreExact(t *testing.T) {
	const entries, limit = 4000, 20
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log, counts := makeLog(seed, entries)
				s := newServer()
				s.lossy(seed)
				cfg := limitConfig(log, limit, s.dial(t))
				cfg.Timeout, cfg.Top, cfg.Patience = time.Second, 5, 2*time.Minute
				rep, err := Run(t.Context(), cfg)
				if err != nil {
					t.Fatal(err)
				}
				checkLog(t, rep, entries, counts)
				var allowed int64
				for _, n := range counts {
					allowed += min(n, limit)
				}
				if rep.Allowed != allowed || rep.Denied != entries-allowed {
					t.Errorf("allowed %d, denied %d; want %d and %d", rep.Allowed, rep.Denied, allowed, entries-allowed)
				}
				if len(rep.MostDenied) != 5 {
					t.Fatalf("most denied: %v", rep.MostDenied)
				}
				last := int64(entries)
				for _, d := range rep.MostDenied {
					if d.Allowed != limit || d.Denied != counts[d.Key]-limit || d.Denied > last {
						t.Errorf("most denied: %+v, with %d entries", d, counts[d.Key])
					}
					last = d.Denied
				}
				checkIDs(t, s, 0)
				workers := map[string]bool{}
				for _, byName := range s.clients {
					for name := range byName {
						workers[name] = true
					}
				}
				if len(workers) != defaultConcurrency {
					t.Errorf("%d workers had keys", len(workers))
				}
				if !s.names["replay"] || len(s.names) != 1 {
					t.Errorf("names used: %v", s.names)
				}
			})
		})
	}
}

func TestOneKeyInLargeBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.lossy(7)
		cfg := countConfig(strings.Repeat(logLine("h"), 10_000), s.dial(t))
		cfg.Batch, cfg.Verify, cfg.Timeout, cfg.Patience = MaxBatch, true, time.Second, 2*time.Minute
		rep, err := Run(t.Context(), cfg)
		if err != nil || !rep.VerifyOK || rep.Counted != 10_000 {
			t.Fatalf("error %v, report %+v", err, rep)
		}
		checkIDs(t, s, MaxBatch)
	})
}

func TestBatchStaysBelowTheLimitOfAMessage(t *testing.T) {
	s := newServer()
	var largest int
	s.fault = func(int) fault { return none }
	var log strings.Builder
	for i := range MaxBatch {
		log.WriteString(logLine(fmt.Sprintf("%d%s", i, strings.Repeat("x", 600))))
	}
	cfg := countConfig(log.String(), s.dial(t))
	cfg.Counters = sizing{cfg.Counters, &largest}
	cfg.Batch, cfg.Concurrency, cfg.Name = MaxBatch, 1, strings.Repeat("n", maxName)
	rep, err := Run(t.Context(), cfg)
	if err != nil || rep.Counted != MaxBatch || rep.ShortenedKeys != MaxBatch {
		t.Fatalf("error %v, report %+v", err, rep)
	}
	if largest < 600_000 || largest > 1<<20 {
		t.Errorf("the largest message has %d bytes", largest)
	}
}

// sizing notes the largest message of adds.
type sizing struct {
	counterpb.CounterServiceClient
	largest *int
}

func (s sizing) BatchAdd(ctx context.Context, req *counterpb.BatchAddRequest, opts ...grpc.CallOption) (*counterpb.BatchAddResponse, error) {
	*s.largest = max(*s.largest, req.SizeVT())
	return s.CounterServiceClient.BatchAdd(ctx, req, opts...)
}

func TestVerifyFindsWhatDiffers(t *testing.T) {
	log := strings.Repeat(logLine("a")+logLine("b")+logLine("c"), 50)
	for _, name := range []string{"", "mine"} {
		t.Run(fmt.Sprintf("name %q", name), func(t *testing.T) {
			s := newServer()
			cfg := countConfig(log, s.dial(t))
			cfg.Verify, cfg.Name = true, name
			calls := &meddling{CounterServiceClient: cfg.Counters, s: s}
			cfg.Counters = calls
			rep, err := Run(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			want := Mismatch{Key: "b", Log: 50, Counter: 51}
			if rep.VerifyOK || rep.Verified != 2 || rep.Mismatches != 1 || len(rep.MismatchSamples) != 1 || rep.MismatchSamples[0] != want {
				t.Errorf("verified %d, mismatches %d: %+v", rep.Verified, rep.Mismatches, rep.MismatchSamples)
			}
		})
	}
}

// meddling counts "b" once too often, just before the first add.
type meddling struct {
	counterpb.CounterServiceClient
	s    *server
	once sync.Once
}

func (m *meddling) BatchAdd(ctx context.Context, req *counterpb.BatchAddRequest, opts ...grpc.CallOption) (*counterpb.BatchAddResponse, error) {
	if r := (ref{req.Adds[0].Key, req.Adds[0].Name}); r.key == "b" {
		m.once.Do(func() {
			m.s.mu.Lock()
			m.s.values[r]++
			m.s.mu.Unlock()
		})
	}
	return m.CounterServiceClient.BatchAdd(ctx, req, opts...)
}

func TestItemsThatFail(t *testing.T) {
	log := strings.Repeat(logLine("a")+logLine("b"), 30)
	s := newServer()
	s.item = func(key string) (*commonpb.Error, bool) {
		if key != "b" {
			return nil, false
		}
		return &commonpb.Error{Code: int32(codes.FailedPrecondition), Reason: commonpb.Reason_REASON_KIND_MISMATCH, Message: "holds a lock", Hint: "use another name"}, false
	}
	cfg := countConfig(log, s.dial(t))
	cfg.Verify, cfg.Name = true, "mine"
	rep, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	// 30 adds, the read before them and the one after.
	if rep.Counted != 30 || rep.Errors["KIND_MISMATCH"] != 32 || len(rep.Errors) != 1 || rep.Retries != 0 || rep.Unanswered != 0 {
		t.Errorf("counted %d, errors %v, retries %d, unanswered %d", rep.Counted, rep.Errors, rep.Retries, rep.Unanswered)
	}
	if want := `key "b": holds a lock; use another name (KIND_MISMATCH)`; rep.FirstError != want {
		t.Errorf("first error %s", rep.FirstError)
	}
	if rep.VerifyOK || rep.Mismatches != 1 || !rep.MismatchSamples[0].Unread {
		t.Errorf("verified %v, mismatches %+v", rep.VerifyOK, rep.MismatchSamples)
	}
}

func TestGivesUp(t *testing.T) {
	log := strings.Repeat(logLine("a"), 1000)
	full := &commonpb.Error{Code: int32(codes.ResourceExhausted), Reason: commonpb.Reason_REASON_STORE_FULL, Message: "no room", Hint: "make some", RetryAfterNs: 1e8}
	tests := []struct {
		name    string
		prepare func(s *server)
		code    codes.Code
		counted int64
		errors  int64
	}{
		{name: "the connection breaks for good", prepare: func(s *server) {
			s.fault = func(call int) fault {
				if call > 3 {
					return lost
				}
				return none
			}
		}, code: codes.Unavailable, counted: 300},
		{name: "no answer", prepare: func(s *server) { s.fault = func(int) fault { return silent } },
			code: codes.DeadlineExceeded},
		{name: "no room", prepare: func(s *server) { s.item = func(string) (*commonpb.Error, bool) { return full, false } },
			code: codes.ResourceExhausted, errors: 100},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer()
				tt.prepare(s)
				begun := time.Now()
				rep, err := Run(t.Context(), countConfig(log, s.dial(t)))
				if status.Code(err) != tt.code || !strings.Contains(err.Error(), "gave up after") {
					t.Fatalf("error %v, want %s", err, tt.code)
				}
				if took := time.Since(begun); took < 20*time.Second || took > 40*time.Second {
					t.Errorf("gave up after %s", took)
				}
				if rep.Counted != tt.counted || rep.Errors["STORE_FULL"] != tt.errors || rep.Counted+rep.Unanswered+tt.errors != rep.Entries {
					t.Errorf("counted %d, errors %v, unanswered %d of %d", rep.Counted, rep.Errors, rep.Unanswered, rep.Entries)
				}
			})
		})
	}
}

func TestNobodyIsThere(t *testing.T) {
	conn, err := grpc.NewClient("passthrough:///nowhere", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return nil, errors.New("refused") }))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	begun := time.Now()
	_, err = Run(t.Context(), countConfig(logLine("a"), conn))
	if status.Code(err) != codes.Unavailable || time.Since(begun) > 5*time.Second {
		t.Errorf("error %v after %s", err, time.Since(begun))
	}
}

func TestCancel(t *testing.T) {
	t.Run("while the log is awaited", func(t *testing.T) {
		s := newServer()
		log, feed := io.Pipe()
		ctx, cancel := context.WithCancel(t.Context())
		cfg := countConfig("", s.dial(t))
		cfg.Source, cfg.Batch = log, 2
		cfg.Progress = func(p Progress) {
			if p.Answered == 2 {
				cancel()
			}
		}
		go func() { _, _ = io.WriteString(feed, strings.Repeat(logLine("a"), 3)) }()
		rep, err := Run(ctx, cfg)
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("error %v", err)
		}
		if rep.Counted != 2 || rep.Entries != 3 || rep.Unanswered != 1 {
			t.Errorf("counted %d of %d, %d unanswered", rep.Counted, rep.Entries, rep.Unanswered)
		}
		_ = feed.Close() // lets the reader go
	})
	t.Run("while an answer is awaited", func(t *testing.T) {
		s := newServer()
		ctx, cancel := context.WithCancel(t.Context())
		s.fault = func(call int) fault {
			if call == 5 {
				cancel()
			}
			if call >= 5 {
				return silent
			}
			return none
		}
		log, _ := makeLog(1, 5000)
		cfg := limitConfig(log, 20, s.dial(t))
		cfg.Timeout = time.Minute
		rep, err := Run(ctx, cfg)
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("error %v", err)
		}
		if got := rep.Allowed + rep.Denied; got > 400 || got+rep.Unanswered != rep.Entries {
			t.Errorf("%d answers, %d unanswered of %d", got, rep.Unanswered, rep.Entries)
		}
	})
	t.Run("before it begins", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := Run(ctx, countConfig(logLine("a"), newServer().dial(t))); !errors.Is(err, context.Canceled) {
			t.Fatalf("error %v", err)
		}
	})
}

func TestLogThatCannotBeRead(t *testing.T) {
	s := newServer()
	cfg := countConfig("", s.dial(t))
	cfg.Source = io.MultiReader(strings.NewReader(strings.Repeat(logLine("a"), 30)), iotest.ErrReader(errors.New("the disk broke")))
	rep, err := Run(t.Context(), cfg)
	if err == nil || !strings.Contains(err.Error(), "after line 30: the disk broke") {
		t.Fatalf("error %v", err)
	}
	if rep.Counted != 30 || s.values[ref{"a", "replay"}] != 30 {
		t.Errorf("counted %d, on the server %v", rep.Counted, s.values)
	}
}

func TestTooManyKeys(t *testing.T) {
	s := newServer()
	cfg := countConfig(logLine("a")+logLine("b")+logLine("a")+logLine("c")+logLine("d"), s.dial(t))
	cfg.MaxKeys = 2
	rep, err := Run(t.Context(), cfg)
	if err == nil || !strings.Contains(err.Error(), "more than 2 distinct keys") {
		t.Fatalf("error %v", err)
	}
	if rep.Counted != 3 || rep.Unanswered != 1 || rep.DistinctKeys != 2 {
		t.Errorf("counted %d, unanswered %d, %d keys", rep.Counted, rep.Unanswered, rep.DistinctKeys)
	}
}

func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, counts := makeLog(3, 5000)
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		_, _ = io.WriteString(z, log)
		_ = z.Close()
		s := newServer()
		s.lossy(3)
		cfg := countConfig("", s.dial(t))
		cfg.Source, cfg.Size, cfg.Verify, cfg.Timeout = &packed, int64(packed.Len()), true, time.Second
		var got []Progress
		cfg.Progress = func(p Progress) { got = append(got, p) }
		if _, err := Run(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		last := got[len(got)-1]
		if !last.Finished || last.Read != cfg.Size || last.Answered != 5000 || last.Counted != 5000 || last.Verified != int64(len(counts)) || !last.Verifying {
			t.Errorf("at the end: %+v", last)
		}
		for i, p := range got[1:] {
			before := got[i]
			if p.Read < before.Read || p.Answered < before.Answered || p.Verified < before.Verified || before.Finished {
				t.Errorf("%+v came before %+v", before, p)
			}
			if p.Elapsed-before.Elapsed < progressEvery && !p.Finished {
				t.Errorf("told after %s and again after %s", before.Elapsed, p.Elapsed)
			}
		}
		if len(got) < 5 {
			t.Errorf("told %d times", len(got))
		}
	})
}
