package disk

// Stats are counts since the disk was opened.
type Stats struct {
	Writes      int64 `json:"writes"`
	Written     int64 `json:"written_bytes"`
	Syncs       int64 `json:"syncs"` // of files and directories
	DirSyncs    int64 `json:"dir_syncs"`
	FailedSyncs int64 `json:"failed_syncs"`
	Bytes       int64 `json:"bytes"`          // size of all files now
	Unsynced    int64 `json:"unsynced_bytes"` // that a crash now forgets
	Names       int64 `json:"unsynced_names"` // changes of names that a crash now forgets
	Limit       int64 `json:"limit_bytes"`    // 0 without
	Crashed     bool  `json:"crashed"`
}

// Stats returns them. It answers after a crash, and when all hangs.
func (d *Disk) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.stats
	s.Bytes, s.Crashed = d.bytes, d.crashed
	for _, n := range d.inodes {
		s.Unsynced += n.dirty.count() * Sector
		s.Names += int64(len(n.log))
	}
	d.gate.set(func(g *gate) { s.Limit = g.limit })
	return s
}
