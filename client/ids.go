package client

import (
	"context"

	"google.golang.org/grpc"

	idpb "github.com/keystead/keystead/proto/keystead/id/v1"
)

// MaxIDs is how many ids a call of NextIDs may ask for.
const MaxIDs = 10_000

// NextID returns a number below 2^63 that was never returned before. Any node issues
// it. A number that is requested more than a minute after another was received is
// greater. Errors: ErrUnavailable if no node has any in time.
func (c *Client) NextID(ctx context.Context) (uint64, error) { return c.NextIDs(ctx, 1) }

// NextIDs is NextID for n consecutive numbers, 1 to MaxIDs. It returns the first.
func (c *Client) NextIDs(ctx context.Context, n int) (first uint64, err error) {
	if n < 1 || n > MaxIDs {
		return 0, about(invalid("count", "is %d; 1 to %d are allowed", n, MaxIDs), "ids", "", "")
	}
	// Numbers issued to an attempt whose answer is lost stay unused.
	err = c.do(ctx, route{reads: true, what: "ids"}, func(ctx context.Context, at *node, _ *view) (bool, error) {
		return c.unary(ctx, at, 0, func(ctx context.Context, opts ...grpc.CallOption) error {
			r, err := idpb.NewIdServiceClient(at.conn()).Next(ctx, &idpb.NextRequest{Count: uint32(n)}, opts...)
			first = r.GetFirst()
			return err
		})
	})
	return first, err
}
