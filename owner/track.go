package owner

import (
	"sync/atomic"

	"github.com/keystead/keystead/owner/reqid"
)

// A disk stands by for the store: it is given what has changed since it was last, not each
// change. An object that changed is in the list of its shard once, however often it did; Gather
// goes through the lists. Beside them stand the addresses of objects that are gone, and the
// request ids of changes: these are not part of an object that is put, or one that has sixty
// thousand of them would be written with each change.

// Flags of an entry, above the length of the key.
const (
	isChanged = 1 << 15 // it is in the list
	isStored  = 1 << 14 // a Gather has put the object since it was deleted last
	isFresh   = 1 << 13 // no Gather has told of its request ids: the next one tells of all that it has
	isVoid    = 1 << 12 // it is being discarded, with all that was told of its ids

	keyBits = 1<<10 - 1
)

// keyLen returns the length of the key.
func (e *entry) keyLen() int { return int(e.bits & keyBits) }

// Journal is what keeps a store on disk. Its methods are called under the lock of a shard, and
// must be quick.
type Journal interface {
	// AppendIDs appends an entry that tells of the request ids of a record, for Remember: of Done, or, if the
	// record is Whole or More, of IDs.
	AppendIDs(to []byte, r *Record) []byte
	// Awaited reports whether answers about an object of this kind wait until what they tell is on disk.
	Awaited(kind Kind) bool
	// Crowded says that so much of a shard has changed that a Gather ought to come soon: it holds
	// the shard as long as it puts that.
	Crowded()
}

// crowdedList is how many objects of a shard have changed when it is crowded: a Gather takes
// about two milliseconds for them.
const crowdedList = 4096

// tracked is what has changed of a shard since the last Gather.
type tracked struct {
	on      bool      // somebody gathers
	round   uint64    // of the last Gather that came here
	changes []uint32  // entries that are isChanged; of those that were forgotten since, what is in their place now
	gone    []byte    // addresses of objects that are gone and were isStored: see noteGoneLocked
	news    []byte    // entries about request ids
	spans   []stretch // in which objects were discarded; what there is now has to be put again
	spent   struct {
		list []uint32
		gone []byte
		news []byte
	}
	held int64 // bytes that the store counts for gone, news and spans

	// By the low bits of the hash: the round that the last change goes into that is awaited, and that of the others.
	awaited, others [marks]atomic.Uint64
}

// marks is how many a shard has: few enough for a cache, and enough that an answer rarely waits
// for the change of another key.
const marks = 64

// keepNews is how much room for what is gathered a shard keeps, in bytes.
const keepNews = 1 << 16

// freshLocked returns the flags of an object that is made.
func (sh *shard) freshLocked() uint16 {
	if sh.track.on {
		return isFresh
	}
	return 0
}

// noteChangeLocked notes that an object has changed, with those that the same step changed
// beside it, and the ids that were remembered.
func (sh *shard) noteChangeLocked(slot uint32, hash uint64) {
	e := sh.entryLocked(slot)
	sh.trackLocked(slot, e, hash)
	sh.noteDoneLocked(e, hash, sh.done)
}

// maxNews bounds what a store has for the next Gather while copies come in, which nobody holds back for a disk that hangs.
const maxNews = 32 << 20

// noteCopiedLocked notes ids that came with a record. When too much waits, the next Gather tells of all ids of the object.
func (sh *shard) noteCopiedLocked(e *entry, hash uint64, done []Done) {
	//guard:disk-copies-bounded false
	if len(done) > 0 && sh.store.ungathered.Load() > maxNews {
		sh.noteIDsLocked(e)
		return
	}
	sh.noteDoneLocked(e, hash, done)
}

// noteDoneLocked notes ids that an object remembers from now on.
func (sh *shard) noteDoneLocked(e *entry, hash uint64, done []Done) {
	if len(done) == 0 {
		return
	}
	//guard:disk-ids-of-fresh true
	if e.bits&isFresh == 0 {
		text := e.text()
		r := Record{Hash: hash, Key: text[:e.keyLen()], Name: text[e.keyLen():], Kind: e.kind, Version: sh.version, At: sh.now, Done: done}
		sh.track.news = sh.store.cfg.Journal.AppendIDs(sh.track.news, &r)
		sh.weighLocked()
	}
}

// trackLocked notes that an object has changed.
func (sh *shard) trackLocked(slot uint32, e *entry, hash uint64) {
	if e.bits&isChanged == 0 {
		e.bits |= isChanged
		if sh.track.changes = append(sh.track.changes, slot); len(sh.track.changes)%crowdedList == 0 {
			sh.store.cfg.Journal.Crowded()
		}
	}
	sh.markLocked(e.kind, hash)
}

// markLocked notes into which round a change goes.
func (sh *shard) markLocked(k Kind, hash uint64) {
	to := &sh.track.others
	if sh.store.cfg.Journal.Awaited(k) {
		to = &sh.track.awaited
	}
	//guard:disk-mark
	to[hash%marks].Store(sh.track.round + 1)
}

// noteIDsLocked notes that all ids of an object have changed.
func (sh *shard) noteIDsLocked(e *entry) {
	if sh.track.on {
		e.bits |= isFresh
	}
}

// noteGoneLocked notes that an object that is stored is forgotten.
func (sh *shard) noteGoneLocked(slot uint32) {
	e := sh.entryLocked(slot)
	hash := sh.hashLocked(slot)
	n := e.keyLen()
	for shift := 56; shift >= 0; shift -= 8 {
		sh.track.gone = append(sh.track.gone, byte(hash>>shift))
	}
	sh.track.gone = append(sh.track.gone, byte(n>>8), byte(n), e.nameLen)
	sh.track.gone = append(sh.track.gone, e.text()...)
	sh.weighLocked()
	sh.markLocked(e.kind, hash)
}

// noteSpansLocked notes, before an object is discarded, that all of the stretches of its Discard is: so the
// object has no address noted, and what was told of its ids is void.
func (sh *shard) noteSpansLocked(slot uint32, d *discarding) {
	e := sh.entryLocked(slot)
	if !sh.track.on || d.in == nil || e.bits&isStored == 0 && e.ids == 0 {
		return
	}
	//guard:disk-spans-again d.noted != sh.track.round+1 -> d.noted == 0
	if d.noted != sh.track.round+1 {
		d.noted = sh.track.round + 1
		//guard:disk-spans
		sh.track.spans = append(sh.track.spans, d.in...)
		sh.weighLocked()
	}
	sh.markLocked(e.kind, sh.hashLocked(slot))
	e.bits = e.bits&^isStored | isVoid
}

// voidIDsLocked notes that the ids of an object are dropped, which were told, perhaps.
func (sh *shard) voidIDsLocked(slot uint32, e *entry) {
	if !sh.track.on || e.ids == 0 || e.bits&isVoid != 0 {
		return
	}
	text := e.text()
	r := Record{Hash: sh.hashLocked(slot), Key: text[:e.keyLen()], Name: text[e.keyLen():], Kind: e.kind, Version: sh.version, At: sh.now, Whole: true, IDs: &noIDs}
	//guard:disk-void-ids
	sh.track.news = sh.store.cfg.Journal.AppendIDs(sh.track.news, &r)
	sh.weighLocked()
	sh.markLocked(e.kind, r.Hash)
}

// noIDs are the ids of an object that has none.
var noIDs reqid.Kept

// retakeLocked adds to a list what is in stretches of which a Gatherer is told that all in them is gone.
func (sh *shard) retakeLocked(list []uint32, in []stretch) []uint32 {
	for slot := sh.cells.Next(0); slot != 0; slot = sh.cells.Next(slot) {
		e := sh.entryLocked(slot)
		if e.kind == 0 || e.ids == 0 && (e.bits&isStored == 0 || e.bits&isChanged != 0) || !within(in, sh.hashLocked(slot)) {
			continue
		}
		//guard:disk-spans-ids
		e.bits |= isFresh
		if e.bits&isChanged == 0 {
			e.bits |= isChanged
			//guard:disk-spans-left
			list = append(list, slot)
		}
	}
	return list
}

// weighLocked has the store count what waits to be gathered.
func (sh *shard) weighLocked() {
	if n := int64(cap(sh.track.gone) + cap(sh.track.news) + 16*cap(sh.track.spans)); n != sh.track.held {
		sh.store.ungathered.Add(n - sh.track.held)
		sh.track.held = n
	}
}

// Gatherer takes what has changed.
type Gatherer interface {
	// Put is given an object as it is now, without request ids; or, if the record is Whole or More, all its
	// ids in one record or several: what was told of them before is void from the Whole one on.
	// It is called under the lock of a shard, and keeps nothing of the record.
	Put(r *Record)
	// Delete is given the address of an object that is gone, or absent. It is called before those that are put
	// of the same shard, and keeps nothing.
	Delete(hash uint64, key, name []byte)
	// IDs is given the entries of the journal, before ids that are put.
	IDs(entries []byte)
	// Discard says that all objects of a stretch are gone, and all that was told of their ids before is void. It is called
	// after IDs and before what is deleted or put. now is the moment of what is put next of this shard.
	Discard(now int64, in Span)
	// End says that this was all of a shard: of one moment, so that it has to be taken in as a
	// whole. version is the greatest one of its changes until then. If it returns false, Gather ends.
	End(version uint64) bool
}

// Track begins to note what changes; a Journal must be set. What is in the store now counts as put, and its ids as
// told, if stored is true; else the next Gather puts all of it.
func (s *Store) Track(stored bool) {
	for i := range s.shards {
		s.shards[i].beginTrack(stored)
	}
}

func (sh *shard) beginTrack(stored bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.track.on = true
	sh.track.gone, sh.track.news, sh.track.changes, sh.track.spans = sh.track.gone[:0], sh.track.news[:0], sh.track.changes[:0], nil
	for slot := sh.cells.Next(0); slot != 0; slot = sh.cells.Next(slot) {
		e := sh.entryLocked(slot)
		if e.kind == 0 {
			continue
		}
		if e.bits &^= isChanged | isStored | isFresh; stored {
			e.bits |= isStored
		} else {
			e.bits |= isFresh
			sh.trackLocked(slot, e, sh.hashLocked(slot))
		}
	}
	sh.weighLocked()
}

// Unskip has the next Gather come to all that is not stored: what earlier ones took for absent because it
// would be full again in less than soon.
func (s *Store) Unskip() {
	for i := range s.shards {
		s.shards[i].unskip()
	}
}

func (sh *shard) unskip() {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for slot := sh.cells.Next(0); slot != 0; slot = sh.cells.Next(slot) {
		if e := sh.entryLocked(slot); e.kind != 0 && e.bits&(isStored|isChanged) == 0 {
			e.bits |= isChanged
			sh.track.changes = append(sh.track.changes, slot)
		}
	}
}

// Gather hands over what has changed since the last one, shard by shard. round is one
// more than that of the Gather before. A limit that is full again in less than soon, ns, and
// has no request ids, counts as absent. It returns false if to ended it: what it had not come
// to is left for the next.
func (s *Store) Gather(now int64, round uint64, soon int64, to Gatherer) bool {
	for i := range s.shards {
		if !s.shards[i].gather(now, round, soon, to) {
			return false
		}
	}
	return true
}

func (sh *shard) gather(now int64, round uint64, soon int64, to Gatherer) bool {
	sh.mu.Lock()
	sh.now = max(sh.now, now)
	list, gone, news, spans := sh.track.changes, sh.track.gone, sh.track.news, apart(sh.track.spans)
	sh.track.changes, sh.track.gone, sh.track.news, sh.track.spans = sh.track.spent.list, sh.track.spent.gone, sh.track.spent.news, nil
	//guard:disk-round
	sh.track.round = round
	if len(news) > 0 {
		to.IDs(news)
	}
	if len(spans) > 0 {
		for _, s := range spans {
			to.Discard(sh.now, s.span())
		}
		list = sh.retakeLocked(list, spans)
	}
	toDelete(gone, to)
	for _, slot := range list {
		if !sh.cells.Holds(slot) {
			continue // forgotten, and its room given back
		}
		//guard:disk-once
		if e := sh.entryLocked(slot); e.kind != 0 && e.bits&isChanged != 0 {
			e.bits &^= isChanged
			sh.putLocked(slot, e, soon, to)
		}
	}
	sh.track.spent.list, sh.track.spent.gone, sh.track.spent.news = reuse(list), reuse(gone), reuse(news)
	sh.weighLocked()
	version := sh.version
	sh.mu.Unlock()
	return to.End(version)
}

// reuse returns the room of a list for the next but one Gather.
func reuse[T any](l []T) []T {
	if cap(l) > keepNews {
		return nil
	}
	return l[:0]
}

// putLocked hands over one object.
func (sh *shard) putLocked(slot uint32, e *entry, soon int64, to Gatherer) {
	hash := sh.hashLocked(slot)
	states := machines[e.kind].states
	//guard:disk-soon e.ids == 0 -> true
	if e.ids == 0 && (states.absent(sh, e, sh.now) || e.rest == 0 && states.fades() && states.absent(sh, e, sh.now+soon)) {
		//guard:disk-absent
		if e.bits&isStored != 0 {
			text := e.text()
			to.Delete(hash, text[:e.keyLen()], text[e.keyLen():])
		}
		e.bits &^= isStored
	} else {
		to.Put(sh.recordLocked(slot, hash, false))
		e.bits |= isStored
	}
	if e.bits&isFresh == 0 || e.ids == 0 {
		return
	}
	e.bits &^= isFresh
	var at reqid.Cursor
	for done, more := false, false; !done; more = true {
		at, done = sh.ids.Save(e.ids, at, MaxKept, &sh.kept)
		r := &sh.record
		text := e.text()
		*r = Record{Hash: hash, Key: text[:e.keyLen()], Name: text[e.keyLen():], Kind: e.kind, Version: sh.version, At: sh.now, Members: r.Members[:0],
			Whole: !more, More: more, IDs: &sh.kept}
		to.Put(r)
	}
}

// toDelete hands over the addresses of what is gone.
func toDelete(gone []byte, to Gatherer) {
	for len(gone) > 0 {
		hash := uint64(0)
		for _, b := range gone[:8] {
			hash = hash<<8 | uint64(b)
		}
		key, name := int(gone[8])<<8|int(gone[9]), int(gone[10])
		gone = gone[11:]
		to.Delete(hash, gone[:key], gone[key:key+name])
		gone = gone[key+name:]
	}
}

// Awaits returns the round whose end answers about keys at this position wait for, and that which has all that they tell, also
// of kinds that are not awaited.
func (s *Store) Awaits(hash uint64) (awaited, all uint64) {
	t := &s.shard(hash).track
	awaited = t.awaited[hash%marks].Load()
	return awaited, max(awaited, t.others[hash%marks].Load())
}

// Ungathered returns how many bytes of memory wait for the next Gather, beside the objects
// themselves.
func (s *Store) Ungathered() int64 { return s.ungathered.Load() }

// Has reports whether there is an object at an address, absent or not.
func (s *Store) Has(ref Ref) bool {
	sh := s.shard(ref.hash())
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.findLocked(s.addressTag(ref), ref) != 0
}

// Remember adds request ids to an object that a Journal's entry tells of, and nothing else. If
// the record is Whole, those that the object has are dropped before. now is the reference for
// the record's durations. Ids of an object that is of another kind now are left out.
func (s *Store) Remember(now int64, r *Record) error {
	if err := r.validateIDs(now); err != nil {
		return err
	}
	t := target{copied: true, kind: r.Kind, ref: Ref{Key: view(r.Key), Name: view(r.Name)}, now: now}
	t.hash, t.tag = Hash(t.ref.Key), s.addressTag(t.ref)
	sh := s.shard(t.hash)
	t.sh = sh
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if t.slot = sh.findLocked(t.tag, t.ref); t.slot != 0 {
		t.e = sh.entryLocked(t.slot)
	}
	if t.e != nil && t.e.kind != r.Kind {
		return nil
	}
	if err := t.copyRoomLocked(r); err != nil {
		return err
	}
	if t.slot == 0 {
		t.createLocked()
	}
	//guard:disk-ids-void r.Whole && t.e.ids != 0 -> false
	if r.Whole && t.e.ids != 0 {
		sh.ids.Drop(t.e.ids)
		t.e.ids = 0
	}
	t.takeIDsLocked(r)
	if t.e.ids == 0 && sh.absentLocked(t.e, sh.now) {
		sh.forgetLocked(t.slot)
	}
	sh.accountLocked()
	return nil
}
