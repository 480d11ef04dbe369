package sim

import (
	"context"
	"testing"
	"time"

	"github.com/keystead/keystead/ring/epoch"
	"github.com/keystead/keystead/ring/epoch/table"
)

// installSnapshot is the first byte of that message of raft.
const installSnapshot = 2

// TestTrap38LateSnapshots: a node comes back and needs a snapshot. The first one that is
// sent to it is late by seconds, on a connection that its sender has long closed; the next
// one arrives. When the late one does, the node owns its rows again. It has not written
// snapshots of its own meanwhile: they would push the late one out of its store, by chance.
func TestTrap38LateSnapshots(t *testing.T) {
	t.Parallel()
	rare := epoch.Snapshots{Every: shortLogs.Every, After: 5 * shortLogs.After, Trailing: shortLogs.Trailing}
	play(t, setting{nodes: 3, clients: 3, config: func(c *Config) { c.Snapshots = rare }}, func(s *scene) {
		held := 0
		for range max(4/slower, 1) {
			i := s.follower()
			s.Crash(i)
			s.until(stableTime, "it is out", func() bool { _, in := latest(s.Cluster).Member(s.hosts[i].name); return !in })
			s.until(stableTime, "the others have settled", s.stable)
			s.raise(int(rare.After + rare.Trailing))
			s.sleep(2 * rare.Every) // the log is cut short
			var due time.Time
			s.Net.Delay(func(from, to string, data []byte) time.Duration {
				if to != s.hosts[i].addr || data[0] != installSnapshot || !due.IsZero() {
					return 0
				}
				held++
				late := s.between(2*time.Second, 6*time.Second)
				due = time.Now().Add(late)
				return late
			})
			if err := s.Start(i); err != nil {
				t.Fatal(err)
			}
			s.until(stableTime, "all is well again", s.stable)
			if until := time.Until(due); until > 0 {
				s.sleep(until)
			}
			s.sleep(time.Second)
			s.Net.Delay(nil)
			s.restore()
		}
		if held == 0 {
			t.Error("no snapshot was sent")
		}
		s.lostNothing()
	})
}

// raise makes the log longer by so many entries.
func (s *scene) raise(entries int) {
	s.t.Helper()
	for n := 0; n < entries; n++ {
		p, _ := s.Process(s.leader())
		ctx, cancel := context.WithTimeout(context.Background(), ttl)
		_, _ = p.Group.Propose(ctx, table.Command{Raise: &table.Raise{Above: p.Group.Table().Epoch}})
		cancel()
	}
}
