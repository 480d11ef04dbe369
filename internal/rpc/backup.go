package rpc

import (
	"github.com/keystead/keystead/internal/failure"
	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
)

var (
	errNoBackup = &failure.Error{Reason: failure.Invalid, Message: "this node keeps nothing on disk, and only what is there can be backed up",
		Hint: "start it with --data-dir and --durability interval or always"}
	errNoClusterBackup = &failure.Error{Reason: failure.Invalid, Message: "this node is one of a cluster, which cannot be backed up while it runs",
		Hint: "only nodes that run alone can; docs/operations.md tells how to copy the directories of a cluster that is stopped"}
)

// Backup implements the AdminService.
func (a *admin) Backup(_ *adminpb.BackupRequest, stream adminpb.AdminService_BackupServer) error {
	switch {
	case a.s.cfg.Cluster != nil:
		return a.s.refuse(errNoClusterBackup)
	case a.s.cfg.Backup == nil:
		return a.s.refuse(errNoBackup)
	}
	err := a.s.cfg.Backup(stream.Context(), func(data []byte, about int64) error {
		return stream.Send(&adminpb.BackupResponse{Data: data, BytesExpected: uint64(max(about, 0))})
	})
	if err != nil {
		return a.s.refuse(err)
	}
	return nil
}
