package cli

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/internal/vtcodec"
)

const defaultAddr = "127.0.0.1:7400"

// remote are the settings of a command that talks to a node.
type remote struct {
	addr    string
	timeout time.Duration
	json    bool
}

func (r *remote) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&r.addr, "addr", defaultAddr, "`HOST:PORT` of a node")
	cmd.Flags().DurationVar(&r.timeout, "timeout", 5*time.Second, "give up after this long")
	cmd.Flags().BoolVar(&r.json, "json", false, "print JSON")
}

// connectParams has a node that comes back found within about a second.
var connectParams = grpc.WithConnectParams(grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: firstPause, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxPause},
	MinConnectTimeout: 5 * time.Second,
})

func (r *remote) validate() error {
	if r.timeout <= 0 {
		return usageError{fmt.Errorf("--timeout %s leaves no time at all", r.timeout)}
	}
	if _, port, err := net.SplitHostPort(r.addr); err != nil || port == "" {
		return usageError{fmt.Errorf("--addr %q: write HOST:PORT, like %s", r.addr, defaultAddr)}
	}
	if _, port := splitPort(r.addr); port < 1 && badPort(r.addr) {
		return usageError{fmt.Errorf("--addr %q: a port is a number from 1 to 65535", r.addr)}
	}
	return nil
}

// dial prepares a connection for calls that show what one node says; it is made when the
// first call needs it.
func (r *remote) dial() (*grpc.ClientConn, error) {
	if err := r.validate(); err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient("passthrough:///"+r.addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(vtcodec.New())),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 3 * time.Second}),
		connectParams,
	)
	if err != nil {
		return nil, usageError{fmt.Errorf("--addr %q: %w", r.addr, err)}
	}
	return conn, nil
}

const (
	firstPause = 50 * time.Millisecond
	maxPause   = time.Second
)

// call makes an attempt, and further ones while the node cannot be reached and
// time is left. f only reads: calls that change something go through client.
func (r *remote) call(ctx context.Context, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		err := f(ctx)
		if status.Code(err) != codes.Unavailable {
			return r.explain(err)
		}
		if refusedConnection(err) && pause == firstPause {
			return r.explain(err) // nothing listens: at a prompt there is no point in waiting
		}
		if strings.Contains(err.Error(), "server preface") && pause == firstPause && speaks(r.addr) == "HTTP" {
			return wrongPort(r.addr, "HTTP")
		}
		if over, ok := ctx.Deadline(); ok && retryAfter(err) > time.Until(over) {
			return r.explain(err) // it will be the same then
		}
		select {
		case <-ctx.Done():
			return r.explain(err)
		case <-time.After(pause):
		}
	}
}

// badPort reports whether the port of an address is a number that no port has: it may be
// the name of a service.
func badPort(addr string) bool {
	_, port, _ := net.SplitHostPort(addr)
	_, err := strconv.Atoi(port)
	return err == nil
}

func refusedConnection(err error) bool { return strings.Contains(err.Error(), "connection refused") }

// explain turns the errors of a connection into ones that say what to do.
func (r *remote) explain(err error) error {
	switch status.Code(err) {
	case codes.Unimplemented:
		if len(status.Convert(err).Details()) > 0 {
			return err
		}
		return hinted{fmt.Errorf("the node at %s does not know this call: %s", r.addr, status.Convert(err).Message()),
			"it is of another version than this program: use the keystead that it was started with (`keystead members` shows versions)"}
	case codes.Unavailable:
		if len(status.Convert(err).Details()) > 0 {
			return err
		}
		cause := status.Convert(err).Message()
		if i := strings.LastIndex(cause, "dial tcp"); i >= 0 {
			cause = strings.Trim(cause[i:], `"`)
		}
		if !refusedConnection(err) {
			if what := speaks(r.addr); what != "" {
				return wrongPort(r.addr, what)
			}
		}
		hint := "start one with `keystead dev`, or name another with --addr or KEYSTEAD_ADDR"
		if r.addr != defaultAddr {
			hint = "start one with `keystead dev`, see that the one you mean runs, or name another with --addr or KEYSTEAD_ADDR"
		}
		return hinted{fmt.Errorf("cannot reach a node at %s: %s", r.addr, cause), hint}
	case codes.DeadlineExceeded:
		return hinted{fmt.Errorf("no answer from %s within %s", r.addr, r.timeout), "allow more with --timeout, if `keystead status --addr " + r.addr + "` answers"}
	}
	return err
}
