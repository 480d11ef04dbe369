package epoch

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// TestRaftSaysItOnce: of a server that is down for an hour there is a line a minute for each
// thing that raft has to say about it, and what concerns others or nobody is said.
func TestRaftSaysItOnce(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	now := time.Unix(0, 0)
	l := newRaftLog(slog.New(slog.NewTextHandler(&out, nil))).(raftLog)
	l.lines.now = func() time.Time { return now }
	down := raft.Server{ID: "n9/1", Address: "n9/1@home:9"}
	for now.Before(time.Unix(3600, 0)) {
		l.With("more", 1).Error("failed to appendEntries to", "peer", down, "error", errors.New(now.String()))
		l.Error("failed to heartbeat to", "peer", down.Address, "backoff time", now)
		l.Warn("failed to contact", "server-id", down.ID, "time", now)
		now = now.Add(250 * time.Millisecond)
	}
	l.Error("failed to heartbeat to", "peer", "n8/1@home:8")
	l.Warn("failed to contact quorum of nodes, stepping down")
	l.Warn("failed to contact quorum of nodes, stepping down")
	for words, want := range map[string]int{
		"failed to appendEntries to": 60, "peer=n9/1@home:9": 60, "failed to contact\"": 60, "peer=n8/1": 1, "stepping down": 2,
	} {
		if got := strings.Count(out.String(), words); got != want {
			t.Errorf("%q: %d lines, want %d", words, got, want)
		}
	}
	for i := range 2 * maxLines {
		l.Warn("failed to contact", "server-id", i)
	}
	if n := len(l.lines.at); n > maxLines {
		t.Errorf("%d lines are remembered", n)
	}
}
