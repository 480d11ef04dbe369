package disk

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/cockroachdb/pebble/v2"
)

// engineFormat is the version of the engine's own files. It has checksums on the footers of
// tables. A later one is a later Format of ours.
const engineFormat = pebble.FormatValueSeparation

// Bounds of the engine. Together they keep a store within about 100 MiB of memory.
const (
	// memtable is what is gathered before a table is written, and with it how much of the log
	// is read at a start. Larger ones rewrite less: a hot object is written once for each.
	memtable = 16 << 20
	// memtables is how many of them wait to be written; then commits wait.
	memtables = 4
	// blockCache is for reading while running, which only merges do; they pass it by.
	blockCache = 8 << 20
	// maxOpenFiles is far more than the tables of ten million objects.
	maxOpenFiles = 256
	// mergeSublevels is when the first level is merged.
	mergeSublevels = 4
	// stallSublevels is when commits wait for that: a start would read that many tables at once.
	stallSublevels = 20
	// tableSize is that of the tables of the first level; each level below has twice as much.
	tableSize = 4 << 20
	// manifestSize bounds the manifest, which is read at a start.
	manifestSize = 4 << 20
	// bytesPerSync is after how much the system is asked to begin to write: else a sync
	// of the log stands behind all of a table.
	bytesPerSync = 512 << 10
	// merges that run at the same time: they shall leave the processors to requests.
	merges = 1
)

func (s *Store) options(lock *pebble.Lock, fresh bool) *pebble.Options {
	o := &pebble.Options{
		FS:                          s.gate,
		Lock:                        lock,
		Logger:                      logger{s},
		EventListener:               s.listener(),
		ReadOnly:                    s.reader,
		ErrorIfExists:               fresh,
		ErrorIfNotExists:            !fresh,
		FormatMajorVersion:          engineFormat,
		MemTableSize:                memtable,
		MemTableStopWritesThreshold: memtables,
		CacheSize:                   blockCache,
		MaxOpenFiles:                maxOpenFiles,
		L0CompactionThreshold:       mergeSublevels,
		L0StopWritesThreshold:       1 << 30, // see await
		MaxManifestFileSize:         manifestSize,
		BytesPerSync:                bytesPerSync,
		WALBytesPerSync:             bytesPerSync,
		CompactionConcurrencyRange:  func() (int, int) { return merges, merges },
	}
	o.TargetFileSizes[0] = tableSize
	return o
}

// listener hears of what the engine does in the background.
func (s *Store) listener() *pebble.EventListener {
	moved := func() {
		s.crowded.Store(true)
		select {
		case s.compacted <- struct{}{}:
		default:
		}
	}
	return &pebble.EventListener{
		// An error in the background is never of a moment: the engine would meet it again and
		// again, and the first level would grow meanwhile.
		BackgroundError: func(err error) {
			if errors.Is(err, pebble.ErrCancelledCompaction) {
				return
			}
			s.gate.fail(s.judge(err))
		},
		DataCorruption: func(i pebble.DataCorruptionInfo) {
			s.gate.fail(fmt.Errorf("%w: %s: %w", ErrDamaged, i.Path, i.Details))
		},
		FlushEnd:        func(pebble.FlushInfo) { moved() },
		CompactionEnd:   func(pebble.CompactionInfo) { moved() },
		WriteStallBegin: func(i pebble.WriteStallBeginInfo) { s.counted.stalls.Add(1) },
	}
}

// logger takes what the engine has to say. A fatal error ends its goroutine's work, not the
// process.
type logger struct{ s *Store }

func (l logger) Infof(f string, a ...any) {
	if l.s.log.Enabled(context.Background(), slog.LevelDebug) {
		l.s.log.Debug("disk: "+fmt.Sprintf(f, a...), "dir", l.s.dir)
	}
}

func (l logger) Errorf(f string, a ...any) {
	l.s.log.Warn("disk: "+fmt.Sprintf(f, a...), "dir", l.s.dir)
}

func (l logger) Fatalf(f string, a ...any) {
	l.s.gate.park(fmt.Errorf("the engine cannot go on: "+f, a...))
}
