package owner

import "github.com/keystead/keystead/internal/failure"
import "github.com/keystead/keystead/owner/reqid"

// How a store that is nearly full is divided.
const (
	// What a node of a cluster takes for objects of its own: ownShare of MaxObjects and
	// of MaxBytes. N nodes at their caps each own a share and stand by for as much, so
	// that two fifths are four with the copies. When one of three dies, the two that are
	// left have three fifths each of their own and as much of copies: six, and copies may
	// go up to five quarters of MaxBytes (copyRoom), which are 6.25.
	ownShare, ownParts = 2, 5
	// Request ids of objects that are there go on beyond that share. With all, own objects
	// may take idHalf of MaxBytes, so that copies as large have the rest; with ids of few
	// clients (reserveClients) idMost, so that copies as large have what is left of five
	// quarters. Of a process whose own objects take idHalf without their ids, MaxBytes is
	// the bound: it took over from a dead one, or was alone before.
	idHalf, idMost, idParts = 4, 5, 8
	// idReserve is what request ids of objects that are there may take beyond MaxBytes, as
	// a part of it: at 1 GiB, 64 MiB or 400,000 ids of 153 bytes, which with a window of
	// 5 min are 1,400 operations a second. What clients know goes on when nothing new is
	// let in.
	idReserve = 16
	// reserveClients is how many clients of one object may take of the reserve: 1 MB at
	// the default of 1,024 ids of a client, so that 64 busy objects do not use it up.
	reserveClients = 16
	// reserveKeys is how many idempotency keys of one object may take of it.
	reserveKeys = 8192
)

// Owners is a Rule of a process that may keep copies for others.
type Owners interface {
	// Owns reports whether a key at this position is the process's own, whether or not
	// it may act for it now.
	Owns(hash uint64) bool
	// Shared reports whether there are others that may keep their copies here.
	Shared() bool
}

// all returns how many objects there are.
func (s *Store) all() int64 {
	n := int64(0)
	for k := range s.objects {
		n += s.objects[k].Load()
	}
	return n
}

// ownBytes is about what objects of the process's own take: copies are as large.
func (s *Store) ownBytes() int64 {
	return int64(float64(s.bytes.Load()) * float64(min(s.mine.Load(), s.all())) / float64(max(s.all(), 1)))
}

// idsFull reports whether the process's own objects take so many parts of the memory that
// copies of others' need the rest.
func (s *Store) idsFull(parts int64) bool {
	own := float64(min(s.mine.Load(), s.all())) / float64(max(s.all(), 1))
	without := int64(float64(s.bytes.Load()-s.idBytes.Load()) * own)
	return s.ownFull(parts, idParts) &&
		without < s.cfg.MaxBytes/idParts*idHalf //guard:id-alone-before
}

// shareFull reports whether the process's own objects are as many, or take as much memory,
// as they may beside copies of others'.
func (s *Store) shareFull() bool {
	return s.ownFull(ownShare, ownParts) || s.shared() && s.mine.Load() >= s.cfg.MaxObjects*ownShare/ownParts
}

// ownFull reports whether they take such a part of the memory.
func (s *Store) ownFull(part, of int64) bool {
	return s.shared() && s.ownBytes() >= s.cfg.MaxBytes/of*part
}

func (s *Store) shared() bool { return s.owners != nil && s.owners.Shared() }

// roomLocked reports whether the operation may take the room that it needs: for
// an object that is not there yet, or for a request id. At the limit of memory
// it may take what was freed before.
func (t *target) roomLocked(id *reqid.ID) *failure.Error {
	s, sh := t.sh.store, t.sh
	if err := t.keyRoomLocked(id); err != nil {
		return err
	}
	if t.slot != 0 {
		return t.idRoomLocked(id)
	}
	switch {
	case s.all() >= s.cfg.MaxObjects:
		return errObjects
	//guard:own-share
	case s.shareFull():
		return errShare
	case s.bytes.Load() < s.cfg.MaxBytes:
		return nil
	case !sh.index.Room() || !sh.cells.Room(t.size()):
		return errMemory
	case id.Given() && !t.idsHaveRoom(id):
		return errMemory
	}
	if slab := machines[t.kind].slab; slab != nil && !slab.room(sh) {
		return errMemory
	}
	return nil
}

// idRoomLocked is roomLocked for an object that is there. A part of the memory is kept
// for its request ids.
func (t *target) idRoomLocked(id *reqid.ID) *failure.Error {
	s := t.sh.store
	//guard:id-reserve -> reserve := int64(0)
	reserve := s.cfg.MaxBytes / idReserve
	switch {
	case !id.Given() || s.bytes.Load() < s.cfg.MaxBytes && !s.idsFull(idHalf), t.idsHaveRoom(id):
		return nil
	//guard:id-takeover s.idsFull(idMost) -> s.ownFull(ownShare, ownParts)
	case s.bytes.Load() >= s.cfg.MaxBytes+reserve || s.idsFull(idMost):
		return errMemory
	//guard:id-reserve-fair
	case !t.fewIDs(id):
		return errIDs
	}
	return nil
}

// countMineLocked counts objects of the process's own in or out.
func (sh *shard) countMineLocked(n int64) {
	n = max(n, -sh.mine)
	sh.mine += n
	sh.store.mine.Add(n)
}

// sampled is how many entries of a shard a round of the sweep looks at, at most, to learn
// whose they are: rows come and go, and objects with them.
const sampled = 4096

// sampleLocked looks whose the entry is at which the sweep is.
func (sh *shard) sampleLocked(slot uint32) {
	step := 1 + sh.index.Span()/sampled
	if o := sh.store.owners; o != nil && sh.sweepAt%step == 0 && o.Owns(sh.hashLocked(slot)) {
		sh.sampled += int64(step)
	}
}

// sampledLocked takes what a round of the sweep has found.
func (sh *shard) sampledLocked() {
	if sh.store.owners != nil {
		sh.countMineLocked(sh.sampled - sh.mine)
		sh.sampled = 0
	}
}
