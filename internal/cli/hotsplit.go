package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/internal/cli/replay"
	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
)

const (
	minParts, maxParts = 2, 64 // of --into, as in the cluster
	// splitTimeout is how long `hot split` and `hot merge` wait by default: two commits
	// and a copy need less than a second, and a change of the ring that is under way some
	// more.
	splitTimeout = 30 * time.Second
	// splitQuiet is how long they say nothing.
	splitQuiet = time.Second
	// waitingText is how many characters of what is waited for fit a line.
	waitingText = 70
)

type splitFlags struct {
	remote
	kind, name string
	into       int
}

func newHotSplit(std Process) *cobra.Command {
	var f splitFlags
	cmd := &cobra.Command{
		Use:   "split KEY",
		Short: "Split a limit or a counter of a key over several nodes",
		Long: `Divides a limit or a counter of KEY into parts, which are served by several nodes, and
waits until they are; calls on it wait meanwhile. It stays so, however little it is asked
for, until "keystead hot merge", or until an operation comes that no part can do, like a
compare-and-set.

Without --kind, the object is found out: it is the one of KEY, and of --name if that is
given, that "keystead hot --top 128" shows, if it is one; if it shows several, or none, say
which. What is idle is not shown, nor is what was first asked for half a second ago. With
--kind, and without --name, it is the one with the name of its kind: "limit" or "counter";
it need not exist yet. Locks are never split, nor is what the nodes were told to keep whole with
--hot-whole.

--into says how many parts; otherwise there is one for each node on the ring. Two are on
one node only if there are more parts than nodes. What is split already stays as it is.

With --json: {"key", "name", "kind", "id": "…", "phase", "since": "…", "manual", "reason",
"parts": [{"part": from 0, "owner", "limit_share": of a limit, 0 to 1}]}.`,
		Example: `  keystead hot split tenant-42
  keystead hot split tenant-42 --kind limit --name api --into 3
  keystead hot split page:/index.html --kind counter --json | jq -r '.parts[].owner'`,
		Args: exactArgs("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("into") && (f.into < minParts || f.into > maxParts) {
				return usageError{fmt.Errorf("--into %d: choose %d to %d", f.into, minParts, maxParts)}
			}
			return f.split(cmd.Context(), std, args[0])
		},
	}
	f.flags(cmd)
	cmd.Flags().IntVar(&f.into, "into", 0, "how many parts, 2 to 64 (default: one for each node on the ring)")
	return cmd
}

func newHotMerge(std Process) *cobra.Command {
	var f splitFlags
	cmd := &cobra.Command{
		Use:   "merge KEY",
		Short: "Make a split limit or counter of a key whole again",
		Long: `Makes a limit or a counter of KEY whole that is split, by hand or because it was hot, and
waits until its owner serves it; calls on it wait meanwhile. What is still hot may be split
again soon, unless the nodes run with --hot-split off, or keep it whole with --hot-whole.

Without --kind, the object is found out: it is the one of KEY, and of --name if that is
given, that is split, if it is one. With --kind, and without --name, it is the one with the
name of its kind: "limit" or "counter".

With --json: {"key", "name", "kind"}.`,
		Example: `  keystead hot merge tenant-42
  keystead hot merge tenant-42 --kind limit --name api
  keystead hot merge page:/index.html --kind counter --json`,
		Args: exactArgs("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error { return f.merge(cmd.Context(), std, args[0]) },
	}
	f.flags(cmd)
	return cmd
}

// flags are those of remote, with another --timeout, and those that name an object.
func (f *splitFlags) flags(cmd *cobra.Command) {
	f.remote.flags(cmd)
	t := cmd.Flags().Lookup("timeout")
	f.timeout, t.DefValue = splitTimeout, splitTimeout.String()
	cmd.Flags().StringVar(&f.kind, "kind", "", "limit or counter (default: found out)")
	cmd.Flags().StringVar(&f.name, "name", "", "which limit or counter of the key (default: found out, or that of --kind)")
}

func (o hotObject) String() string {
	return fmt.Sprintf("%s %s of key %s", o.kind, strconv.Quote(o.name), strconv.Quote(o.key))
}

// split has an object split.
func (f *splitFlags) split(ctx context.Context, std Process, key string) error {
	o, err := f.object(ctx, key, f.busy)
	if err != nil {
		return err
	}
	var r *adminpb.SplitObjectResponse
	err = f.order(ctx, std, "splitting "+o.String(), func(ctx context.Context, c adminpb.AdminServiceClient) (err error) {
		r, err = c.SplitObject(ctx, &adminpb.SplitObjectRequest{Kind: kindOf(o.kind), Key: o.key, Name: o.name, Parts: uint32(f.into)})
		return err
	})
	if err != nil {
		return err
	}
	s := newSplitJSON(r.GetSplit())
	if f.json {
		return printJSON(std.Out, splitJSON{o.key, o.name, o.kind, s})
	}
	var owners []string
	for i := range s.Parts {
		owners = append(owners, s.Parts[i].owner())
	}
	already := ""
	switch {
	case !s.Manual:
		already = " (it was, because it is hot, and is merged when it no longer is)"
	case f.into > 0 && f.into != len(s.Parts):
		already = " (it was already: merge it first for another number)"
	}
	_, err = fmt.Fprintf(std.Out, "split: %s into %s: %s%s\n", o, plural(len(s.Parts), "part"), strings.Join(owners, ", "), already)
	return err
}

// merge has an object made whole.
func (f *splitFlags) merge(ctx context.Context, std Process, key string) error {
	o, err := f.object(ctx, key, f.apart)
	if err != nil {
		return err
	}
	err = f.order(ctx, std, "merging "+o.String(), func(ctx context.Context, c adminpb.AdminServiceClient) error {
		_, err := c.MergeObject(ctx, &adminpb.MergeObjectRequest{Kind: kindOf(o.kind), Key: o.key, Name: o.name})
		return err
	})
	if err != nil {
		return err
	}
	if f.json {
		return printJSON(std.Out, struct {
			Key  string `json:"key"`
			Name string `json:"name"`
			Kind string `json:"kind"`
		}{o.key, o.name, o.kind})
	}
	_, err = fmt.Fprintf(std.Out, "merged: %s is whole\n", o)
	return err
}

// object returns the object that is meant. find returns the candidates, and the error for the
// case that none of them is meant.
func (f *splitFlags) object(ctx context.Context, key string, find func(context.Context, string) ([]hotObject, error, error)) (hotObject, error) {
	switch f.kind {
	case kindLimit, kindCounter:
		o := hotObject{f.kind, key, f.name}
		if o.name == "" {
			o.name = f.kind
		}
		return o, nil
	case "":
	case "lock":
		return hotObject{}, usageError{errors.New(`--kind "lock": choose limit or counter` + "\n  hint: locks are never split: a lock is one place in one queue")}
	default:
		return hotObject{}, usageError{fmt.Errorf("--kind %q: choose limit or counter", f.kind)}
	}
	all, none, err := find(ctx, key)
	if err != nil {
		return hotObject{}, err
	}
	meant := func(o hotObject) bool { return o.key == key && (f.name == "" || o.name == f.name) }
	locks := slices.ContainsFunc(all, func(o hotObject) bool { return meant(o) && o.kind == "lock" })
	all = slices.DeleteFunc(all, func(o hotObject) bool { return !meant(o) || o.kind == "lock" })
	slices.SortFunc(all, func(a, b hotObject) int { return strings.Compare(a.kind+" "+a.name, b.kind+" "+b.name) })
	all = slices.Compact(all)
	switch {
	case len(all) == 1:
		return all[0], nil
	case len(all) > 1:
		var names []string
		for _, o := range all[:min(len(all), partsInLine)] {
			names = append(names, o.kind+" "+strconv.Quote(o.name))
		}
		if more := len(all) - len(names); more > 0 {
			names = append(names, fmt.Sprintf("%d more", more))
		}
		return hotObject{}, usageError{fmt.Errorf("key %q has several: %s\n  hint: say which with --kind and --name", key, strings.Join(names, ", "))}
	case locks:
		return hotObject{}, hinted{fmt.Errorf("of key %q only a lock is seen, and locks are never split", key), "name another object with --kind and --name"}
	}
	return hotObject{}, none
}

// busy returns the objects that are among the busiest of their nodes, and those that are split.
func (f *splitFlags) busy(ctx context.Context, key string) (all []hotObject, none, err error) {
	v, err := (&hotFlags{remote: f.remote}).askAll(ctx)
	if err != nil {
		return nil, nil, err
	}
	for i := range v.Keys {
		all = append(all, v.Keys[i].object())
	}
	silent := ""
	for _, n := range v.Nodes {
		if n.Error != "" {
			silent += ", and " + n.ID + " does not answer"
		}
	}
	return append(all, objectsOf(v.splits)...),
		hinted{fmt.Errorf("no limit or counter of key %q%s is among the busiest of a node%s", key, f.named(), silent), "say what it is with --kind limit or --kind counter, and --name"}, nil
}

// apart returns the objects that are split.
func (f *splitFlags) apart(ctx context.Context, key string) (all []hotObject, none, err error) {
	var r *clusterpb.ListHotResponse
	err = f.askCluster(ctx, func(ctx context.Context, c clusterpb.ClusterServiceClient) (err error) {
		r, err = c.ListHot(ctx, &clusterpb.ListHotRequest{MaxKeys: 1})
		return err
	})
	return objectsOf(r.GetSplits()), hinted{fmt.Errorf("nothing of key %q%s is split", key, f.named()), "`keystead hot` shows what is"}, err
}

// named returns the name that was asked for, if any.
func (f *splitFlags) named() string {
	if f.name == "" {
		return ""
	}
	return fmt.Sprintf(" with the name %q", f.name)
}

func objectsOf(splits []*clusterpb.Split) (all []hotObject) {
	for _, s := range splits {
		all = append(all, hotObject{word(s.Kind, "KIND_"), s.Key, s.Name})
	}
	return all
}

// order gives an order within --timeout, and reports on std.Err that it is under way if it
// lasts long. It does not retry what a node has answered: the node has tried for a while.
func (f *splitFlags) order(ctx context.Context, std Process, what string, order func(context.Context, adminpb.AdminServiceClient) error) error {
	end := showWaiting(std.Err, what)
	defer end()
	var refused error
	timedOut := false
	err := f.askAdmin(ctx, func(ctx context.Context, c adminpb.AdminServiceClient) error {
		err := order(ctx, c)
		timedOut = status.Code(err) == codes.DeadlineExceeded
		if errorReason(err) == "" {
			return err
		}
		refused = err
		return nil
	})
	switch {
	case err == nil:
		return refused
	case timedOut:
		return hinted{fmt.Errorf("no answer from %s within %s", f.addr, f.timeout), "it may be done all the same, or be under way: see `keystead hot`; allow more with --timeout"}
	}
	return err
}

// showWaiting shows what is waited for after splitQuiet: on a terminal in a line that is
// cleared by end, elsewhere in one that stays.
func showWaiting(out io.Writer, what string) (end func()) {
	stop := make(chan struct{})
	var done sync.WaitGroup
	began := time.Now()
	done.Go(func() {
		file, ok := out.(*os.File)
		bar := newProgress(out)
		defer bar.clear()
		for pause, first := splitQuiet, true; ; pause, first = barEvery, false {
			select {
			case <-stop:
				return
			case <-time.After(pause):
			}
			switch {
			case ok && isTerminal(file):
				bar.show(-1, fmt.Sprintf("%s  %s", time.Since(began).Truncate(time.Second), replay.Printable(what, waitingText)))
			case first:
				fmt.Fprintln(out, what)
			}
		}
	})
	return func() { close(stop); done.Wait() }
}
