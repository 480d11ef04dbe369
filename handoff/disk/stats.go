package disk

import (
	"sync/atomic"
	"time"
)

// SyncBounds are the upper bounds of the counts of Stats.Syncs; the last count has none.
var SyncBounds = [...]time.Duration{
	100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond,
	10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second,
}

// Syncs says how long syncs of the log took.
type Syncs struct {
	Counts [len(SyncBounds) + 1]uint64 // by bound, each for itself
	Count  uint64
	Sum    time.Duration
}

type syncTimes struct {
	counts [len(SyncBounds) + 1]atomic.Uint64
	sum    atomic.Int64
}

func (t *syncTimes) add(d time.Duration) {
	i := 0
	for i < len(SyncBounds) && d > SyncBounds[i] {
		i++
	}
	t.counts[i].Add(1)
	t.sum.Add(int64(d))
}

func (t *syncTimes) get() (s Syncs) {
	for i := range t.counts {
		s.Counts[i] = t.counts[i].Load()
		s.Count += s.Counts[i]
	}
	s.Sum = time.Duration(t.sum.Load())
	return s
}

// count is what a store counts itself.
type count struct {
	stalls atomic.Int64
}

// Stats are figures of a store since it was opened, but for those on disk.
type Stats struct {
	DiskBytes int64 // on disk, with what is to be removed
	LogBytes  int64 // on disk, in the log
	Tables    int64
	Debt      int64 // bytes to merge until all is in order, about
	Given     int64 // bytes of the batches
	ToLog     int64 // bytes written to the log
	ToTables  int64 // bytes written to tables, first and again
	ToOther   int64 // bytes written to manifests and the like
	Flushes   int64
	Merges    int64
	Stalls    int64 // commits that waited for tables to be written
	Memory    int64 // bytes of memtables and of the cache
	Sublevels int32 // tables of the first level on top of each other
	Syncs     Syncs // of the log
	Keys      int64 // in tables, about: with those that a newer table has again
}

// Amplification is how many bytes were written for each that was given; 0 if none was.
func (s Stats) Amplification() float64 {
	if s.Given == 0 {
		return 0
	}
	return float64(s.ToLog+s.ToTables+s.ToOther) / float64(s.Given)
}

// Stats returns the figures. Those of a store that is closed or failed are of what was written.
func (s *Store) Stats() Stats {
	t := Stats{
		Given:    s.given.Load(),
		ToLog:    s.gate.bytes[logs].Load(),
		ToTables: s.gate.bytes[tables].Load(),
		ToOther:  s.gate.bytes[other].Load(),
		Stalls:   s.counted.stalls.Load(),
		Syncs:    s.gate.syncs.get(),
	}
	if s.enter() != nil {
		return t
	}
	defer s.leave()
	m := s.db.Metrics()
	t.DiskBytes, t.LogBytes = int64(m.DiskSpaceUsage()), int64(max(m.WAL.Size, m.WAL.PhysicalSize))
	t.Debt, t.Flushes, t.Merges = int64(m.Compact.EstimatedDebt), m.Flush.Count, m.Compact.Count
	t.Memory, t.Sublevels = int64(m.MemTable.Size)+m.BlockCache.Size, m.Levels[0].Sublevels
	levels, _ := s.db.SSTables()
	for _, l := range levels {
		t.Tables += int64(len(l))
		for _, i := range l {
			t.Keys += int64(i.TableStats.NumEntries - min(i.TableStats.NumEntries, 2*i.TableStats.NumDeletions))
		}
	}
	return t
}
