package feed

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"

	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// FuzzBatch gives an intake arbitrary batches, with the right checksum and as they
// are. It never panics; what it acknowledges is what it has installed, which are
// the records of the batch in order; and of a batch that is not whole it installs
// nothing.
func FuzzBatch(f *testing.F) {
	whole := func(first uint64, records ...string) []byte {
		b := &peerv1.FeedBatch{Session: 1, First: first, Count: uint32(len(records)), Epoch: 5}
		for _, r := range records {
			b.Records = frame(b.Records, []byte(r), 0)
		}
		b.Checksum = checksum(1, first, uint64(len(records)), 5, b.Records)
		out, _ := b.MarshalVT()
		return out
	}
	f.Add(whole(1, "a"), true)
	f.Add(whole(1, "a", "", "no", "b"), true)
	f.Add(whole(2, "gap"), false)
	begin := &peerv1.FeedBatch{Session: 1, First: 1, Count: 1, Epoch: 1, Records: frame(nil, appendBegin(nil, []serving.Range{{After: 1, UpTo: 2}}), control)}
	out, _ := begin.MarshalVT()
	f.Add(out, true)
	versions := &peerv1.FeedBatch{Session: 1, First: 1, Count: 1, Epoch: 1, Records: frame(nil, appendVersions(nil, 9), control)}
	out, _ = versions.MarshalVT()
	f.Add(out, true)
	f.Fuzz(func(t *testing.T, data []byte, mend bool) {
		var b peerv1.FeedBatch
		if b.UnmarshalVT(data) != nil {
			return
		}
		if mend {
			b.Checksum = checksum(b.Session, b.First, uint64(b.Count), b.Epoch, b.Records)
		}
		var installed [][]byte
		add := func(r []byte) error {
			if bytes.Equal(r, []byte("no")) {
				return errors.New("no")
			}
			installed = append(installed, bytes.Clone(r))
			return nil
		}
		i := NewIntake(IntakeConfig{
			Self:     func() table.Holder { return n2 },
			Await:    func(context.Context, uint64) error { return nil },
			Begin:    func(_ table.Holder, ranges []serving.Range) error { return add(appendBegin(nil, ranges)) },
			Versions: func(last uint64) error { return add(appendVersions(nil, last)) },
			Install:  func(_ table.Holder, r []byte) error { return add(r) },
			Log:      quiet,
		})
		c, _, _, refused := i.welcome(t.Context(), &peerv1.FeedHello{Version: Version, Source: "n1", SourceIncarnation: 7, Target: "n2", TargetIncarnation: 3, Session: 1, Connection: 1})
		if refused != nil {
			t.Fatal(refused)
		}
		defer c.end(nil)
		applied, refused := i.installBatch(c, &b)
		if uint64(len(installed)) != c.session.applied.Load() || refused == nil && applied != c.session.applied.Load() || refused != nil && applied != 0 {
			t.Fatalf("acknowledged %d, says it has %d, installed %d, %v", applied, c.session.applied.Load(), len(installed), refused)
		}
		if refused == nil && (b.First != 1 || len(installed) != int(b.Count)) {
			t.Fatalf("%d from %d on make %d", b.Count, b.First, len(installed))
		}
		if refused != nil && refused.Reason != peerv1.FeedReason_FEED_REASON_NOT_TAKEN && len(installed) > 0 {
			t.Fatalf("%v, and %d are installed", refused, len(installed))
		}
		var want [][]byte
		for rest := b.Records; len(want) < len(installed); {
			record, _, more, ok := cut(rest)
			if !ok {
				t.Fatal("installed what is not there")
			}
			want, rest = append(want, record), more
		}
		if !slices.EqualFunc(installed, want, bytes.Equal) {
			t.Fatalf("installed %q, not %q", installed, want)
		}
		// The same again changes nothing more.
		n := len(installed)
		again, refusedAgain := i.installBatch(c, &b)
		if len(installed) != n || again != applied || (refusedAgain == nil) != (refused == nil) {
			t.Fatalf("again: %d %v, installed %d more", again, refusedAgain, len(installed)-n)
		}
	})
}
