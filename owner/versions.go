package owner

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
	if last > maxVersion {
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
