package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
)

const (
	maxHot     = 128 // of --top: as many as one node answers
	defaultTop = 20  // a screen of them
	// hotEvery is the pace of `hot --watch`: nodes recompute twice as often.
	hotEvery = time.Second
	// hotWait is how long another node than the one at --addr is waited for, --timeout
	// at most: a node that is gone must not keep the others from being shown.
	hotWait = 2 * time.Second
	// hotAtOnce is how many nodes are asked at a time.
	hotAtOnce = 16
)

type hotFlags struct {
	remote
	top    int
	watch  bool
	parts  bool
	colors colorMode
}

func (f *hotFlags) flags(cmd *cobra.Command) {
	f.remote.flags(cmd)
	f.colors.flags(cmd)
	cmd.Flags().IntVar(&f.top, "top", defaultTop, "keys to show, 1 to 128")
	cmd.Flags().BoolVar(&f.watch, "watch", false, "go on, and show it again every second")
	cmd.Flags().BoolVar(&f.parts, "parts", false, "show each part of what is split")
}

func newHot(std Process) *cobra.Command {
	var f hotFlags
	cmd := &cobra.Command{
		Use:   "hot",
		Short: "Show the busiest keys of all nodes, and which are hot",
		Long: `Asks all members of the cluster for their busiest keys and shows those with the
highest rates. RATE is in operations a second over the last ten seconds or so, at most;
SHARE is its part of all that the OWNER does. QUEUE is how many wait for a lock. STATE is
"hot" and for how long, for a key that surely has --hot-floor and --hot-factor times the
average of its owner's other keys; those are settings of the nodes. What is not printable
is escaped, and long keys are cut.

An object that is split into parts is one line, with what all parts have: STATE names
their nodes and how much of a limit each may spend, and says "opening" or "closing" while
calls on it wait, and "by hand" if it was split so. Split objects are shown beyond --top,
and also if they are not hot. --parts adds a line for each part, with "-" for what one does
that is not among the 128 busiest of its owner, and why the object is split.

Members are asked at their own addresses; one that does not answer is named, and the
others are shown. --watch shows it again every second, until Ctrl-C.

With --json: {"nodes": [{"id", "addr", "error": "" or why there is nothing of it, "epoch":
"…", "rate", "objects", "hot", "left_out", "floor", "factor"}], "keys": [{"key", "name",
"kind", "owner": "" if it is split, "rate": at most, "sure": at least, "share": 0 to 1,
"hot", "hot_for": seconds, "waiting", "split": null or {"id": "…", "phase": "opening",
"open" or "closing", "since": "…", "manual", "reason", "parts": [{"part": from 0, "owner",
"limit_share": 0 to 1, "rate", "sure", "share"}]}}]}, with --watch one line a second. The
last three are left out for a part that is not among the 128 busiest of its owner.`,
		Example: `  keystead hot
  keystead hot --top 5 --watch
  keystead hot --parts
  keystead hot --json | jq -r '.keys[] | select(.hot) | .key'
  keystead hot split tenant-42 --kind limit --name api`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return unknownCommand(cmd, args[0])
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.top < 1 || f.top > maxHot {
				return usageError{fmt.Errorf("--top %d: choose 1 to %d", f.top, maxHot)}
			}
			if f.watch {
				return f.follow(cmd.Context(), std)
			}
			v, err := f.ask(cmd.Context())
			if err != nil {
				return err
			}
			return f.show(std, v)
		},
	}
	f.flags(cmd)
	cmd.SuggestionsMinimumDistance = 2
	cmd.AddCommand(newHotSplit(std), newHotMerge(std))
	return cmd
}

// hotJSON is what `hot --json` prints.
type hotJSON struct {
	Nodes []hotNodeJSON `json:"nodes"` // by id
	Keys  []hotKeyJSON  `json:"keys"`  // the busiest first

	splits []*clusterpb.Split // of the cluster, by the node with the latest table
	epoch  uint64             // of that table
	again  int                // parts that are hot, but for one of each object
	parts  bool               // draw them
}

type hotNodeJSON struct {
	ID      string  `json:"id"`
	Addr    string  `json:"addr"`
	Error   string  `json:"error"`
	Epoch   string  `json:"epoch"`
	Rate    float64 `json:"rate"`
	Objects uint64  `json:"objects"`
	Hot     uint32  `json:"hot"`
	LeftOut uint64  `json:"left_out"`
	Floor   float64 `json:"floor"`
	Factor  float64 `json:"factor"`
}

type hotKeyJSON struct {
	Key     string  `json:"key"`
	Name    string  `json:"name"`
	Kind    string  `json:"kind"`
	Owner   string  `json:"owner"` // "" if it is split
	Rate    float64 `json:"rate"`
	Sure    float64 `json:"sure"`
	Share   float64 `json:"share"`
	Hot     bool    `json:"hot"`
	HotFor  seconds `json:"hot_for"`
	Waiting uint32  `json:"waiting"`

	Split *hotSplitJSON `json:"split"` // nil = it is whole

	part, of int // which of how many parts the entry is of; of is 0 for a whole object
}

// ask asks the node at --addr, which names the others, and then those.
func (f *hotFlags) ask(ctx context.Context) (*hotJSON, error) {
	v, err := f.askAll(ctx)
	if err != nil {
		return nil, err
	}
	v.parts = f.parts
	v.unite()
	v.sort(f.top)
	return v, nil
}

// askAll asks all members, and returns their entries as they are, one for each part. Each
// is asked for all that it shows, so that no part of an object is missing.
func (f *hotFlags) askAll(ctx context.Context) (*hotJSON, error) {
	var members []*clusterpb.MemberStatus
	var first *clusterpb.ListHotResponse
	err := f.askCluster(ctx, func(ctx context.Context, c clusterpb.ClusterServiceClient) error {
		m, err := c.ListMembers(ctx, &clusterpb.ListMembersRequest{})
		if err != nil {
			return err
		}
		members = m.Members
		first, err = c.ListHot(ctx, &clusterpb.ListHotRequest{MaxKeys: maxHot})
		return err
	})
	if err != nil {
		return nil, err
	}
	v := &hotJSON{Nodes: []hotNodeJSON{}, Keys: []hotKeyJSON{}}
	v.add(f.at(), first)
	var mu sync.Mutex // guards v
	var wg sync.WaitGroup
	slots := make(chan struct{}, hotAtOnce)
	for _, m := range members {
		if m.Id == first.Id || m.Member == nil { // asked already, or only gossiping
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			r, err := f.askMember(ctx, m.Member.GrpcAddr)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				msg, _ := explain(err)
				v.Nodes = append(v.Nodes, hotNodeJSON{ID: m.Id, Addr: m.Member.GrpcAddr, Error: msg})
				return
			}
			v.add(m.Member.GrpcAddr, r)
		})
	}
	wg.Wait()
	return v, nil
}

// askMember asks another member.
func (f *hotFlags) askMember(ctx context.Context, addr string) (r *clusterpb.ListHotResponse, err error) {
	other := remote{addr: addr, timeout: min(f.timeout, hotWait)}
	err = other.askCluster(ctx, func(ctx context.Context, c clusterpb.ClusterServiceClient) (err error) {
		r, err = c.ListHot(ctx, &clusterpb.ListHotRequest{MaxKeys: maxHot})
		return err
	})
	return r, err
}

// add merges the answer of a node.
func (v *hotJSON) add(addr string, r *clusterpb.ListHotResponse) {
	v.Nodes = append(v.Nodes, hotNodeJSON{
		ID: r.Id, Addr: addr, Epoch: fmt.Sprint(r.Epoch), Rate: r.Rate, Objects: r.Objects, Hot: r.Hot, LeftOut: r.LeftOut,
		Floor: r.Policy.GetFloor(), Factor: r.Policy.GetFactor(),
	})
	if r.Epoch >= v.epoch {
		v.splits, v.epoch = r.Splits, r.Epoch
	}
	for _, k := range r.Keys {
		share := 0.0
		if r.Rate > 0 {
			share = min(k.RateMax/r.Rate, 1)
		}
		v.Keys = append(v.Keys, hotKeyJSON{
			Key: k.Key, Name: k.Name, Kind: word(k.Kind, "KIND_"), Owner: r.Id, Rate: k.RateMax, Sure: k.RateMin, Share: share,
			Hot: k.Hot, HotFor: seconds(k.SinceNs), Waiting: k.Waiting, part: int(k.Part), of: int(k.Parts),
		})
	}
}

// sort orders the nodes and the keys, and keeps the busiest keys and all split ones.
func (v *hotJSON) sort(top int) {
	slices.SortFunc(v.Nodes, func(a, b hotNodeJSON) int { return strings.Compare(a.ID, b.ID) })
	slices.SortFunc(v.Keys, func(a, b hotKeyJSON) int {
		return cmp.Or(cmp.Compare(b.Rate, a.Rate), strings.Compare(a.Key, b.Key), strings.Compare(a.Name, b.Name), strings.Compare(a.Kind, b.Kind))
	})
	shown := v.Keys[:min(len(v.Keys), top)]
	for _, k := range v.Keys[len(shown):] {
		if k.Split != nil {
			shown = append(shown, k)
		}
	}
	v.Keys = shown
}

// show prints it once.
func (f *hotFlags) show(std Process, v *hotJSON) error {
	if f.json {
		return printJSON(std.Out, v)
	}
	_, err := io.WriteString(std.Out, v.draw(f.colors.canvas(std.Out)))
	return err
}

// follow shows it every second until a signal comes.
func (f *hotFlags) follow(ctx context.Context, std Process) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	s := &screen{out: std.Out, colors: f.colors}
	draws := func(v *hotJSON) error { return f.show(std, v) }
	gone := false // the node at --addr is gone, and that was reported
	lost := func(err error) {
		if !gone {
			printError(std.Err, err)
		}
	}
	resized := make(chan os.Signal, 1)
	if file, ok := std.Out.(*os.File); ok && isTerminal(file) && !f.json {
		draws, lost = func(v *hotJSON) error { return s.draws(v.draw) }, s.lost
		signal.Notify(resized, syscall.SIGWINCH)
		defer signal.Stop(resized)
	}
	defer s.end()
	next := time.NewTicker(hotEvery)
	defer next.Stop()
	for seen := false; ; {
		v, err := f.ask(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !seen:
			return err
		case err != nil:
			lost(err)
			gone = true
		default:
			seen, gone = true, false
			if err := draws(v); err != nil {
				return err
			}
		}
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return nil
			case <-resized:
				s.again()
			case <-next.C:
				waiting = false
			}
		}
	}
}
