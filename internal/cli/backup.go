package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/internal/durably"
	"github.com/keystead/keystead/internal/node"
	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
)

type backupFlags struct {
	remote
	force bool
}

func newBackup(std Process) *cobra.Command {
	var f backupFlags
	cmd := &cobra.Command{
		Use:   "backup FILE",
		Short: "Back up a node that runs alone, while it serves",
		Long: `Writes what the node at --addr has on disk to FILE: all objects of one moment, the end of a
round, with their request ids and the node's policies. The node serves meanwhile. It has to run
alone, with --data-dir and --durability interval or always; one of a cluster cannot be backed up
while it runs.

The file is written beside its place (FILE.partial), synced, read back and checked, and renamed:
FILE is whole or not there. A FILE that is there stays, but for --force. --timeout is how long
the node may send nothing. "keystead restore" makes a data directory of the file. It shows all
keys and values to those who can read it, and has mode 0600.

With --json: {"file": "…", "node": "…", "epoch": number, "written": "RFC 3339", "durability":
"…", "objects": number, "request_id_entries": number, "policies": bool, "bytes": number}.`,
		Example: `  keystead backup /backup/keystead-$(date +%F)
  keystead backup /backup/keystead --force --addr 10.0.0.1:7400`,
		Args: exactArgs("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd.Context(), std, args[0])
		},
	}
	f.flags(cmd)
	cmd.Flags().BoolVar(&f.force, "force", false, "replace FILE if it is there")
	_ = cmd.Flags().Set("timeout", "30s")
	cmd.Flags().Lookup("timeout").DefValue = "30s"
	return cmd
}

func (f *backupFlags) run(ctx context.Context, std Process, path string) error {
	if _, err := os.Lstat(path); err == nil && !f.force {
		return hinted{fmt.Errorf("%s is there already", path), "choose another file, or --force to replace it"}
	}
	bar := newProgress(std.Err)
	defer bar.clear()
	partial := path + ".partial"
	if err := f.receive(ctx, partial, bar); err != nil {
		_ = os.Remove(partial)
		return err
	}
	info, size, err := checkBackup(partial, bar)
	if err != nil {
		_ = os.Remove(partial)
		return hinted{fmt.Errorf("what was received is no backup: %w", err), "try again; if it stays so, look after the disk of the node (`keystead disk verify`) and that of FILE"}
	}
	if err := os.Rename(partial, path); err != nil {
		_ = os.Remove(partial)
		return err
	}
	if err := durably.Names(filepath.Dir(path)); err != nil {
		return err
	}
	bar.clear()
	if f.json {
		return printJSON(std.Out, backupJSONOf(path, info, size))
	}
	_, err = fmt.Fprintf(std.Out, "backed up node %s as of %s to %s: %d objects, %d bytes\n", printable(info.Node), info.Written.Format(time.RFC3339), path, info.Objects, size)
	return err
}

// backupJSON is what backup and restore print.
type backupJSON struct {
	File       string    `json:"file"`
	Node       string    `json:"node"`
	Epoch      uint64    `json:"epoch"`
	Written    time.Time `json:"written"`
	Durability string    `json:"durability"`
	Objects    int64     `json:"objects"`
	Entries    int64     `json:"request_id_entries"`
	Policies   bool      `json:"policies"`
	Bytes      int64     `json:"bytes"`
}

func backupJSONOf(file string, i node.BackupInfo, size int64) backupJSON {
	return backupJSON{File: file, Node: i.Node, Epoch: i.Epoch, Written: i.Written, Durability: i.Durability, Objects: i.Objects, Entries: i.Entries, Policies: i.Policies, Bytes: size}
}

// receive writes what the node sends to a file, and syncs it.
func (f *backupFlags) receive(ctx context.Context, path string, bar *progress) error {
	conn, err := f.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := fmt.Errorf("the node has sent nothing for %s", f.timeout)
	watch := time.AfterFunc(f.timeout, func() { cancel(stalled) })
	defer watch.Stop()
	stream, err := adminpb.NewAdminServiceClient(conn).Backup(ctx, &adminpb.BackupRequest{})
	if err != nil {
		return f.failed(ctx, err, stalled)
	}
	for got := int64(0); ; {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return f.failed(ctx, err, stalled)
		}
		watch.Reset(f.timeout)
		if _, err := file.Write(r.Data); err != nil {
			return hinted{err, "make room, or choose another FILE"}
		}
		got += int64(len(r.Data))
		bar.show(float64(got)/float64(max(int64(r.BytesExpected), got, 1)), fmt.Sprintf("%d MiB", got>>20))
	}
	if err := errors.Join(file.Sync(), file.Close()); err != nil {
		return hinted{err, "make room, or choose another FILE"}
	}
	return nil
}

// failed says why a stream has ended.
func (f *backupFlags) failed(ctx context.Context, err, stalled error) error {
	switch cause := context.Cause(ctx); {
	case cause == nil:
		return f.explain(err)
	case errors.Is(cause, stalled):
		return hinted{stalled, "allow more with --timeout, if `keystead status --addr " + f.addr + "` answers"}
	}
	if status.Convert(err).Message() == context.Canceled.Error() {
		return context.Canceled
	}
	return err
}

// checkBackup reads a file through.
func checkBackup(path string, bar *progress) (info node.BackupInfo, size int64, err error) {
	file, err := os.Open(path)
	if err != nil {
		return info, 0, err
	}
	defer file.Close()
	stat, err := file.Stat()
	if err != nil {
		return info, 0, err
	}
	info, err = node.VerifyBackup(&shownReader{r: file, size: stat.Size(), what: "checking", bar: bar})
	return info, stat.Size(), err
}

// shownReader shows how much of a file was read.
type shownReader struct {
	r          io.Reader
	size, read int64
	what       string
	bar        *progress
}

func (s *shownReader) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	s.read += int64(n)
	s.bar.show(float64(s.read)/float64(max(s.size, 1)), s.what)
	return n, err
}
