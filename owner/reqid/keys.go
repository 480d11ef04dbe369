package reqid

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"slices"
)

// MaxKey is the longest idempotency key, in bytes.
const MaxKey = 64

// KeySequence is the sequence of the ids that idempotency keys have. No client numbers an
// operation so.
const KeySequence = math.MaxUint64

// forgotten is the key of nobody under which an object remembers that keys were forgotten
// in their window: those that were used up to its moment. It is kept, and travels, as a key.
var forgotten = Client{}

// KeyID returns the id of an operation that carries an idempotency key. It is the same in
// all processes. Keys that differ do not share one: 16 bytes of SHA-256 are not found twice.
func KeyID(key string) ID {
	var text [MaxKey]byte
	sum := sha256.Sum256(text[:copy(text[:], key)])
	c := Client{binary.BigEndian.Uint64(sum[:]), binary.BigEndian.Uint64(sum[8:])}
	if c == forgotten {
		c.Lo = 1
	}
	return ID{Client: c, Sequence: KeySequence}
}

// Keyed reports whether the id is that of an idempotency key.
func (id *ID) Keyed() bool { return id.Sequence == KeySequence }

// IsMark reports whether what is remembered is no operation: it says that keys which were
// used up to its moment are forgotten, in their window.
func IsMark(c Client, sequence uint64) bool { return sequence == KeySequence && c == forgotten }

// keyed is an operation that was done under an idempotency key, on one object.
type keyed struct {
	key      Client
	at       int64
	out      Outcome
	object   uint32
	bucket   uint16 // of Table.wheel that it is in
	own      bool   // it was done here, not told of by a copy
	inObject links  // neighbours by when they were noted, among the keys of the object
	inTable  links  // … of the bucket
}

func keyInObject(k *keyed) *links { return &k.inObject }
func keyInTable(k *keyed) *links  { return &k.inTable }

// judgeKey is Judge of an idempotency key. An unknown one is New only if nothing that was
// done in its window can have been forgotten: for Unsure, the number is the time until then.
func (t *Table) judgeKey(ref uint32, id *ID, print uint32, since, now int64) (Verdict, Outcome, int64) {
	known := since
	if ref != 0 {
		//guard:key-remembered
		if x := t.findKey(ref, id.Client); x != 0 && now-t.keys.At(x).at <= t.cfg.Window {
			//guard:key-reused
			if k := t.keys.At(x); k.out.Print != print {
				return Reused, Outcome{}, 0
			}
			k := t.keys.At(x)
			return Replay, k.out, max(now-k.at, 0)
		}
		//guard:key-forgotten
		if x := t.findKey(ref, forgotten); x != 0 {
			known = max(known, t.keys.At(x).at)
		}
	}
	//guard:key-unsure
	if known >= now-t.cfg.Window {
		return Unsure, Outcome{}, known - (now - t.cfg.Window) + 1
	}
	return New, Outcome{}, 0
}

// noteKey remembers an operation under a key, in place of an earlier one whose window is
// over. own says that it was done here.
func (t *Table) noteKey(ref uint32, key Client, out Outcome, at int64, own bool) {
	x := t.findKey(ref, key)
	if x == 0 {
		x = t.keys.Add()
		*t.keys.At(x) = keyed{key: key, object: ref}
		t.byKey.Put(t.nameTag(ref, key), x)
		t.objects.At(ref).keyed++
	} else {
		//guard:key-later
		if t.keys.At(x).at > at {
			return
		}
		t.unlinkKey(x)
	}
	k := t.keys.At(x)
	k.at, k.out = at, out
	t.count(k, own)
	add(&t.objects.At(ref).keys, &t.keys, x, keyInObject)
	t.wheel.add(t, x)
}

// count has a key be one that was used here, or not.
func (t *Table) count(k *keyed, own bool) {
	switch {
	case own && !k.own:
		t.ownKeys++
	case !own && k.own:
		t.ownKeys--
	}
	k.own = own
}

// findKey returns what is remembered of a key on an object, 0 = nothing.
func (t *Table) findKey(ref uint32, key Client) uint32 {
	tag := t.nameTag(ref, key)
	for x, pos, ok := t.byKey.Seek(tag, t.byKey.Home(tag)); ok; x, pos, ok = t.byKey.Seek(tag, pos+1) {
		if k := t.keys.At(x); k.object == ref && k.key == key {
			return x
		}
	}
	return 0
}

func (t *Table) unlinkKey(x uint32) {
	remove(&t.objects.At(t.keys.At(x).object).keys, &t.keys, x, keyInObject)
	t.wheel.remove(t, x)
}

func (t *Table) dropKey(x uint32) {
	k := t.keys.At(x)
	t.unlinkKey(x)
	t.count(k, false)
	t.byKey.Delete(t.nameTag(k.object, k.key), x)
	t.objects.At(k.object).keyed--
	t.keys.Free(x)
}

// expireKeys forgets keys whose window is over, as Expire does clients. It returns what is
// left of the budget.
func (t *Table) expireKeys(now int64, budget int, emptied func(owner uint32)) int {
	for ; budget > 0; budget-- {
		x := t.wheel.oldest(t, now-t.cfg.Window)
		if x == 0 {
			t.byKey.Shrink()
			return budget
		}
		//guard:key-kept t.cfg.Window -> 0
		if now-t.keys.At(x).at <= t.cfg.Window {
			if t.wheel.again(t, x) {
				continue
			}
			t.byKey.Shrink()
			return budget
		}
		ref := t.keys.At(x).object
		t.keysGone.last = max(t.keysGone.last, t.keys.At(x).at)
		t.dropKey(x)
		t.freeEmpty(ref, emptied)
	}
	return 0
}

// saveKeys puts keys of an object into k, from one on, and returns where to go on: 0 at
// the end.
func (t *Table) saveKeys(x uint32, most int, k *Kept) uint32 {
	for ; x != 0 && len(k.Clients)+len(k.Ops) < most; x = t.keys.At(x).inObject.newer {
		o := t.keys.At(x)
		k.AddKey(o.key, o.at, o.out)
	}
	return x
}

// AddKey adds a key to what is remembered.
func (k *Kept) AddKey(key Client, at int64, out Outcome) {
	k.Clients = append(k.Clients, KeptClient{Client: key, Seen: at, Linked: at, Ops: 1})
	k.Ops = append(k.Ops, KeptOp{KeySequence, at, out})
}

// AddMark adds that keys which were used up to a moment are forgotten, in their window.
func (k *Kept) AddMark(at int64) { k.AddKey(forgotten, at, Outcome{}) }

// Bare reports whether nothing is remembered but that ids and keys are forgotten.
func (k *Kept) Bare() bool {
	if len(k.Clients) > 2 || len(k.Ops) > 1 { // that of a mark, and one that keeps Evicted
		return false
	}
	for i := range k.Ops {
		if k.Ops[i].Sequence != KeySequence {
			return false
		}
	}
	return !slices.ContainsFunc(k.Clients, func(c KeptClient) bool { return c.Client != forgotten })
}

// Keyed returns how many keys there are.
func (k *Kept) Keyed() (n int) {
	for i := range k.Ops {
		if k.Ops[i].Sequence == KeySequence {
			n++
		}
	}
	return n
}

// Keys returns how many idempotency keys are remembered of an object.
func (t *Table) Keys(ref uint32) int {
	if ref == 0 {
		return 0
	}
	return int(t.objects.At(ref).keyed)
}

// AllKeys returns how many idempotency keys are remembered.
func (t *Table) AllKeys() int { return t.keys.Len() }

// OwnKeys returns how many of them were used here: Note told of them, not Take.
func (t *Table) OwnKeys() int { return t.ownKeys }

// KeyRoom reports whether the next key needs no more memory, whatever object it is for.
func (t *Table) KeyRoom() bool { return t.objects.Room() && t.keys.Room() && t.byKey.Room() }
