package cli

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/keystead/keystead/internal/node"
)

func newRestore(std Process) *cobra.Command {
	var dir, id string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Make the data directory of a node of a backup",
		Long: `Reads all of FILE, which "keystead backup" wrote, checks it, and makes --data-dir of it, for a
node that runs alone as --id. The directory must be empty or not there: nothing is overwritten.
Stop the node that was backed up, if it runs: both would answer for the same keys. A restore
that was interrupted is no data directory, and no node starts there: run it again.

The node that starts there goes on from the moment of the backup: leases have left what they had
left then. What was answered since is lost, and answers say so for --max-lock-ttl. Its epoch,
fencing tokens, ids and versions are above all that were given, if the clock is right; if the
node was started with --epoch-floor ahead of the clock, start it with a greater one.

With --json: as "keystead backup --json", with "data_dir" and "id".`,
		Example: `  keystead restore /backup/keystead-2026-11-24 --data-dir /var/lib/keystead --id n1
  keystead server --data-dir /var/lib/keystead --id n1`,
		Args: exactArgs("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if dir == "" || id == "" {
				return usageError{errors.New("--data-dir and --id are required: where to, and as which node")}
			}
			return restore(std, args[0], dir, id, asJSON)
		},
	}
	cmd.Flags().StringVar(&dir, "data-dir", "", "`DIR` to make, of the node that will start there")
	cmd.Flags().StringVar(&id, "id", "", "`NAME` of that node")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func restore(std Process, path, dir, id string, asJSON bool) error {
	bar := newProgress(std.Err)
	defer bar.clear()
	info, size, err := checkBackup(path, bar)
	if err != nil {
		return backupHint(path, err)
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	switch err := node.Restore(&shownReader{r: file, size: size, what: "restoring", bar: bar}, dir, id, time.Now()); {
	case errors.Is(err, node.ErrNotEmpty):
		return hinted{err, "choose another --data-dir, or move what is there away"}
	case err != nil:
		return hinted{fmt.Errorf("restoring into %s has failed, and nothing there counts: %w", dir, backupHint(path, err)), "make room or mend the disk if it is that, and run it again"}
	}
	bar.clear()
	if asJSON {
		return printJSON(std.Out, struct {
			backupJSON
			Dir string `json:"data_dir"`
			ID  string `json:"id"`
		}{backupJSONOf(path, info, size), dir, id})
	}
	_, err = fmt.Fprintf(std.Out, "restored node %s as of %s into %s: %d objects\nstart it with: keystead server --id %s --data-dir %s\n", printable(info.Node), info.Written.Format(time.RFC3339), dir, info.Objects, id, dir)
	return err
}

// backupHint says what to do about a backup that cannot be read.
func backupHint(path string, err error) error {
	switch {
	case errors.Is(err, node.ErrBackupNewer):
		return hinted{fmt.Errorf("%s: %w", path, err), "use a keystead of at least the version that wrote it"}
	case errors.Is(err, node.ErrBackupDamaged) || errors.Is(err, node.ErrDiskDamaged):
		return hinted{fmt.Errorf("%s: %w", path, err), "use another backup: nothing of this one is restored"}
	}
	return err
}
