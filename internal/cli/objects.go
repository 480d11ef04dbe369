package cli

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/keystead/keystead/client"
)

func newKey(std Process) *cobra.Command {
	var f remote
	cmd := &cobra.Command{
		Use:   "key KEY",
		Short: "Show all that there is of a key: its owner, and its objects with their states",
		Long: `Shows who owns KEY, who stands by for it, and each of its objects, at most 1,000: kind,
name, time since its last change, state, and into how many parts it is split.

With --json: {"owner": "…", "owner_addr": "…", "standby": "…", "epoch": number, "objects":
[{"kind": "…", "name": "…", "idle": seconds, "state": "…", "parts": number}]},
"truncated": true if there are more objects, and in the grace period of a loss
"lost_epoch": number, "lost_in_part": true if what was answered last is all that may be
lost, and "recovering": seconds that it still lasts.`,
		Example: `  keystead key alice`,
		Args:    exactArgs("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			node, err := f.client(cmd.Context())
			if err != nil {
				return err
			}
			defer node.Close()
			k, err := node.Admin().InspectKey(cmd.Context(), args[0])
			if err != nil {
				return node.explain(err)
			}
			if f.json {
				return printJSON(std.Out, keyJSONOf(&k))
			}
			return printKey(std.Out, &k)
		},
	}
	f.flags(cmd)
	return cmd
}

// keyJSON is what `key --json` prints.
type keyJSON struct {
	Owner     string       `json:"owner"`
	OwnerAddr string       `json:"owner_addr"`
	Standby   string       `json:"standby"`
	Epoch     uint64       `json:"epoch"`
	Lost      uint64       `json:"lost_epoch,omitempty"`
	InPart    bool         `json:"lost_in_part,omitempty"`
	Recovers  seconds      `json:"recovering,omitempty"`
	Objects   []objectJSON `json:"objects"`
	Truncated bool         `json:"truncated,omitempty"`
}

type objectJSON struct {
	Kind  string  `json:"kind"`
	Name  string  `json:"name"`
	Idle  seconds `json:"idle"`
	State string  `json:"state"`
	Parts int     `json:"parts,omitempty"`
}

func keyJSONOf(k *client.KeyState) keyJSON {
	j := keyJSON{Owner: k.Owner, OwnerAddr: k.OwnerAddr, Standby: k.Standby, Epoch: k.Epoch, Lost: k.LostEpoch, InPart: k.LostInPart, Recovers: seconds(k.Recovering), Objects: []objectJSON{}, Truncated: k.Truncated}
	for i := range k.Objects {
		o := &k.Objects[i]
		x := objectJSON{Kind: o.Kind.String(), Name: o.Name, Idle: seconds(o.Idle), State: stateText(o)}
		if o.Split != nil {
			x.Parts = len(o.Split.Owners)
		}
		j.Objects = append(j.Objects, x)
	}
	return j
}

// stateText is the state of an object in words.
func stateText(o *client.ObjectState) string {
	switch {
	case o.Limit != nil:
		over := ""
		if x := o.Limit.Override; x != nil {
			over = "; overridden: " + overrideText(x)
			if o.Limit.Rate.Limit == 0 {
				return "nothing spent" + over
			}
		}
		return fmt.Sprintf("%d spent at %d/%s, %s%s", o.Limit.Spent, o.Limit.Rate.Limit, cmp.Or(o.Limit.Calendar, o.Limit.Rate.Period.String()), fullIn(o.Limit.ResetAfter), over)
	case o.Counter != nil:
		return fmt.Sprintf("%d at version %d", o.Counter.Value, o.Counter.Version)
	case o.Lock != nil && o.Lock.Holder != nil:
		return fmt.Sprintf("held by %q, token %d, %d waiting", o.Lock.Holder.ID, o.Lock.Holder.Token, o.Lock.Waiting)
	case o.Lock != nil:
		return fmt.Sprintf("free, %d waiting", o.Lock.Waiting)
	case o.Register != nil && o.Register.Exists:
		return fmt.Sprintf("%d bytes at version %d%s", o.Register.Size, o.Register.Version, fenceText(o.Register.Fence))
	case o.Register != nil:
		return "removed" + fenceText(o.Register.Fence)
	case o.Semaphore != nil:
		return fmt.Sprintf("%d of %d permits held, %d waiting", o.Semaphore.Held, o.Semaphore.Capacity, o.Semaphore.Waiting)
	case o.Once != nil && o.Once.Done:
		return fmt.Sprintf("done, %d bytes kept for %s", o.Once.Size, people(o.Once.TTL))
	case o.Once != nil:
		return fmt.Sprintf("under way by %q, token %d, attempt %d", o.Once.Holder, o.Once.Token, o.Once.Attempt)
	case o.Election != nil && o.Election.Leader != nil:
		return fmt.Sprintf("led by %q, token %d, %d waiting", o.Election.Leader.Candidate, o.Election.Leader.Token, o.Election.Waiting)
	case o.Election != nil:
		return fmt.Sprintf("nobody leads, %d waiting", o.Election.Waiting)
	case o.Admission != nil:
		return fmt.Sprintf("%d holds", o.Admission.Holds)
	case o.Group != nil:
		return fmt.Sprintf("%d members", o.Group.Members)
	case o.Barrier != nil:
		return fmt.Sprintf("%d of %d parties have arrived", o.Barrier.Arrived, o.Barrier.Parties)
	}
	return "of a kind that this program does not know"
}

func fenceText(fence uint64) string {
	if fence == 0 {
		return ""
	}
	return fmt.Sprintf(", fence %d", fence)
}

func printKey(out io.Writer, k *client.KeyState) error {
	mark := graceMark(k.LostEpoch)
	if k.LostInPart {
		mark = fmt.Sprintf("  (what was answered last may be lost, in epoch %d, and the grace period of that runs)", k.LostEpoch)
	}
	fmt.Fprintf(out, "owner    %s%s\nstandby  %s\n", orDash(k.Owner), mark, orDash(k.Standby))
	if len(k.Objects) == 0 {
		_, err := fmt.Fprintln(out, "objects  none")
		return err
	}
	fmt.Fprintln(out)
	return printObjects(out, k)
}

func printObjects(out io.Writer, k *client.KeyState) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "KIND\tNAME\tIDLE\tSTATE")
	for i := range k.Objects {
		o := &k.Objects[i]
		split := ""
		if o.Split != nil {
			split = fmt.Sprintf(", split into %d parts since", len(o.Split.Owners))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s%s\n", o.Kind, printable(o.Name), people(o.Idle), stateText(o), split)
	}
	if k.Truncated {
		fmt.Fprintln(w, "…")
	}
	return w.Flush()
}

// printable is a key or a name as it is shown: what could move a cursor is quoted.
func printable(s string) string {
	if q := strconv.Quote(s); q != `"`+s+`"` {
		return q
	}
	return s
}

func newObjects(std Process) *cobra.Command {
	var f remote
	var filter client.Filter
	var kind string
	cmd := &cobra.Command{
		Use:   "objects",
		Short: "List the objects that there are, node by node",
		Long: `Lists the objects of all nodes, or of --node, each with its kind, key and name. Use
--prefix, --name and --kind to see some. Each node looks through all its objects.

An object that is there all the time is listed once, but for those with keys that go from one
node to another meanwhile: a line on standard error says so.

With --json: one {"node": "…", "kind": "…", "key": "…", "name": "…"} a line.`,
		Example: `  keystead objects --prefix tenant-42: --kind counter
  keystead objects --node n1 --name api`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			kinds := map[string]client.Kind{"": 0, "limit": client.KindLimit, "counter": client.KindCounter, "lock": client.KindLock, "register": client.KindRegister, "semaphore": client.KindSemaphore, "once": client.KindOnce, "election": client.KindElection, "barrier": client.KindBarrier, "group": client.KindGroup, "admission": client.KindAdmission}
			var ok bool
			if filter.Kind, ok = kinds[kind]; !ok {
				return usageError{fmt.Errorf("--kind %q: choose limit, counter, lock, register, semaphore, once, election, barrier, group or admission", kind)}
			}
			node, err := f.client(cmd.Context())
			if err != nil {
				return err
			}
			defer node.Close()
			out := bufio.NewWriter(std.Out)
			var failed error
			moved, err := node.Admin().ListObjects(cmd.Context(), filter, func(node string, o client.Object) bool {
				failed = printObject(out, f.json, node, o)
				return failed == nil
			})
			if err = node.explain(err); err == nil {
				err = failed
			}
			if err == nil && moved {
				fmt.Fprintln(std.Err, "keystead: keys have moved between nodes meanwhile: some objects may be missing, or listed twice")
			}
			if flushed := out.Flush(); err == nil {
				err = flushed
			}
			return err
		},
	}
	f.flags(cmd)
	cmd.Flags().StringVar(&filter.Node, "node", "", "only objects of this node")
	cmd.Flags().StringVar(&kind, "kind", "", "only limit, counter, lock, register, semaphore, once, election, barrier, group or admission")
	cmd.Flags().StringVar(&filter.Name, "name", "", "only objects of this name")
	cmd.Flags().StringVar(&filter.Prefix, "prefix", "", "only keys that begin so")
	return cmd
}

func printObject(out io.Writer, json bool, node string, o client.Object) error {
	if json {
		return printJSON(out, struct {
			Node string `json:"node"`
			Kind string `json:"kind"`
			Key  string `json:"key"`
			Name string `json:"name"`
		}{node, o.Kind.String(), o.Key, o.Name})
	}
	_, err := fmt.Fprintf(out, "%-8s %-8s %s  %s\n", node, o.Kind, printable(o.Key), printable(o.Name))
	return err
}
