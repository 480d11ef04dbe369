package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/keystead/keystead/internal/accesslog"
	"github.com/keystead/keystead/internal/bench"
	"github.com/keystead/keystead/internal/replay"
	pb "github.com/keystead/keystead/proto/keystead/v1"
)

type replayFlags struct {
	remote
	replay.Config
	rate      rate
	algorithm string
	count     bool
	local     bool
}

func newReplay(std stdio) *cobra.Command {
	var f replayFlags
	cmd := &cobra.Command{
		Use:   "replay FILE",
		Short: "Feed a web server's log through limits or counters",
		Long: `Reads an access log in the common or combined format, plain or gzip, "-" for
standard input, and asks a limit for each line, as fast as the node answers:
what would --limit have denied? With --count it counts each key exactly instead,
and with --verify it reads every counter back and compares it with the file.

The node's clock decides, not the log's: a log of an hour that is replayed in a
second meets the limits of a second.

--by says what the key is: client_ip, user, method, path, status, user_agent,
referer, or several of them with commas. Broken lines are counted and shown.

It talks to the node at --addr; with --local, it starts one for the run. The
exit code is 1 if --verify finds a difference, or if lines went unanswered.`,
		Example: `  keystead replay access.log --by client_ip --limit 20/1m
  keystead replay access.log.gz --by client_ip,path --limit 5/s --burst 50 --local
  zcat access.log.*.gz | keystead replay - --by user_agent --count --verify --json`,
		Args: exactArgs("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), std, args[0]) },
	}
	f.flags(cmd)
	fl := cmd.Flags()
	fl.StringVar(&f.By, "by", "client_ip", "what the key is made of")
	fl.Var(&f.rate, "limit", "the limit to ask for, like 20/1m")
	fl.Uint64Var(&f.Burst, "burst", 0, "most tokens at once (default: the count of --limit)")
	fl.Uint64Var(&f.Cost, "cost", 1, "tokens that a line costs")
	fl.StringVar(&f.algorithm, "algorithm", defaultAlgorithm, algorithmNames)
	fl.BoolVar(&f.count, "count", false, "count every key exactly instead")
	fl.BoolVar(&f.Verify, "verify", false, "with --count: compare every counter with the file")
	fl.StringVar(&f.Name, "name", "", "which limit or counter of the key (default \"replay\"; with --verify a fresh one)")
	fl.IntVar(&f.Batch, "batch", 100, "lines in a call")
	fl.IntVar(&f.Concurrency, "concurrency", 8, "calls under way")
	fl.IntVar(&f.Top, "top", 10, "keys listed at the end")
	fl.BoolVar(&f.local, "local", false, "start a node for this run")
	return cmd
}

func (f *replayFlags) run(ctx context.Context, std stdio, path string) (err error) {
	if err := f.mode(); err != nil {
		return err
	}
	if _, err := accesslog.ParseBy(f.By); err != nil {
		return usageError{err}
	}
	source, size, err := open(std.in, path)
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
	if f.local {
		node, err := startChild(ctx, bench.Keystead)
		if err != nil {
			return err
		}
		defer node.stop()
		f.addr = node.addr
	}
	conn, err := f.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	f.Limits, f.Counters = pb.NewLimitServiceClient(conn), pb.NewCounterServiceClient(conn)
	if err := f.reach(ctx); err != nil {
		return err
	}
	bar := newProgress(std.err)
	f.Progress = bar.replay
	report, err := replay.Run(ctx, f.Config)
	bar.clear()
	return f.finish(std, report, err)
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
	f.Algorithm, err = parseAlgorithm(f.algorithm)
	return err
}

// reach makes sure that there is a node, before the log is read.
func (f *replayFlags) reach(ctx context.Context) error {
	err := f.call(ctx, func(ctx context.Context) error {
		_, err := f.Counters.Get(ctx, &pb.GetRequest{Key: "replay"})
		return err
	})
	var h hinted
	if errors.As(err, &h) {
		h.hint += "; --local starts one for this run"
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

func (p *progress) replay(at replay.Progress) {
	part := -1.0
	if at.Size > 0 {
		part = float64(at.Read) / float64(at.Size)
	}
	p.show(part, thousands(float64(at.Lines))+" lines")
}

// finish prints what there is to print, whole or not.
func (f *replayFlags) finish(std stdio, report *replay.Report, err error) error {
	if report == nil {
		return err
	}
	var werr error
	if f.json {
		werr = printJSON(std.out, report)
	} else {
		werr = report.WriteText(std.out)
	}
	switch {
	case err != nil:
		return err
	case werr != nil:
		return werr
	case f.Verify && !report.VerifyOK:
		return fmt.Errorf("counters that differ from the file: %d", report.Mismatches)
	case report.Unanswered > 0 || len(report.Errors) > 0:
		return exitCode(exitError)
	}
	return nil
}

// privateNode runs a node of its own on a free port of loopback, prints its
// address, and serves until ctx ends. rlsConfig is the --rls-config of the node.
func privateNode(ctx context.Context, std stdio, rlsConfig string) error {
	f := nodeFlags{logLevel: "error", logFormat: "text"}
	f.ID, f.GRPCAddr = "private", "127.0.0.1:0"
	f.StopGrace, f.RLS.Path = time.Second, rlsConfig
	f.announceReady = announceAddr
	return f.run(ctx, std)
}
