package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const defaultAddr = "127.0.0.1:7400"

// remote are the settings of a command that talks to a node.
type remote struct {
	addr    string // HOST:PORT, or several with commas between them
	timeout time.Duration
	json    bool
	nodes   *nodes // of the latest dial
}

func (r *remote) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&r.addr, "addr", defaultAddr, "`HOST:PORT` of a node, or of several: the first one that answers is asked (A,B,…)")
	cmd.Flags().DurationVar(&r.timeout, "timeout", 5*time.Second, "give up after this long")
	cmd.Flags().BoolVar(&r.json, "json", false, "print JSON")
}

func (r *remote) validate() error {
	if r.timeout <= 0 {
		return usageError{fmt.Errorf("--timeout %s leaves no time at all", r.timeout)}
	}
	_, err := splitAddrs(r.addr)
	return err
}

// splitAddrs returns the addresses in --addr.
func splitAddrs(list string) (addrs []string, err error) {
	for addr := range strings.SplitSeq(list, ",") {
		addr = strings.TrimSpace(addr)
		if _, port, err := net.SplitHostPort(addr); err != nil || port == "" {
			return nil, usageError{fmt.Errorf("--addr %q: write HOST:PORT, like %s, and commas between several", list, defaultAddr)}
		}
		if _, port := splitPort(addr); port < 1 && badPort(addr) {
			return nil, usageError{fmt.Errorf("--addr %q: a port is a number from 1 to 65535", addr)}
		}
		if !slices.Contains(addrs, addr) {
			addrs = append(addrs, addr)
		}
	}
	if len(addrs) > maxAddrs {
		return nil, usageError{fmt.Errorf("--addr has %d addresses: at most %d, or a name that has them all", len(addrs), maxAddrs)}
	}
	return addrs, nil
}

// dial prepares connections for calls that show what one node says; they are made when a
// call needs them.
func (r *remote) dial() (*nodes, error) {
	if err := r.validate(); err != nil {
		return nil, err
	}
	addrs, err := splitAddrs(r.addr)
	if err != nil {
		return nil, err
	}
	r.nodes = &nodes{given: addrs, timeout: r.timeout, lookup: net.DefaultResolver.LookupHost}
	return r.nodes, nil
}

// at returns the address of the node that answered, or of those that are to be asked.
func (r *remote) at() string {
	if r.nodes != nil {
		if addr := r.nodes.answeredAt(); addr != "" {
			return addr
		}
	}
	return r.addr
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
		if over, ok := ctx.Deadline(); ok && retryAfter(err) > time.Until(over) && r.nodes.alone() {
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

// refusedConnection reports whether nothing listens where a call went; of several
// addresses, at none.
func refusedConnection(err error) bool {
	var none *noneAnswers
	if errors.As(err, &none) {
		return none.refused()
	}
	return strings.Contains(err.Error(), "connection refused")
}

// explain turns the errors of a connection into ones that say what to do.
func (r *remote) explain(err error) error {
	switch status.Code(err) {
	case codes.Unimplemented:
		if len(status.Convert(err).Details()) > 0 {
			return err
		}
		return hinted{fmt.Errorf("the node at %s does not know this call: %s", r.at(), status.Convert(err).Message()),
			"it is of another version than this program: use the keystead that it was started with (`keystead members` shows versions)"}
	case codes.Unavailable:
		if len(status.Convert(err).Details()) > 0 {
			return err
		}
		cause := causeOf(err)
		if !refusedConnection(err) {
			if what := speaks(r.addr); what != "" {
				return wrongPort(r.addr, what)
			}
		}
		hint := "start one with `keystead dev`, or name another with --addr or KEYSTEAD_ADDR"
		if r.addr != defaultAddr {
			hint = "start one with `keystead dev`, see that the one you mean runs, or name another with --addr or KEYSTEAD_ADDR"
		}
		var none *noneAnswers
		if errors.As(err, &none) {
			return hinted{fmt.Errorf("cannot reach a node: %w", none), hint}
		}
		return hinted{fmt.Errorf("cannot reach a node at %s: %s", r.addr, cause), hint}
	case codes.DeadlineExceeded:
		if faults := r.nodes.faults(); faults != nil {
			return hinted{fmt.Errorf("no answer within %s: %w", r.timeout, faults), "allow more with --timeout, or name other nodes with --addr or KEYSTEAD_ADDR"}
		}
		return hinted{fmt.Errorf("no answer from %s within %s", r.addr, r.timeout), "allow more with --timeout, if `keystead status --addr " + r.addr + "` answers"}
	}
	return err
}
