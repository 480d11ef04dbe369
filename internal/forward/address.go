package forward

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc/metadata"

	"github.com/keystead/keystead/internal/failure"
)

// namedSince is the level from which on all members send these headers.
const namedSince = 3

// meant refuses a stream that is for another node, or for a node of another cluster.
func (r *Router) meant(ctx context.Context) error {
	cluster, target := metadata.ValueFromIncomingContext(ctx, ClusterHeader), metadata.ValueFromIncomingContext(ctx, TargetHeader)
	t := r.cfg.Cluster.Table()
	named := len(cluster) > 0 || len(target) > 0
	switch {
	case !named &&
		!t.Uses(namedSince): //guard:stream-without-names
		return nil // the sender is of a version before
	//guard:stream-names-its-cluster
	case t.UID != "" && !slices.Equal(cluster, []string{t.UID}):
		return misdirected(fmt.Sprintf("this node is of the cluster %s, and the call is for %q", t.UID, cluster))
	//guard:stream-names-its-node
	case r.cfg.Node != "" && !slices.Equal(target, []string{r.cfg.Node}):
		return misdirected(fmt.Sprintf("this node is %s, and the call is for %q", r.cfg.Node, target))
	}
	return nil
}

func misdirected(what string) error {
	return &failure.Error{Reason: failure.NotOwner, Message: what + "; nothing happened",
		Hint: "the address was another node's before: restart nodes under addresses of their own"}
}
