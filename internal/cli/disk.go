package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/internal/node"
	"github.com/keystead/keystead/owner"
)

func newDisk(std Process) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "disk",
		Short: "Read and check what a stopped node has on disk",
		Long: `Reads the store on disk that a node keeps in its --data-dir, while it does not run. Nothing
there changes.`,
		Example: `  keystead disk inspect /var/lib/keystead
  keystead disk verify /var/lib/keystead`,
	}
	onlySubcommands(cmd)
	cmd.AddCommand(newDiskInspect(std), newDiskVerify(std))
	return cmd
}

// largestShown is how many keys `disk inspect` names.
const largestShown = 10

// processesShown is how many of the processes that have had a disk `disk inspect` names, the last ones.
const processesShown = 5

// offlineHint says what to do about a data directory that cannot be read.
func offlineHint(err error) error {
	switch {
	case errors.Is(err, node.ErrDiskDamaged):
		return hinted{err, "`keystead disk verify DIR` says all that is wrong; restore a backup (`keystead restore`), or move its directory `disk` away and begin anew"}
	case errors.Is(err, node.ErrDiskNewer):
		return hinted{err, "use the keystead that wrote it"}
	case errors.Is(err, node.ErrDiskInUse):
		return hinted{err, "stop that first"}
	}
	return err
}

func newDiskInspect(std Process) *cobra.Command {
	var key string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "inspect DIR",
		Short: "Show what a stopped node has on disk: whose it is, of when, and how much of what",
		Long: `Shows what the store on disk says in DIR, the --data-dir of a node that is stopped: the node
and its last epoch, whether it was stopped in order, when it wrote last and under which
durability; objects by kind, and the keys that take most. Of a node of a cluster it also shows
the processes that have had the disk: by these the cluster knows which keys wait for it. With --key it shows the
objects of one key with their states, as of that moment. It changes nothing.

With --json: {"dir": "…", "node": "…", "epoch": number, "stopped_in_order": bool, "durability":
"…", "written": "RFC 3339", "clock": seconds of the disk's clock, "program": "…", "objects":
{"KIND": number}, "bytes": of the objects, "request_id_entries": number, "request_id_bytes",
"largest": [{"key", "objects", "bytes"}], "stores": [{"number", "dir", "counts": bool, "whole":
bool, "error"}], "unused": why a node would not go on from it,
"restored": the time of the backup that it is of, as long as no node has run on it, "cluster": "…",
"processes": [{"incarnation": "…", "stopped_in_order": bool}]}. With --key: {"key": "…",
"written", "objects": as "keystead key --json"}.`,
		Example: `  keystead disk inspect /var/lib/keystead
  keystead disk inspect /var/lib/keystead --key alice
  keystead disk inspect /var/lib/keystead --json | jq .objects`,
		Args: exactArgs("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := node.OpenOffline(args[0])
			if err != nil {
				return offlineHint(err)
			}
			defer o.Close()
			x, err := countingStore(o)
			if err != nil {
				return offlineHint(err)
			}
			if cmd.Flags().Changed("key") {
				return offlineHint(inspectKey(cmd.Context(), std.Out, x, key, asJSON))
			}
			v, err := inspectDisk(cmd.Context(), std.Err, o, x)
			if err != nil {
				return offlineHint(err)
			}
			if asJSON {
				return printJSON(std.Out, v)
			}
			return v.print(std.Out)
		},
	}
	cmd.Flags().StringVar(&key, "key", "", "show the objects of this `KEY`")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// countingStore returns the store that counts, or why there is none.
func countingStore(o *node.Offline) (*node.OfflineStore, error) {
	if x := o.Counting(); x != nil {
		return x, nil
	}
	for _, s := range slices.Backward(o.Stores) {
		if s.Err != nil {
			return nil, s.Err
		}
	}
	return nil, hinted{fmt.Errorf("no store in %s is whole: its node ended before it had written anything", o.Dir), "a node that starts there begins with nothing"}
}

// inspectKey shows the objects of a key.
func inspectKey(ctx context.Context, out io.Writer, x *node.OfflineStore, key string, asJSON bool) error {
	dial, stop, n, err := x.ServeKey(key)
	if err != nil {
		return err
	}
	defer stop()
	c, err := client.Config{Timeout: time.Minute, DialOptions: []grpc.DialOption{grpc.WithContextDialer(dial)}}.Dial(ctx, node.OfflineAddr)
	if err != nil {
		return err
	}
	defer c.Close()
	k, err := c.Admin().InspectKey(ctx, key)
	if err != nil {
		return err
	}
	written := time.Unix(0, x.Head.Written).UTC()
	if asJSON {
		return printJSON(out, struct {
			Key     string       `json:"key"`
			Written time.Time    `json:"written"`
			Objects []objectJSON `json:"objects"`
		}{key, written, keyJSONOf(&k).Objects})
	}
	fmt.Fprintf(out, "key      %s\nas of    %s\nobjects  %d\n", printable(key), written.Format(time.RFC3339), n)
	if n == 0 {
		return nil
	}
	fmt.Fprintln(out)
	return printObjects(out, &k)
}

// inspectedJSON is what `disk inspect --json` prints.
type inspectedJSON struct {
	Dir        string           `json:"dir"`
	Node       string           `json:"node"`
	Epoch      uint64           `json:"epoch"`
	Clean      bool             `json:"stopped_in_order"`
	Durability string           `json:"durability"`
	Written    time.Time        `json:"written"`
	Clock      seconds          `json:"clock"`
	Program    string           `json:"program"`
	Objects    map[string]int64 `json:"objects"`
	Bytes      int64            `json:"bytes"`
	Entries    int64            `json:"request_id_entries"`
	EntryBytes int64            `json:"request_id_bytes"`
	Largest    []keySizeJSON    `json:"largest"`
	Stores     []storeJSON      `json:"stores"`
	Unused     string           `json:"unused,omitempty"`
	Restored   *time.Time       `json:"restored,omitempty"`
	Cluster    string           `json:"cluster,omitempty"`
	Processes  []tenureJSON     `json:"processes,omitempty"` // that have had the disk, in order

	lossless bool
}

// tenureJSON is a process of a node of a cluster that has had the disk.
type tenureJSON struct {
	Incarnation string `json:"incarnation"`
	Clean       bool   `json:"stopped_in_order"`
}

type keySizeJSON struct {
	Key     string `json:"key"`
	Objects int64  `json:"objects"`
	Bytes   int64  `json:"bytes"`
}

type storeJSON struct {
	Number int    `json:"number"`
	Dir    string `json:"dir"`
	Counts bool   `json:"counts"`
	Whole  bool   `json:"whole"`
	Error  string `json:"error,omitempty"`
}

func storesJSON(o *node.Offline) (all []storeJSON) {
	for _, s := range o.Stores {
		j := storeJSON{Number: s.Number, Dir: s.Dir, Counts: s.Counts, Whole: s.Whole}
		if s.Err != nil {
			j.Error = s.Err.Error()
		}
		all = append(all, j)
	}
	return all
}

// inspectDisk reads all that a store has.
func inspectDisk(ctx context.Context, progressTo io.Writer, o *node.Offline, x *node.OfflineStore) (*inspectedJSON, error) {
	v := &inspectedJSON{Dir: x.Dir, Node: x.Head.Node, Epoch: x.Head.Epoch, Clean: x.Head.Clean, Durability: x.Head.Durability,
		Written: time.Unix(0, x.Head.Written).UTC(), Clock: seconds(x.Head.Clock), Program: x.Head.Version, Objects: map[string]int64{}, Largest: []keySizeJSON{},
		Stores: storesJSON(o), Unused: o.Unused, lossless: x.Lossless()}
	v.Cluster = x.Head.Cluster
	for _, t := range x.Had {
		v.Processes = append(v.Processes, tenureJSON{strconv.FormatUint(t.Incarnation, 10), t.Stopped})
	}
	if at := x.Head.Restored; at != 0 {
		t := time.Unix(0, at).UTC()
		v.Restored = &t
	}
	bar := newProgress(progressTo)
	defer bar.clear()
	var last keySizeJSON
	count := func() {
		if last.Objects > 0 {
			v.Largest = append(v.Largest, last)
		}
		if len(v.Largest) >= 2*largestShown {
			v.cut()
		}
	}
	err := x.Read(ctx, node.Items{
		Object: func(r *owner.Record, size int) error {
			if string(r.Key) != last.Key || last.Objects == 0 {
				count()
				last = keySizeJSON{Key: string(r.Key)}
			}
			last.Objects++
			last.Bytes += int64(size)
			v.Objects[r.Kind.String()]++
			v.Bytes += int64(size)
			bar.show(-1, fmt.Sprintf("%d MiB read", v.Bytes>>20))
			return nil
		},
		Entry: func(_ *owner.Record, size int) error {
			v.Entries++
			v.EntryBytes += int64(size)
			return nil
		},
	})
	count()
	v.cut()
	return v, err
}

// cut leaves the largest keys.
func (v *inspectedJSON) cut() {
	slices.SortFunc(v.Largest, func(a, b keySizeJSON) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Key, b.Key))
	})
	v.Largest = v.Largest[:min(len(v.Largest), largestShown)]
}

func (v *inspectedJSON) print(out io.Writer) error {
	stopped := "in order: nothing is lost"
	if !v.Clean {
		stopped = "not in order: what was answered in its last moments may be lost"
		if v.lossless {
			stopped = "not in order; all that was answered is here"
		}
	}
	total := int64(0)
	for _, n := range v.Objects {
		total += n
	}
	if v.Restored != nil {
		stopped = "never: restored from a backup of " + v.Restored.Format(time.RFC3339) + ", and no node has run on it"
	}
	fmt.Fprintf(out, "node         %s\nepoch        %d\nstopped      %s\ndurability   %s\nwritten      %s\ndisk's clock %s\nprogram      %s\nstore        %s\n",
		printable(v.Node), v.Epoch, stopped, v.Durability, v.Written.Format(time.RFC3339), people(time.Duration(v.Clock)), orDash(v.Program), v.Dir)
	fmt.Fprintf(out, "objects      %d, %d bytes\nrequest ids  %d entries, %d bytes\n", total, v.Bytes, v.Entries, v.EntryBytes)
	if v.Cluster != "" {
		fmt.Fprintf(out, "cluster      %s\n", printable(v.Cluster))
	}
	for _, p := range v.Processes[max(0, len(v.Processes)-processesShown):] {
		fmt.Fprintf(out, "process      %s%s\n", p.Incarnation, map[bool]string{true: ", stopped in order"}[p.Clean])
	}
	for _, s := range v.Stores {
		if !s.Counts {
			fmt.Fprintf(out, "beside it    %s: %s\n", s.Dir, beside(s))
		}
	}
	if v.Unused != "" {
		fmt.Fprintf(out, "unused       %s\n", v.Unused)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if len(v.Objects) > 0 {
		fmt.Fprintln(w, "\nKIND\tOBJECTS")
	}
	for _, kind := range slices.Sorted(maps.Keys(v.Objects)) {
		fmt.Fprintf(w, "%s\t%d\n", kind, v.Objects[kind])
	}
	if len(v.Largest) > 0 {
		fmt.Fprintln(w, "\nLARGEST KEYS\tOBJECTS\tBYTES")
	}
	for _, k := range v.Largest {
		fmt.Fprintf(w, "%s\t%d\t%d\n", printable(k.Key), k.Objects, k.Bytes)
	}
	return w.Flush()
}

// beside says what a store is that does not count.
func beside(s storeJSON) string {
	switch {
	case s.Error != "":
		return "cannot be opened: " + s.Error
	case !s.Whole:
		return "was begun after a failure of the disk and never became whole; it does not count, and the next start removes it"
	}
	return "is of before a failure of the disk; it does not count any more, and the next start removes it"
}
