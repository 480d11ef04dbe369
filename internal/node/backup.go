package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/keystead/keystead/handoff/disk"
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner"
)

// Bounds of a backup, with their reasons.
const (
	// backupPiece is the size of a message of a backup.
	backupPiece = 64 << 10
	// backupStall is how long a reader may take for a piece: a machine that swaps gets through.
	backupStall = 30 * time.Second
	// backupLimit bounds a backup: as long as one runs, what is overwritten stays on disk. 20 GiB
	// go by in it over a net of 1 Gbit/s.
	backupLimit = 4 * time.Minute
)

var errBackupRuns = &failure.Error{Reason: failure.Unavailable, RetryAfter: time.Second,
	Message: "another backup of this node is under way", Hint: "wait for its end"}

// backup sends what the store on disk has, all of one moment. It ends when the reader is too slow.
func (n *Node) backup(ctx context.Context, send func(data []byte, about int64) error) error {
	//guard:backup-one-at-a-time
	if !n.backingUp.CompareAndSwap(false, true) {
		return errBackupRuns
	}
	defer n.backingUp.Store(false)
	k := n.keeper()
	snap, err := k.Snapshot(ctx)
	if err != nil {
		return &failure.Error{Reason: failure.Unavailable, RetryAfter: time.Second, Message: "the backup cannot begin: " + err.Error(),
			Hint: "`keystead status` shows what is wrong with the disk"}
	}
	defer snap.Close()
	policies, err := n.policyFile()
	if err != nil {
		return fmt.Errorf("reading the policies: %w", err)
	}
	over := time.NewTimer(backupLimit)
	defer over.Stop()
	p := &pieces{ctx: ctx, send: send, over: over.C, stall: cmp.Or(n.stall, backupStall), about: k.Status().Store.DiskBytes}
	began := time.Now()
	if err = snap.Backup(p, policies); err == nil {
		err = p.flush()
	}
	n.cfg.Log.Info("a backup has ended", "bytes", p.sent, "took", time.Since(began).Round(time.Millisecond), "error", err)
	if err != nil && !errors.As(err, new(*failure.Error)) {
		return &failure.Error{Reason: failure.Unavailable, RetryAfter: time.Second, Message: "the backup has failed: " + err.Error(), Hint: "begin it anew; what was received is of no use"}
	}
	return err
}

// policyFile reads the file of the policies; nil = there is none.
func (n *Node) policyFile() ([]byte, error) {
	b, err := os.ReadFile(filepath.Join(n.cfg.DataDir, policiesFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return b, err
}

// pieces sends what is written to it in messages of one size, each of which the reader has to take
// in time.
type pieces struct {
	ctx   context.Context
	send  func(data []byte, about int64) error
	over  <-chan time.Time
	stall time.Duration
	about int64
	sent  int64
	buf   []byte
}

func (p *pieces) Write(b []byte) (n int, err error) {
	for n < len(b) {
		part := b[n:min(len(b), n+backupPiece-len(p.buf))]
		p.buf = append(p.buf, part...)
		n += len(part)
		if len(p.buf) == backupPiece {
			if err := p.flush(); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

// flush sends what there is. After an error nothing may be sent any more: the message may still be
// under way.
func (p *pieces) flush() error {
	data := p.buf
	p.buf = make([]byte, 0, backupPiece)
	p.sent += int64(len(data))
	done := make(chan error, 1)
	go func() { done <- p.send(data, p.about) }()
	stalled := time.NewTimer(p.stall)
	defer stalled.Stop()
	select {
	case err := <-done:
		return err
	case <-p.ctx.Done():
		return p.ctx.Err()
	case <-stalled.C:
		return slow(fmt.Sprintf("it took nothing for %s", p.stall))
	case <-p.over:
		return slow(fmt.Sprintf("it is not done after %s", backupLimit))
	}
}

func slow(why string) error {
	return &failure.Error{Reason: failure.Unavailable, RetryAfter: time.Second,
		Message: "the reader of the backup is too slow: " + why, Hint: "write it to a faster disk, or read it nearer to the node"}
}

// BackupInfo is what a backup has.
type BackupInfo struct {
	Node       string
	Epoch      uint64
	Written    time.Time
	Durability string
	Objects    int64
	Entries    int64
	Policies   bool
}

// Errors of a backup's file.
var (
	ErrBackupDamaged, ErrBackupNewer = disk.ErrBackupDamaged, disk.ErrBackupNewer
)

// VerifyBackup reads a backup through: checksums, and each object and entry.
func VerifyBackup(from io.Reader) (info BackupInfo, err error) {
	var r owner.Record
	b := &disk.Backup{
		Policies: func([]byte) error { info.Policies = true; return nil },
		Object: func(hash uint64, key, name, value []byte) error {
			info.Objects++
			return decodeObject(hash, key, name, value, &r)
		},
		Entry: func(clock int64, entry []byte) error {
			info.Entries++
			return decodeEntry(clock, entry, &r)
		},
	}
	if err := disk.ReadBackup(from, b); err != nil {
		return info, err
	}
	h := b.Head
	info.Node, info.Epoch, info.Written, info.Durability = h.Node, h.Epoch, time.Unix(0, h.Written).UTC(), h.Durability
	if h.Node == "" || h.Epoch == 0 || h.Epoch > owner.MaxEpoch || h.Cluster != "" {
		return info, fmt.Errorf("%w: its head says epoch %d of node %q in cluster %q", ErrBackupDamaged, h.Epoch, h.Node, h.Cluster)
	}
	return info, nil
}
