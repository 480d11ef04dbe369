package owner

// Heat counts the operations on objects of a shard by tag, so that those that are busy
// can be found. It is called with the shard locked, for every operation that the rule
// admits but Read and Put, which nodes do by themselves: it must be quick, and must not
// call the store.
type Heat interface {
	Touch(tag uint32, now int64)
}

// Object is an object that is held.
type Object struct {
	Ref
	Kind Kind
	// Waiting is the length of the object's queue.
	Waiting int
}

// EachHeat shows what the shards have counted, one after the other, each with its shard
// locked: f is to take what it needs and return. named returns the objects that have a
// tag, normally one; none if it is not held any more.
func (s *Store) EachHeat(f func(h Heat, named func(tag uint32) []Object)) {
	for i := range s.shards {
		if sh := &s.shards[i]; sh.heat != nil {
			sh.mu.Lock()
			f(sh.heat, sh.namedLocked)
			sh.mu.Unlock()
		}
	}
}

// namedLocked returns the objects under a tag.
func (sh *shard) namedLocked(tag uint32) (objects []Object) {
	x := &sh.index
	for slot, pos, ok := x.Seek(tag, x.Home(tag)); ok; slot, pos, ok = x.Seek(tag, pos+1) {
		e := sh.entryLocked(slot)
		text := string(e.text())
		objects = append(objects, Object{Ref: Ref{Key: text[:e.keyLen()], Name: text[e.keyLen():]}, Kind: e.kind, Waiting: sh.waitingLocked(e)})
	}
	return objects
}
