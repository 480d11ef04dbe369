package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
)

// plainWidth is how wide a drawing is where there is no terminal.
const plainWidth = 80

// redrawPause is the least time between two drawings on a terminal.
const redrawPause = 100 * time.Millisecond

type ringFlags struct {
	remote
	watch  bool
	colors colorMode
}

func newRing(std Process) *cobra.Command {
	var f ringFlags
	cmd := &cobra.Command{
		Use:   "ring",
		Short: "Draw the ring: who should own what, and who does",
		Long: `Draws the ring as the node at --addr sees it: the hash space, clockwise from the top,
cut into equal stretches, each with the mark of the node that owns most of it; beside
it the share of the keys that the ring gives each node (WANTED) and that it owns now
(OWNED: # as wanted, · yet to come, + to be handed over); below it what is left to
move. Two parties that see the same digest hold the same ring. Balance is the largest
share ÷ the average.

--watch draws it again whenever it changes, until Ctrl-C; where the output is no
terminal, it prints a line for each change.

With --json: {"cluster", "epoch": "…", "digest": "…", "size", "balance", "rows",
"transition": "…" ("0" = none runs), "rows_to_move", "rows_unowned", "nodes": [{"id",
"hash_key", "grpc_addr", "wanted_share", "owned_share"}], "moves": [{"from", "to",
"rows", "share"}]}, with --watch one line for each change.`,
		Example: `  keystead ring
  keystead ring --watch
  keystead ring --json | jq -r .digest`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.watch {
				return f.follow(cmd.Context(), std)
			}
			return f.once(cmd.Context(), std.Out)
		},
	}
	f.flags(cmd)
	f.colors.flags(cmd)
	cmd.Flags().BoolVar(&f.watch, "watch", false, "go on, and show every change")
	return cmd
}

func (f *ringFlags) once(ctx context.Context, out io.Writer) error {
	var r *clusterpb.GetTableResponse
	err := f.askCluster(ctx, func(ctx context.Context, c clusterpb.ClusterServiceClient) (err error) {
		r, err = c.GetTable(ctx, &clusterpb.GetTableRequest{})
		return err
	})
	if err != nil {
		return err
	}
	v, err := newRingView(r.Table)
	if err != nil {
		return err
	}
	if f.json {
		return printJSON(out, v.json())
	}
	_, err = io.WriteString(out, v.draw(f.colors.canvas(out), &palette{}))
	return err
}

// canvasOf returns what can be drawn on in a file, which is no terminal if it is nil.
func canvasOf(f *os.File) canvas {
	if f == nil {
		return canvas{width: plainWidth}
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return canvas{width: plainWidth}
	}
	c := canvas{width: int(size.Col), height: int(size.Row), cut: true}
	if c.width == 0 { // a terminal that does not report its width
		c.width, c.height = plainWidth, 0
	}
	return c
}

// ringJSON is what `ring --json` prints.
type ringJSON struct {
	Cluster     string         `json:"cluster"`
	Epoch       string         `json:"epoch"`
	Digest      string         `json:"digest"`
	Size        int            `json:"size"`
	Balance     float64        `json:"balance"`
	Rows        int            `json:"rows"`
	Transition  string         `json:"transition"`
	RowsToMove  int            `json:"rows_to_move"`
	RowsUnowned int            `json:"rows_unowned"`
	Nodes       []ringNodeJSON `json:"nodes"`
	Moves       []ringMove     `json:"moves"`
}

type ringNodeJSON struct {
	ID          string  `json:"id"`
	HashKey     string  `json:"hash_key"`
	GRPCAddr    string  `json:"grpc_addr"`
	WantedShare float64 `json:"wanted_share"`
	OwnedShare  float64 `json:"owned_share"`
}

func (v *ringView) json() ringJSON {
	j := ringJSON{
		Cluster: v.table.Cluster, Epoch: strconv.FormatUint(v.table.Epoch, 10), Digest: strconv.FormatUint(v.table.RingDigest, 10),
		Size: v.size, Balance: v.most, Rows: len(v.rows), Transition: strconv.FormatUint(v.table.Transition, 10),
		RowsUnowned: v.unowned.Rows, Nodes: []ringNodeJSON{}, Moves: append([]ringMove{}, v.moves...),
	}
	j.RowsToMove, _ = v.toMove()
	for _, n := range v.nodes {
		j.Nodes = append(j.Nodes, ringNodeJSON{n.id, n.hashKey, n.addr, n.wanted, n.owned})
	}
	return j
}

// ringShow shows the states of a watch.
type ringShow interface {
	show(v *ringView) error
	again() // draws the last one again, for a terminal that has changed
	lost(err error)
	end()
}

// follow shows every change until a signal comes.
func (f *ringFlags) follow(ctx context.Context, std Process) (err error) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	conn, err := f.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	var s ringShow = &ringLines{out: std.Out, err: std.Err, json: f.json}
	resized := make(chan os.Signal, 1)
	if file, ok := std.Out.(*os.File); ok && isTerminal(file) && !f.json {
		s = &ringScreen{screen: screen{out: std.Out, colors: f.colors}}
		signal.Notify(resized, syscall.SIGWINCH)
		defer signal.Stop(resized)
	}
	defer s.end()
	states, failed := make(chan *ringView), make(chan error)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); f.receive(ctx, clusterpb.NewClusterServiceClient(conn), states, failed) }()
	defer func() { cancel(); <-done }()
	seen := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-resized:
			s.again()
		case v := <-states:
			seen = true
			if err := s.show(v); err != nil {
				return err
			}
		case err := <-failed:
			if !seen || !passes(err) {
				return f.explain(err)
			}
			s.lost(f.explain(err))
		}
	}
}

// passes reports whether a watch that ended is to be tried again.
func passes(err error) bool {
	code := status.Code(err)
	return code == codes.Unavailable || code == codes.DeadlineExceeded
}

// receive reads watches, one after the other, until ctx ends.
func (f *ringFlags) receive(ctx context.Context, c clusterpb.ClusterServiceClient, states chan<- *ringView, failed chan<- error) {
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		err := f.read(ctx, c, func(v *ringView) {
			pause = firstPause
			select {
			case states <- v:
			case <-ctx.Done():
			}
		})
		select {
		case failed <- err:
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// read reads one watch. The first message has to come within --timeout.
func (f *ringFlags) read(ctx context.Context, c clusterpb.ClusterServiceClient, show func(*ringView)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	slow := time.AfterFunc(f.timeout, func() { cancel(context.DeadlineExceeded) })
	defer slow.Stop()
	stream, err := c.Watch(ctx, &clusterpb.WatchRequest{})
	if err != nil {
		return err
	}
	for t := (*clusterpb.Table)(nil); ; {
		m, err := stream.Recv()
		slow.Stop()
		switch {
		case errors.Is(err, io.EOF):
			return status.Error(codes.Unavailable, "the node ended the watch")
		case err != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded):
			return status.FromContextError(context.DeadlineExceeded).Err()
		case err != nil:
			return err
		}
		if t, err = follow(t, m); err != nil {
			return err
		}
		v, err := newRingView(t)
		if err != nil {
			return err
		}
		show(v)
	}
}

// ringLines prints a line for each change.
type ringLines struct {
	out, err io.Writer
	json     bool
	last     *ringView
	gone     bool // the watch has ended, and that was reported
}

func (l *ringLines) show(v *ringView) error {
	old := l.last
	l.last, l.gone = v, false
	if l.json {
		return printJSON(l.out, v.json())
	}
	_, err := fmt.Fprintln(l.out, v.line(old))
	return err
}

// line is a state, with the change from an older one, which may be nil.
func (v *ringView) line(old *ringView) string {
	parts := []string{fmt.Sprintf("epoch %d", v.table.Epoch)}
	if old != nil {
		if what := v.changes(old); what != "" {
			parts = append(parts, what)
		}
	}
	var shares []string
	for _, n := range v.nodes {
		shares = append(shares, n.id+" "+percent(n.owned))
	}
	if len(shares) == 0 {
		shares = []string{"no members"}
	}
	parts = append(parts, strings.Join(shares, ", "))
	if rows, share := v.toMove(); rows > 0 {
		parts = append(parts, fmt.Sprintf("%d rows to move, %s", rows, percent(share)))
	}
	if n := v.unowned.Rows; n > 0 {
		parts = append(parts, plural(n, "row")+" without owner")
	}
	return strings.Join(parts, "; ")
}

func (l *ringLines) again() {}
func (l *ringLines) end()   {}

func (l *ringLines) lost(err error) {
	if !l.gone {
		l.gone = true
		printError(l.err, err)
	}
}

// screen draws on a terminal, on a screen of its own, and leaves the last drawing
// behind.
type screen struct {
	out    io.Writer
	colors colorMode
	last   func(canvas) string // nil = nothing was drawn
	note   string              // above the drawing
	opened bool
}

// ringScreen is a screen with the ring.
type ringScreen struct {
	screen
	marks palette
}

const (
	screenOpen  = "\x1b[?1049h\x1b[?25l" // another screen, no cursor
	screenClose = "\x1b[?25h\x1b[?1049l"
	screenHome  = "\x1b[H"
	screenRest  = "\x1b[J"
	lineRest    = "\x1b[K"
)

func (s *ringScreen) show(v *ringView) error {
	if err := s.draws(func(c canvas) string { return v.draw(c, &s.marks) }); err != nil {
		return err
	}
	time.Sleep(redrawPause) // more cannot be seen
	return nil
}

// draws draws something new.
func (s *screen) draws(drawing func(canvas) string) error {
	s.last, s.note = drawing, ""
	return s.draw()
}

func (s *screen) draw() error {
	c := s.colors.canvas(s.out)
	text := ""
	if !s.opened {
		s.opened, text = true, screenOpen
	}
	lines := strings.Split(strings.TrimSuffix(s.last(c), "\n"), "\n")
	if s.note != "" {
		lines = append([]string{s.note}, lines...)
	}
	if c.height > 0 && len(lines) >= c.height {
		lines = append(lines[:max(c.height-2, 0)], "…")
	}
	text += screenHome
	for _, line := range lines {
		text += clip(line, c.width) + lineRest + "\r\n"
	}
	_, err := io.WriteString(s.out, text+screenRest)
	return err
}

func (s *screen) again() {
	if s.last != nil {
		_ = s.draw() // the next change tells of an error
	}
}

func (s *screen) lost(err error) {
	msg, _ := explain(err)
	s.note = shorten(msg+"; trying again", s.colors.canvas(s.out).width)
	s.again()
}

func (s *screen) end() {
	if s.opened {
		_, _ = io.WriteString(s.out, screenClose+s.last(s.colors.canvas(s.out)))
	}
}
