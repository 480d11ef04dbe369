package rpc

import (
	"context"
	"time"

	"github.com/keystead/keystead/internal/failure"
	idpb "github.com/keystead/keystead/proto/keystead/id/v1"
)

// IDs hands out numbers that nobody was given before.
type IDs interface {
	// Next returns the first of n numbers that follow each other. Its errors are
	// *failure.Error, or those of the context.
	Next(ctx context.Context, n int) (first uint64, err error)
}

// idService is the IdService.
type idService struct {
	idpb.UnimplementedIdServiceServer
	s *Server
}

var errNoIDs = &failure.Error{Reason: failure.Unavailable, RetryAfter: time.Second,
	Message: "this node gives no ids", Hint: "ask another node"}

// maxIDs keeps a count that came over the wire within an int.
const maxIDs = 1 << 30

func (i *idService) Next(ctx context.Context, req *idpb.NextRequest) (*idpb.NextResponse, error) {
	o, n := i.s.row(idNext), min(max(req.Count, 1), maxIDs)
	first, err := uint64(0), error(errNoIDs)
	if i.s.cfg.IDs != nil {
		first, err = i.s.cfg.IDs.Next(ctx, int(n))
	}
	if err != nil && ctx.Err() != nil {
		err = gaveUp(ctx)
	}
	if err != nil {
		o.errored.Inc()
		o.failed[wire(err).Reason].Inc()
		return nil, Status(err)
	}
	o.yes.Inc()
	return &idpb.NextResponse{First: first, Count: n, Node: i.s.cfg.Node}, nil
}
