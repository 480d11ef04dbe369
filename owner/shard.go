package owner

import (
	"hash/maphash"
	"sync"
	"unsafe"

	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/internal/flat"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/queue"
	"github.com/keystead/keystead/owner/reqid"
)

// shard holds the objects of one stretch of the hash space.
type shard struct {
	store  *Store
	number int        // among the shards
	mu     sync.Mutex // guards everything below

	index  flat.Index // tag of (key, name) → entry
	cells  flat.Cells // entries, each with its state, key and name behind it
	holds  flat.Slab[hold.State]
	marks  flat.Cells // of sliding windows that have some
	overs  flat.Slab[limit.Override]
	values flat.Slab[[]byte] // of registers that have one, and texts of what is done once
	ids    *reqid.Table
	heat   Heat // nil = nobody asks

	now int64 // latest moment seen: callers read their clocks before they come here

	version      uint64         // of the last change
	lastToken    uint64         // greatest fencing token used here
	reported     int            // bytes that the store counts for this shard
	idsReported  int            // … of them, those of request ids
	keysReported int            // idempotency keys of its own that the store counts for this shard
	text         int            // bytes that states refer to
	sweepAt      uint32         // entry that the sweep looks at next
	mine         int64          // objects that are this process's own, about; see budget.go
	sampled      int64          // … that this round of the sweep has found
	shifts       uint64         // raised when entries may have moved in the index
	record       Record         // reused for the sink
	done         []Done         // ids remembered since the last record; reused
	gone         []queue.Caller // of places that are gone since the last record; reused
	memberText   []byte         // of the members of a record; reused
	kept         reqid.Kept     // reused for whole records
	slide        []limit.Mark   // of the sliding window that is decided; reused
	holdFx       hold.Effects   // of the last step of a hold; reused
	holders      []uint64       // tokens of holders that changed since the last record; reused
	entrants     []hold.Waiter  // places of a hold that changed since then and are not gone; reused

	waits     map[uint64]*waiter  // by ticket: callers in queues
	waitIDs   map[waitID]*waiter  // … those that have a request id
	crowd     int                 // the most of them since there were none
	scheduled map[uint32]int64    // by entry: earliest wake asked for
	watched   map[address]awaited // objects that are awaited
	crowds    map[address]*crowd  // of callers that wait for work that another does
	copies    map[uint32]struct{} // by entry: locks with a queue that came from elsewhere; see Own
	sessions  sessionIndex

	admissions flat.Slab[reservations]
	admitting
	gathering         // barriers, and the calls that await
	track     tracked // what has changed since the last Gather
}

// keepGone is the room for places that are gone that a shard keeps: all may go at once.
const keepGone = 2 * queue.MaxExpire

// entry begins the cell of an object. Behind it, in the same cell and so on the
// same cache lines, stand the state of a limit or counter, the key and the name.
// No pointers. The zero state says that the object is absent and has only
// request ids.
type entry struct {
	ids     uint32 // in ids; 0 = none
	rest    uint32 // where the rest of the object is: in the slab of its kind, and of a limit its override, in overs; 0 = none
	bits    uint16 // length of the key, and flags: see track.go
	nameLen uint8
	kind    Kind
	counted uint32 // bytes that the state of a hold or a barrier refers to, as they are counted in text
}

const entrySize = unsafe.Sizeof(entry{})

// state returns the room for the state behind the entry, of which the kind says the size.
func (e *entry) state() unsafe.Pointer { return unsafe.Add(unsafe.Pointer(e), entrySize) }

// text returns the key and the name.
func (e *entry) text() []byte {
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(e), entrySize+machines[e.kind].cell)), e.keyLen()+int(e.nameLen))
}

func (sh *shard) entryLocked(slot uint32) *entry { return (*entry)(sh.cells.At(slot)) }

// target is an object in the hands of one operation, its shard locked.
type target struct {
	sh      *shard
	e       *entry // nil = the object is not in the store
	slot    uint32 // of e; 0 = none
	tag     uint32
	keyTag  uint64 // hash of the key under the seed of the tags; 0 = unknown
	kind    Kind
	roles   roles  // in which the operation may come
	weight  uint32 // of a part of a limit, by the serving rule; 0 = it is none
	hash    uint64
	ref     Ref
	permit  Permit
	now     int64
	wall    int64           // the time of day, ns since 1970, of a check that goes by a calendar
	slack   uint64          // by how much the capacity of a limit is above that of the part
	limit   uint64          // of the override of a limit that is in force; 0 = none
	over    *limit.Override // that one; nil = none. Valid until another is set
	callers limit.Params    // that a check states which is overridden
	quiet   bool            // no user has asked for it: it is not counted
	frees   bool            // the operation makes room
	copied  bool            // it is a copy of another process's
}

// enter finds the object of an operation, of which ref, kind and now are set,
// and lets the operation in. If it succeeds, the shard is locked until leave.
func (t *target) enter(s *Store) error {
	if err := t.ref.validate(); err != nil {
		return err
	}
	if (t.ref.Role != Whole || t.roles != 0) && !t.roles.allows(t.ref.Role, t.kind) {
		return errRole
	}
	t.hash = t.ref.hash()
	t.keyTag = maphash.String(s.seed, t.ref.Key)
	t.tag = s.tag(t.keyTag, maphash.String(s.seed, t.ref.Name))
	t.sh = s.shard(t.hash)
	t.sh.mu.Lock()
	// A sweep or another operation may have seen a later moment, and have
	// forgotten what was over by then.
	t.sh.now = max(t.sh.now, t.now)
	t.now = t.sh.now
	var err error
	t.permit, err = s.cfg.Rule.Admit(t.hash, t.now)
	//guard:kind-level
	if need := machines[t.kind].level; err == nil && need != 0 && s.levels != nil && !s.levels.Uses(need) {
		err = errLevel
	}
	if err == nil && (s.splits != nil || t.ref.Role != Whole) {
		err = t.splitLocked(s.splits)
	}
	if err == nil {
		err = t.findLocked()
	}
	if t.permit.LostAt > t.now { // the clock was read before the row came
		t.sh.now = t.permit.LostAt
		t.now = t.sh.now
	}
	if err == nil && t.sh.isCopyLocked(t.slot) {
		err = t.ownLocked(OwnGrace)
	}
	if err != nil {
		t.sh.mu.Unlock()
		return err
	}
	if t.sh.heat != nil && !t.quiet {
		t.sh.heat.Touch(t.tag, t.now)
	}
	return nil
}

// findLocked finds the object and makes sure that it is of the right kind.
func (t *target) findLocked() error {
	if t.slot, t.e = t.sh.seekLocked(t.tag, t.ref.Key, t.ref.Name); t.slot == 0 {
		return nil
	}
	if t.e.kind == t.kind {
		return nil
	}
	if t.e.ids != 0 || !t.sh.absentLocked(t.e, t.now) || t.remembersLocked() {
		return mismatch(t.e.kind, t.kind)
	}
	t.sh.lapseLocked(t.slot, t.hash) // for the answer shows that it is over
	t.sh.forgetLocked(t.slot)
	t.slot, t.e = 0, nil
	return nil
}

func (t *target) leave() { t.sh.mu.Unlock() }

func (s *Store) addressTag(r Ref) uint32 {
	return s.tag(maphash.String(s.seed, r.Key), maphash.String(s.seed, r.Name))
}

// tag returns where an address stands in the index. It is made of hashes under a seed
// of this process: callers choose keys, and must not choose where they stand.
func (s *Store) tag(keyHash, nameHash uint64) uint32 {
	return uint32((keyHash*0x9E3779B97F4A7C15 + nameHash) >> 32)
}

func (sh *shard) findLocked(tag uint32, ref Ref) uint32 {
	slot, _ := sh.seekLocked(tag, ref.Key, ref.Name)
	return slot
}

// seekLocked returns the object of an address and its entry.
func (sh *shard) seekLocked(tag uint32, key, name string) (uint32, *entry) {
	x := &sh.index
	for slot, pos, ok := x.Seek(tag, x.Home(tag)); ok; slot, pos, ok = x.Seek(tag, pos+1) {
		e := sh.entryLocked(slot)
		if e.keyLen() != len(key) || int(e.nameLen) != len(name) {
			continue
		}
		text := e.text()
		if string(text[:len(key)]) == key && string(text[len(key):]) == name {
			return slot, e
		}
	}
	return 0, nil
}

// size returns that of the target's cell.
func (t *target) size() int {
	return int(entrySize+machines[t.kind].cell) + len(t.ref.Key) + len(t.ref.Name)
}

// createLocked puts the object in the store, absent as yet.
func (t *target) createLocked() {
	sh := t.sh
	t.slot = sh.cells.Add(t.size())
	t.e = sh.entryLocked(t.slot)
	*t.e = entry{bits: uint16(len(t.ref.Key)) | sh.freshLocked(), nameLen: uint8(len(t.ref.Name)), kind: t.kind}
	text := t.e.text()
	copy(text, t.ref.Key)
	copy(text[len(t.ref.Key):], t.ref.Name)
	span := sh.index.Span()
	sh.index.Put(t.tag, t.slot)
	if sh.index.Span() != span {
		sh.shifts++
	}
	sh.store.objects[t.kind].Add(1)
	if !t.copied && sh.store.owners != nil {
		sh.countMineLocked(1)
	}
}

// judgeLocked asks what is known about the request id of the operation.
func (t *target) judgeLocked(id *reqid.ID, print uint32) (replay bool, out reqid.Outcome, age int64, err error) {
	if !id.Given() {
		return false, out, 0, nil
	}
	if id.Settled > id.Sequence {
		return false, out, 0, invalid("request_id.settled", "is %d, above the sequence %d of the request itself", id.Settled, id.Sequence)
	}
	if err := t.keysKnown(id); err != nil {
		return false, out, 0, err
	}
	var ids uint32
	if t.e != nil {
		ids = t.e.ids
	}
	if t.sh.waiterLocked(t.slot, id) != nil {
		return false, out, 0, reused(id) // for an Acquire that still waits
	}
	//guard:ids-from-before t.permit.Since -> 0
	switch verdict, out, age := t.sh.ids.Judge(ids, id, print, t.permit.Since, t.now); verdict {
	case reqid.Replay:
		return true, out, age, nil
	case reqid.TooOld:
		return false, out, 0, errTooOld
	case reqid.Reused:
		return false, out, 0, reused(id)
	case reqid.Unsure:
		return false, out, 0, unsure(age)
	}
	return false, out, 0, nil
}

// changedLocked closes an operation that changed the object or has a request
// id: it remembers the id, counts the room taken and tells the sink.
func (t *target) changedLocked(id *reqid.ID, out reqid.Outcome) {
	if id.Given() {
		t.noteLocked(id, out)
	}
	t.sh.notifySinkLocked(t.slot, t.hash)
}

// noteLocked remembers a request id. The next record says so.
func (t *target) noteLocked(id *reqid.ID, out reqid.Outcome) {
	sh := t.sh
	if t.slot == 0 {
		t.createLocked()
	}
	t.e.ids = sh.ids.Note(t.e.ids, t.slot, id, out, t.now)
	sh.done = append(sh.done, Done{*id, out})
}

// notifySinkLocked tells the sink of an object that has changed, and of the ids
// remembered since the last record.
func (sh *shard) notifySinkLocked(slot uint32, hash uint64) {
	sh.accountLocked()
	if sh.track.on {
		sh.noteChangeLocked(slot, hash)
	}
	if sink := sh.store.cfg.Sink; sink != nil {
		r := sh.recordLocked(slot, hash, sh.store.partial != nil && sh.store.partial.Partial())
		//guard:record-ids
		r.Done, r.Beside = sh.done, sh.beside
		sink.Changed(r)
	}
	sh.done = sh.done[:0]
	clear(sh.entrants)
	if cap(sh.gone) > keepGone {
		sh.gone, sh.record.Members = nil, nil
	}
	sh.gone, sh.entrants, sh.holders, sh.parties = sh.gone[:0], sh.entrants[:0], sh.holders[:0], sh.parties[:0]
	sh.ended, sh.beside = sh.ended[:0], sh.beside[:0]
}

// recordLocked fills the shard's record with the state of an entry, under the
// version of the last change: of a lock with its queue, or with the places that have
// changed.
func (sh *shard) recordLocked(slot uint32, hash uint64, partial bool) *Record {
	e := sh.entryLocked(slot)
	text := e.text()
	r := &sh.record
	*r = Record{Hash: hash, Key: text[:e.keyLen()], Name: text[e.keyLen():], Kind: e.kind, Version: sh.version, At: sh.now, Members: r.Members[:0]}
	machines[e.kind].states.record(sh, e, r, partial)
	return r
}

func (sh *shard) accountLocked() {
	n := sh.index.Bytes() + sh.cells.Bytes() + sh.holds.Bytes() + sh.gathers.Bytes() + sh.admissions.Bytes() + sh.marks.Bytes() + sh.overs.Bytes() + sh.values.Bytes() + sh.ids.Bytes() + sh.sessions.Bytes() + sh.text
	if n != sh.reported {
		sh.store.bytes.Add(int64(n - sh.reported))
		sh.reported = n
		ids := sh.ids.Bytes()
		sh.store.idBytes.Add(int64(ids - sh.idsReported))
		sh.idsReported = ids
	}
	if n := sh.ids.OwnKeys(); n != sh.keysReported {
		sh.store.keys.Add(int64(n - sh.keysReported))
		sh.keysReported = n
	}
}

// absentLocked reports whether the object equals one that never was.
func (sh *shard) absentLocked(e *entry, now int64) bool {
	return machines[e.kind].states.absent(sh, e, now)
}

// lapseLocked makes it a change of its own that an object is absent by now, so
// that copies, whose time runs a little behind, do not bring it back after an
// answer has shown that it is over. It does nothing if there is nothing to tell.
func (sh *shard) lapseLocked(slot uint32, hash uint64) {
	e := sh.entryLocked(slot)
	m := &machines[e.kind]
	if !m.states.spent(sh, e) {
		return
	}
	sh.store.expired[e.kind].Add(1)
	if m.grants != nil && !m.results {
		sh.store.lapsed.Add(sh.lapsesLocked(slot))
	}
	sh.unlistAllLocked(slot)
	m.states.clear(sh, e)
	sh.advanceLocked()
	sh.notifySinkLocked(slot, hash)
}

// lapsesLocked returns how many grants of an object that is over end by that.
func (sh *shard) lapsesLocked(slot uint32) (n int64) {
	state := sh.heldLocked(slot)
	if state == nil {
		return 1
	}
	for i := range state.Holders {
		if !state.Holders[i].Ended {
			n++
		}
	}
	return n
}

// forgetBareLocked forgets the target, of which the sink was told, if nothing is left of it
// but the room that it takes.
func (t *target) forgetBareLocked() {
	if t.slot == 0 || t.e.ids != 0 || !t.sh.absentLocked(t.e, t.now) || t.remembersLocked() {
		return
	}
	t.sh.forgetLocked(t.slot)
	t.slot, t.e = 0, nil
	t.sh.accountLocked()
}

// forgetLocked removes an object that is absent and has no request ids.
func (sh *shard) forgetLocked(slot uint32) {
	e := sh.entryLocked(slot)
	if e.ids != 0 {
		panic("owner: forgetting an object that has request ids")
	}
	text := e.text()
	seed := sh.store.seed
	if e.bits&isStored != 0 {
		sh.noteGoneLocked(slot)
	}
	sh.index.Delete(sh.store.tag(maphash.Bytes(seed, text[:e.keyLen()]), maphash.Bytes(seed, text[e.keyLen():])), slot)
	sh.shifts++
	sh.store.objects[e.kind].Add(-1)
	if o := sh.store.owners; o != nil && o.Owns(sh.hashLocked(slot)) {
		sh.countMineLocked(-1)
	}
	sh.unlistAllLocked(slot)
	machines[e.kind].states.clear(sh, e)
	delete(sh.scheduled, slot)
	delete(sh.copies, slot)
	sh.cells.Free(slot)
}
