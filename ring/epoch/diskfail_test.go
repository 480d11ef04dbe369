package epoch

import (
	"errors"
	"syscall"
	"testing"

	"github.com/hashicorp/raft"
)

// fullLogs is a log on a disk that may be full.
type fullLogs struct {
	raft.LogStore
	full bool
}

func (l *fullLogs) StoreLogs(es []*raft.Log) error {
	if l.full {
		return syscall.ENOSPC
	}
	return l.LogStore.StoreLogs(es)
}

// TestWriteFailures: a write to the log that fails is known until one succeeds, and is
// counted.
func TestWriteFailures(t *testing.T) {
	s := MemoryStorage()
	logs := &fullLogs{LogStore: s.Logs}
	s.Logs = logs
	now := int64(1)
	w, d := s.watched(func() int64 { return now })
	for i, full := range []bool{false, true, true, false} {
		logs.full = full
		err := w.Logs.StoreLogs([]*raft.Log{{Index: uint64(i + 1), Term: 1}})
		if _, was := d.failures(); errors.Is(err, syscall.ENOSPC) != full || !errors.Is(was, err) {
			t.Errorf("write %d: %v, and known is %v", i, err, was)
		}
	}
	if n, err := d.failures(); n != 2 || err != nil {
		t.Errorf("%d failed, the last one by %v", n, err)
	}
	if _, err := d.recent(failAgain); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a moment ago: %v", err)
	}
	now += int64(failAgain)
	if n, err := d.recent(failAgain); n != 2 || err != nil {
		t.Errorf("a minute ago: %d, %v", n, err)
	}
}
