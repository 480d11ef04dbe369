package owner

import "github.com/keystead/keystead/internal/failure"

// Bounds of versions.
const (
	// maxVersion is the greatest one that a change gets, or that is taken in from elsewhere:
	// a change each nanosecond would come to it in 146 years. The bits above it are for
	// answers about split counters.
	maxVersion = 1<<62 - 1
	// freeVersions are those that may come from elsewhere at any time: 35 years of a million
	// changes a second in one shard.
	freeVersions = 1 << 50
)

// MaxVersionAt returns the greatest version that can be true at a moment, in ns since 1970:
// no shard makes more than a change each nanosecond. As it rises faster than versions do,
// a false one that was taken in does not keep those after it from being taken in, too.
func MaxVersionAt(unix int64) uint64 {
	return min(maxVersion, freeVersions+uint64(max(unix, 0)))
}

var errVersions = &failure.Error{Reason: failure.StoreFull, Field: "version",
	Message: "the node has used up the versions of counters, which a damaged state or a foreign node has told it; nothing happened",
	Hint:    "limits and locks go on; counters need a new cluster, or a standalone node a new data directory"}

// advanceLocked makes the next version that of the change that is being made.
func (sh *shard) advanceLocked() { sh.version = min(sh.version+1, maxVersion) }

// versionsLeftLocked returns the error of a change of a counter that would get a version for a
// second time.
func (sh *shard) versionsLeftLocked() *failure.Error {
	//guard:versions-end
	if sh.version >= maxVersion {
		return errVersions
	}
	return nil
}

// told reports whether a version may come from elsewhere now.
func (s *Store) told(version uint64) bool {
	if version <= freeVersions || s.cfg.MaxVersion == nil {
		return version <= maxVersion
	}
	//guard:versions-told true
	return version <= s.cfg.MaxVersion()
}

// Versions rise within a shard, and with them those of each of its objects. A counter that is
// gone has left no version behind, so a process that gets the keys of a shard learns how far its
// versions had come: by the records of changes, and where it gets a copy, by LastVersion
// beside it. What is made again under the key then gets a version above all former ones.

// LastVersion returns the greatest version of all changes here, and of all that copies told
// of.
func (s *Store) LastVersion() (last uint64) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		last = max(last, sh.version)
		sh.mu.Unlock()
	}
	return last
}

// RaiseVersions has all later changes get versions above this one. One that is out of range
// is an *Error of reason Invalid.
func (s *Store) RaiseVersions(last uint64) error {
	if !s.told(last) {
		return invalid("record", "the version is out of range")
	}
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		sh.version = max(sh.version, last)
		sh.mu.Unlock()
	}
	return nil
}
