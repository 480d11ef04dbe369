package cluster

import (
	"context"

	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
)

// kinds are the kinds of objects that can be split.
var kinds = map[string]commonpb.Kind{"limit": commonpb.Kind_KIND_LIMIT, "counter": commonpb.Kind_KIND_COUNTER}

// Split has a node split an object into so many parts. kind is "limit" or "counter", and
// the name that of the kind. It returns when the parts are served; errors are those of
// gRPC, and may leave the object split or whole.
func (n *Node) Split(ctx context.Context, kind, key string, parts int) error {
	_, err := adminpb.NewAdminServiceClient(n.conn).SplitObject(ctx, &adminpb.SplitObjectRequest{Kind: kinds[kind], Key: key, Parts: uint32(parts)})
	return err
}

// Merge has a node make an object whole. It returns when that is served; errors are as
// those of Split, InvalidArgument if the object is not split.
func (n *Node) Merge(ctx context.Context, kind, key string) error {
	_, err := adminpb.NewAdminServiceClient(n.conn).MergeObject(ctx, &adminpb.MergeObjectRequest{Kind: kinds[kind], Key: key})
	return err
}
