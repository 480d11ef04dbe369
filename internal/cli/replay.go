package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/keystead/keystead/internal/cli/accesslog"
	"github.com/keystead/keystead/internal/cli/bench"
	"github.com/keystead/keystead/internal/cli/replay"
	"github.com/keystead/keystead/internal/config"
	"github.com/keystead/keystead/internal/failure"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

type replayFlags struct {
	remote
	replay.Config
	rate      rate
	algorithm string
	time      string
	count     bool
	local     bool
}

func newReplay(std Process) *cobra.Command {
	var f replayFlags
	cmd := &cobra.Command{
		Use:   "replay FILE",
		Short: "Feed a web server's log through limits or counters",
		Long: `Reads an access log in the common or combined format, plain or gzip, "-" for
standard input, and checks every line against --limit: what would that limit
have denied? With --count it counts each key exactly instead, and with --verify
it reads every counter back and compares it with the file.

--time says whose time decides.
  log   Each line is decided at its own time, so that "3 % denied" speaks of
        the traffic that the log is of. This program decides by itself: no node
        is needed, and a year of log takes seconds. Lines that stand out of
        order are put in order first.
  node  The node at --addr decides at the time at which it gets a line. Lines
        are sent as fast as it answers, not at the pace of the log: expect far
        more denials than in real traffic. With --local, it starts a node for
        the run.
The default is log. With --addr, or with --count, whose counters are to be on a
node, it is node.

--by says what the key is: client_ip, user, method, path, status, user_agent,
referer, or several of them with commas. Broken lines are counted and shown.

The exit code is 1 if most lines could not be read, if --verify finds a
difference, or if lines went unanswered.`,
		Example: `  keystead replay access.log --by client_ip --limit 20/1m
  keystead replay access.log.gz --by client_ip,path --limit 5/s --burst 50 --time node --local
  zcat access.log.*.gz | keystead replay - --by user_agent --count --verify --json`,
		Args: exactArgs("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.chooseTime(sourcesOf(cmd)); err != nil {
				return err
			}
			return f.run(cmd.Context(), std, args[0])
		},
	}
	f.flags(cmd)
	fl := cmd.Flags()
	fl.StringVar(&f.By, "by", "client_ip", "what the key is made of")
	fl.Var(&f.rate, "limit", "the limit to ask for, like 20/1m")
	fl.Uint64Var(&f.Burst, "burst", 0, "most tokens at once (default: the count of --limit)")
	fl.Uint64Var(&f.Cost, "cost", 1, "tokens that a line costs")
	fl.StringVar(&f.algorithm, "algorithm", defaultAlgorithm, "token-bucket, fixed-window or sliding-window")
	fl.BoolVar(&f.count, "count", false, "count every key exactly instead")
	fl.BoolVar(&f.Verify, "verify", false, "with --count: compare every counter with the file")
	fl.StringVar(&f.Name, "name", "", "which limit or counter of the key (default \"replay\"; with --verify a fresh one)")
	fl.StringVar(&f.time, "time", "", "whose time decides: `log or node` (default log; node with --addr or --count)")
	fl.IntVar(&f.Batch, "batch", 100, "lines in a call to a node")
	fl.IntVar(&f.Concurrency, "concurrency", 8, "calls under way to a node")
	fl.IntVar(&f.Top, "top", 10, "keys listed at the end")
	fl.BoolVar(&f.local, "local", false, "no node is running: where one is needed, start it for this run")
	return cmd
}

// chooseTime determines whose time decides. A node in the environment or in the
// configuration file is there for other commands as well: only one on the command line
// is asked for here.
func (f *replayFlags) chooseTime(from config.Sources) error {
	given := func(name string) bool {
		source, _ := from.Of(name)
		return source.Kind == config.CommandLine
	}
	switch f.time {
	case "node":
		return nil
	case "log":
		if given("addr") && given("time") {
			return usageError{errors.New("--time log goes without --addr: this program decides, because no call to a node carries a time\n  hint: leave one of them out")}
		}
	case "":
	default:
		return usageError{fmt.Errorf("--time %q: choose log or node", f.time)}
	}
	if given("addr") || f.time == "" && f.count {
		f.time = "node"
		return nil
	}
	for _, name := range []string{"batch", "concurrency", "timeout"} {
		if given(name) {
			return usageError{fmt.Errorf("--%s is about calls to a node, and in the log's own time there are none\n  hint: add --time node, or leave it out", name)}
		}
	}
	f.Clock = replay.LogTime
	return nil
}

func (f *replayFlags) run(ctx context.Context, std Process, path string) (err error) {
	if err := f.mode(); err != nil {
		return err
	}
	if _, err := accesslog.ParseBy(f.By); err != nil {
		return usageError{err}
	}
	source, size, err := open(std.In, path)
	if err != nil {
		return err
	}
	defer source.Close()
	f.Source, f.Size = source, size
	ctx, stop := untilSignal(ctx)
	defer func() {
		if n := stop(); n != 0 {
			err = exitCode(128 + n)
		}
	}()
	if f.Clock == replay.NodeTime {
		leave, err := f.connect(ctx)
		if err != nil {
			return err
		}
		defer leave()
	}
	bar := newReplayProgress(std.Err)
	f.Progress = bar.show
	report, err := replay.Run(ctx, f.Config)
	bar.clear()
	return f.finish(std, path, report, err)
}

// connect connects to the node that decides, and checks that it answers.
func (f *replayFlags) connect(ctx context.Context) (leave func(), err error) {
	stop := func() {}
	if f.local {
		node, err := startChild(ctx, bench.Keystead, serveFlags{})
		if err != nil {
			return nil, err
		}
		f.addr, stop = node.addr, node.stop
	}
	conn, err := f.dial()
	if err != nil {
		stop()
		return nil, err
	}
	leave = func() {
		conn.Close()
		stop()
	}
	f.Limits, f.Counters = limitpb.NewLimitServiceClient(conn), counterpb.NewCounterServiceClient(conn)
	if err := f.reach(ctx); err != nil {
		leave()
		return nil, err
	}
	return leave, nil
}

// mode turns the flags into what to do.
func (f *replayFlags) mode() (err error) {
	f.Config.Timeout = f.timeout
	if f.Batch < 1 || f.Batch > replay.MaxBatch {
		return usageError{fmt.Errorf("--batch %d: choose 1 to %d", f.Batch, replay.MaxBatch)}
	}
	if f.Concurrency < 1 || f.Concurrency > replay.MaxConcurrency {
		return usageError{fmt.Errorf("--concurrency %d: choose 1 to %d", f.Concurrency, replay.MaxConcurrency)}
	}
	if f.count {
		if f.rate.limit != 0 {
			return usageError{errors.New("--limit and --count exclude each other: choose what to replay")}
		}
		if f.Burst != 0 || f.Cost != 1 || f.algorithm != defaultAlgorithm {
			return usageError{errors.New("--burst, --cost and --algorithm go with --limit: --count has no use for them")}
		}
		f.Mode = replay.Count
		return nil
	}
	if f.Verify {
		return usageError{errors.New("--verify goes with --count: only counters can be compared with the file")}
	}
	if f.rate.limit == 0 {
		return usageError{errors.New("--limit is missing\n  hint: for example --limit 20/1m, or --count to count instead")}
	}
	f.Mode, f.Limit, f.Period = replay.Limits, f.rate.limit, f.rate.period
	algorithm, err := parseAlgorithm(f.algorithm)
	if f.Algorithm = algorithm.wire; err != nil {
		return err
	}
	if f.Algorithm == limitpb.Algorithm_ALGORITHM_CALENDAR_WINDOW || f.rate.period == 0 {
		return usageError{errors.New("replay knows no calendar: choose another --algorithm, and a length for the period, like 1000/30d")}
	}
	if f.Algorithm == limitpb.Algorithm_ALGORITHM_LEAKY_BUCKET {
		return usageError{errors.New("--algorithm leaky-bucket: the requests of a log do not wait; a token-bucket of the same --limit and --burst admits the same")}
	}
	if f.Cost == 0 {
		return usageError{errors.New("--cost 0 spends nothing: choose 1 or more")}
	}
	return nil
}

// reach checks that there is a node before the log is read.
func (f *replayFlags) reach(ctx context.Context) error {
	err := f.call(ctx, func(ctx context.Context) error {
		_, err := f.Counters.Get(ctx, &counterpb.GetRequest{Key: "replay"})
		return err
	})
	var h hinted
	if errors.As(err, &h) {
		h.hint += "; --local starts one for this run, and --time log needs none"
		return h
	}
	return err
}

func open(in io.Reader, path string) (io.ReadCloser, int64, error) {
	if path == "-" {
		return io.NopCloser(in), 0, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		err = fmt.Errorf("%s is a directory", path)
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, info.Size(), nil
}

// replayProgress shows how far a replay is: as a bar on a terminal, elsewhere as a
// line now and then.
type replayProgress struct {
	*progress
	lines io.Writer
	last  time.Duration // when the last line was written
}

// lineEvery is how often a replay prints its progress where there is no terminal.
const lineEvery = 10 * time.Second

func newReplayProgress(w io.Writer) *replayProgress { return &replayProgress{newProgress(w), w, 0} }

func (p *replayProgress) show(at replay.Progress) {
	part := -1.0
	if at.Size > 0 {
		part = float64(at.Read) / float64(at.Size)
	}
	text := replaying(at, part)
	if p.progress.w != nil {
		p.progress.show(part, text)
		return
	}
	if at.Elapsed-p.last < lineEvery || at.Finished {
		return
	}
	p.last = at.Elapsed
	if part >= 0 {
		text = fmt.Sprintf("%.0f %%, %s", 100*part, text)
	}
	fmt.Fprintf(p.lines, "keystead: %s\n", text)
}

// steadyAfter is when the rate of a run is enough to predict the rest of it.
const steadyAfter = time.Second

// replaying describes how far a run is, how fast it is, and how long the rest takes.
func replaying(at replay.Progress, part float64) string {
	text := thousands(float64(at.Lines)) + " lines"
	switch {
	case at.Verifying:
		return fmt.Sprintf("%s, %s of %s counters compared", text, thousands(float64(at.Verified)), thousands(float64(at.Keys)))
	case at.Elapsed < steadyAfter:
		return text
	}
	text += fmt.Sprintf(", %s lines/s", thousands(float64(at.Lines)/at.Elapsed.Seconds()))
	if part > 0 && part < 1 {
		left := time.Duration(float64(at.Elapsed) * (1 - part) / part)
		text += fmt.Sprintf(", %s left", max(left.Round(time.Second), time.Second))
	}
	return text
}

// misuse names the flag at fault for an impossible limit.
func misuse(err error) error {
	var field *failure.Error
	if !errors.As(err, &field) {
		return err
	}
	flag := field.Field
	if flag != "cost" && flag != "burst" {
		flag = "limit"
	}
	return usageError{fmt.Errorf("--%s %s", flag, field.Message)}
}

// finish prints the report, also of a run that ended early.
func (f *replayFlags) finish(std Process, path string, report *replay.Report, err error) error {
	if report == nil {
		return misuse(err)
	}
	strange := report.Unreadable()
	var werr error
	switch {
	case f.json:
		werr = printJSON(std.Out, report)
	case strange == "" || report.Entries > 0: // else there is nothing to report
		werr = report.WriteText(std.Out)
	}
	if path == "-" {
		path = "standard input"
	}
	switch {
	case err != nil && !errors.Is(err, accesslog.ErrStrange):
		return err
	case werr != nil:
		return werr
	case strange != "":
		return hinted{fmt.Errorf("%s: %s", path, strange),
			"replay reads the common and the combined log format, which Apache and nginx write by default, plain or gzip"}
	case f.Verify && !report.VerifyOK:
		return fmt.Errorf("counters that differ from the file: %d", report.Mismatches)
	case report.Unanswered > 0 || len(report.Errors) > 0:
		return exitCode(exitError)
	}
	return nil
}
