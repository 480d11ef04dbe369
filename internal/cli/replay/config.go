package replay

import (
	"errors"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	"github.com/keystead/keystead/internal/cli/accesslog"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// Mode is what is done with an entry.
type Mode uint8

const (
	Limits Mode = iota // check the limit of its key
	Count              // add 1 to the counter of its key
)

// Clock is whose time decides.
type Clock uint8

const (
	// NodeTime: a server decides, at the moment at which it gets an entry.
	NodeTime Clock = iota
	// LogTime: this process decides, at the moment that stands in the log. No call
	// carries a time, so no server can.
	LogTime
)

// Config is what to replay, and at which server.
type Config struct {
	// Source is the log, plain or gzip; required. Entries are sent when a batch
	// is full or the log ends. If Run is cancelled while a Read does not
	// return, one goroutine stays behind until it does.
	Source io.Reader
	Size   int64  // bytes of Source, for progress; 0 = unknown
	By     string // what the key is made of: see accesslog.ParseBy; required
	Mode   Mode
	// Clock is whose time decides. Default NodeTime. With LogTime there is no server:
	// Batch, Concurrency, Timeout, Patience, Limits and Counters have no use.
	Clock Clock
	// Verify reads every counter back at the end and compares it with the log.
	// Count only.
	Verify bool
	// Name is the name of the limits or counters. Default "replay"; with Verify,
	// "replay-" and eight hexadecimal digits of this run, and the counters are
	// forgotten a day after their last add. If Verify comes with a name,
	// each counter is read before its first add, and only what was added since
	// is compared; others must not change the counters during the run.
	Name string

	// For Limits; as in CheckRequest.
	Limit     uint64
	Period    time.Duration
	Burst     uint64
	Algorithm limitpb.Algorithm
	Cost      uint64

	Batch       int           // entries in a call, at most MaxBatch. Default 100
	Concurrency int           // calls under way. Default 8
	Top         int           // keys listed in the report. Default 10; negative = none
	Timeout     time.Duration // of one call. Default 5 s
	// Patience is how long a call is tried again and again before the run is
	// given up. Default 30 s, at most 2 min: a node forgets request ids.
	Patience time.Duration
	MaxKeys  int // distinct keys in the log, all kept in memory. Default 5,000,000

	// Progress receives how far the run is, at most ten times a second and once
	// at the end, never concurrently. It may be nil.
	Progress func(Progress)

	Limits   limitpb.LimitServiceClient     // required for Limits in NodeTime
	Counters counterpb.CounterServiceClient // required for Count in NodeTime
}

// Bounds of a Config, and of a run.
const (
	MaxBatch       = 1_000 // fewer than the 1,024 request ids that a node remembers; and 1,000 × 800 bytes are below 1 MiB
	MaxConcurrency = 256

	defaultBatch       = 100
	defaultConcurrency = 8
	defaultTop         = 10
	defaultTimeout     = 5 * time.Second
	defaultPatience    = 30 * time.Second
	maxPatience        = 2 * time.Minute // half of the id window is 2.5 min
	defaultMaxKeys     = 5_000_000       // about 1 GiB with keys of 50 bytes
	maxKeyBytes        = 1 << 30         // of all keys together
	maxName            = 128

	// freshTTL is when the counters of a run with a name of its own are
	// forgotten: later than any run takes between an add and the comparison.
	freshTTL = 24 * time.Hour

	progressEvery = 100 * time.Millisecond
)

func setDefault[T int | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

func (c *Config) setDefaults() {
	setDefault(&c.Batch, defaultBatch)
	setDefault(&c.Concurrency, defaultConcurrency)
	setDefault(&c.Top, defaultTop)
	setDefault(&c.Timeout, defaultTimeout)
	setDefault(&c.Patience, defaultPatience)
	setDefault(&c.MaxKeys, defaultMaxKeys)
}

func (c *Config) validate() (accesslog.By, error) {
	by, err := accesslog.ParseBy(c.By)
	switch {
	case err != nil:
	case c.Source == nil:
		err = errors.New("there is no log")
	case c.Mode != Limits && c.Mode != Count:
		err = fmt.Errorf("there is no mode %d", c.Mode)
	case c.Clock != NodeTime && c.Clock != LogTime:
		err = fmt.Errorf("there is no clock %d", c.Clock)
	case c.Clock == NodeTime && (c.Mode == Limits && c.Limits == nil || c.Mode == Count && c.Counters == nil):
		err = errors.New("there is no client for the server")
	case c.Mode == Limits && c.Verify:
		err = errors.New("only counters can be verified")
	case c.Mode == Limits && (c.Limit == 0 || c.Period <= 0):
		err = fmt.Errorf("a limit of %d in %s: both must be positive", c.Limit, c.Period)
	case len(c.Name) > maxName || !utf8.ValidString(c.Name):
		err = fmt.Errorf("the name must have at most %d bytes of UTF-8", maxName)
	case c.Batch < 1 || c.Batch > MaxBatch:
		err = fmt.Errorf("a batch of %d: choose 1 to %d", c.Batch, MaxBatch)
	case c.Concurrency < 1 || c.Concurrency > MaxConcurrency:
		err = fmt.Errorf("a concurrency of %d: choose 1 to %d", c.Concurrency, MaxConcurrency)
	case c.Timeout < 0:
		err = fmt.Errorf("a timeout of %s is negative", c.Timeout)
	case c.Patience < 0 || c.Patience > maxPatience:
		err = fmt.Errorf("a patience of %s: choose at most %s", c.Patience, maxPatience)
	case c.MaxKeys < 1:
		err = fmt.Errorf("at most %d keys: choose 1 or more", c.MaxKeys)
	case c.Clock == LogTime:
		err = c.validateLogTime()
	}
	return by, err
}

// Progress is how far a run is.
type Progress struct {
	Read, Size int64 // bytes of the log; Size 0 = unknown
	Lines      int64 // read
	Answered   int64 // entries that have an answer, or failed for good
	Allowed    int64
	Denied     int64
	Counted    int64
	Errors     int64
	Keys       int64 // distinct
	Retries    int64 // calls
	Verifying  bool  // the log is through
	Verified   int64 // keys read back
	Elapsed    time.Duration
	Finished   bool // nothing follows
}
