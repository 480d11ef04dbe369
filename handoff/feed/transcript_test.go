package feed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// The files show what an intake says to what it is told, over real connections.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/transcripts", func(t *testing.T, path string) {
		c := &conversation{g: newTarget(t, func(c *IntakeConfig) { c.MaxSources = 2 }), streams: map[string]stream{}}
		c.g.epoch.Store(10)
		no := func(r string) error {
			if r == "bad" {
				return errors.New("it is bad")
			}
			return nil
		}
		c.g.refuse.Store(&no)
		conn, err := grpc.NewClient("passthrough:///n2", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return c.g.l.Dial() }))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		c.client = peerv1.NewStateServiceClient(conn)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return c.run(t, d) })
	})
}

// conversation is several sources that speak to one target.
type conversation struct {
	g       *target
	client  peerv1.StateServiceClient
	streams map[string]stream
	shown   int // records of the target's log
}

func (c *conversation) run(t *testing.T, d *datadriven.TestData) string {
	name := d.CmdArgs[0].Key
	switch d.Cmd {
	case "hello":
		st, err := c.client.Feed(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c.streams[name] = st
		h := &peerv1.FeedHello{
			Version: uint32(number(d, "version", Version)),
			Source:  "n1", SourceIncarnation: number(d, "incarnation", 7),
			Target: "n2", TargetIncarnation: number(d, "target", 3),
			Session: number(d, "session", 1), Connection: number(d, "connection", 1),
		}
		if d.HasArg("source") {
			d.ScanArgs(t, "source", &h.Source)
		}
		return c.say(t, name, &peerv1.FeedRequest{Request: &peerv1.FeedRequest_Hello{Hello: h}})
	case "batch":
		return c.say(t, name, &peerv1.FeedRequest{Request: &peerv1.FeedRequest_Batch{Batch: batchOf(d)}})
	case "hear":
		return c.hear(name)
	case "self":
		inc := number(d, "incarnation", 3)
		c.g.self.Store(&table.Holder{Node: "n2", Incarnation: inc})
		return ""
	case "forget":
		c.g.intake.Forget(table.Holder{Node: name, Incarnation: number(d, "incarnation", 7)})
		return ""
	}
	t.Fatalf("%s: no such thing can be said", d.Cmd)
	return ""
}

// batchOf builds a batch from lines of records; "begin A B" is a control record.
func batchOf(d *datadriven.TestData) *peerv1.FeedBatch {
	lines := strings.Fields(strings.ReplaceAll(d.Input, "begin ", "begin_"))
	b := &peerv1.FeedBatch{Session: number(d, "session", 1), First: number(d, "first", 1), Count: uint32(number(d, "count", uint64(len(lines)))), Epoch: number(d, "epoch", 10)}
	for _, line := range lines {
		if r, ok := strings.CutPrefix(line, "begin_"); ok {
			var x serving.Range
			_, _ = fmt.Sscanf(r, "%d-%d", &x.After, &x.UpTo)
			b.Records = frame(b.Records, appendBegin(nil, []serving.Range{x}), control)
			continue
		}
		b.Records = frame(b.Records, []byte(line), 0)
	}
	b.Checksum = checksum(b.Session, b.First, uint64(b.Count), b.Epoch, b.Records)
	switch {
	case d.HasArg("flip"):
		b.Records[len(b.Records)-1] ^= 1
	case d.HasArg("renumber"):
		b.First++
	case d.HasArg("older"):
		b.Epoch--
	case d.HasArg("short"):
		b.Records = b.Records[:len(b.Records)-1]
		b.Checksum = checksum(b.Session, b.First, uint64(b.Count), b.Epoch, b.Records)
	}
	return b
}

func frame(dst, record []byte, mark uint32) []byte {
	n := uint32(len(record)) | mark
	return append(append(dst, byte(n), byte(n>>8), byte(n>>16), byte(n>>24)), record...)
}

func number(d *datadriven.TestData, key string, or uint64) uint64 {
	for _, a := range d.CmdArgs {
		if a.Key == key {
			n, err := strconv.ParseUint(a.Vals[0], 10, 64)
			if err != nil {
				panic(err)
			}
			return n
		}
	}
	return or
}

func (c *conversation) say(t *testing.T, name string, req *peerv1.FeedRequest) string {
	if err := c.streams[name].Send(req); err != nil {
		return "the stream has ended\n"
	}
	return c.hear(name)
}

// hear shows the next answer on a stream, and what was installed since the last
// look.
func (c *conversation) hear(name string) string {
	var out strings.Builder
	switch resp, err := c.streams[name].Recv(); {
	case err != nil:
		fmt.Fprintf(&out, "the stream has ended\n")
	case resp.GetWelcome() != nil:
		known := "unknown"
		if resp.GetWelcome().Known {
			known = "known"
		}
		fmt.Fprintf(&out, "welcome  %s, applied %d\n", known, resp.GetWelcome().Applied)
	case resp.GetAck() != nil:
		fmt.Fprintf(&out, "ack  %d\n", resp.GetAck().Applied)
	default:
		r := resp.GetRefusal()
		fmt.Fprintf(&out, "refusal  %s: %s\n", strings.TrimPrefix(r.Reason.String(), "FEED_REASON_"), r.Message)
	}
	log := c.g.log()
	if len(log) > c.shown {
		fmt.Fprintf(&out, "installed  %s\n", strings.Join(log[c.shown:], " "))
		c.shown = len(log)
	}
	return out.String()
}
