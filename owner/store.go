package owner

import (
	"hash/maphash"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/reqid"
)

// What an address may be.
const (
	MaxKey  = 512 // bytes
	MaxName = 128 // bytes
)

// Ref addresses an object: who is counted, limited or locked, and which of the
// key's objects.
type Ref struct {
	Key, Name string
	Role      Role   // in which an operation comes; no part of the address
	Split     uint64 // of the roles Carry and Join: the split that it comes for
	Hash      uint64 // of Key, from a caller that knows it; no part of the address. 0 = unknown
}

// hash returns the position of the key.
func (r *Ref) hash() uint64 {
	if r.Hash != 0 {
		return r.Hash
	}
	return Hash(r.Key)
}

func (r Ref) validate() *failure.Error {
	switch {
	case r.Key == "":
		return invalid("key", "is empty")
	//guard:split-reserved
	case r.Key[0] == reserved && !r.Role.onPart():
		return invalid("key", "begins with a NUL byte, which is reserved")
	case r.Role != Whole && r.Key[0] != reserved && r.Role.onPart():
		return invalid("key", "does not begin with a NUL byte, as that of a part does")
	case len(r.Key) > MaxKey:
		return invalid("key", "has %d bytes; at most %d are allowed", len(r.Key), MaxKey)
	case len(r.Name) > MaxName:
		return invalid("name", "has %d bytes; at most %d are allowed", len(r.Name), MaxName)
	case !validText(r.Key):
		return invalid("key", "is not valid UTF-8")
	case !validText(r.Name):
		return invalid("name", "is not valid UTF-8")
	}
	return nil
}

// validText reports whether s is valid UTF-8. Most keys and names are short and ASCII.
func validText(s string) bool {
	all := byte(0)
	for i := range len(s) {
		all |= s[i]
	}
	return all < utf8.RuneSelf || utf8.ValidString(s)
}

// CheckAddress reports why no object that callers name can have a key and a name.
func CheckAddress(key, name string) error {
	if err := (Ref{Key: key, Name: name}).validate(); err != nil {
		return err
	}
	return nil
}

// validAddress is validate of an address that no operation comes with: that of an
// object or of a part.
// Valid reports what cannot be an address, as an *failure.Error of reason Invalid.
func (r Ref) Valid() error {
	if err := r.validate(); err != nil {
		return err
	}
	return nil
}

func (r Ref) validAddress() *failure.Error {
	if r.Key != "" && r.Key[0] == reserved {
		r.Role = Plant
	}
	return r.validate()
}

// Config bounds a store.
type Config struct {
	Rule Rule // who may act; required
	Sink Sink // is told of changes; may be nil

	// Journal keeps the store on disk, from Track on; nil = nobody does.
	Journal Journal

	Shards            int          // a power of two, 1 to 4,096. Default 64
	MaxObjects        int64        // objects held. Default 10,000,000
	MaxBytes          int64        // memory allocated for objects. Default 1 GiB
	MaxWaiters        int64        // callers waiting for locks. Default 65,536
	MaxWaitersPerLock int          // callers waiting for one lock, at most MaxQueue. Default 1,024
	MaxLockTTL        int64        // longest TTL of a lock, ns, if none is agreed on (Rule.Terms). Default and maximum 24 h
	RequestIDs        reqid.Config // Defaults: window 5 min, 1,024 clients an object, 1,024 ids a client. See SetWindow

	// Keys and KeysPerObject bound the idempotency keys that are remembered: those that were
	// used here, on all objects, and all of one object. Copies are not counted in Keys, only
	// as memory: their owner has counted them. A key is remembered for RequestIDs.Window, and
	// what finds no room is refused. Default 1,048,576 and 65,536.
	Keys          int64
	KeysPerObject int

	// LostLimits is what a limit starts with that is absent from a row in grace:
	// LostFull, as everywhere, or LostEmpty, as if all of it had been spent at
	// Permit.LostAt. Default LostFull.
	LostLimits string

	// MaxVersion returns the greatest version that records and copies may come with now: see
	// MaxVersionAt. It must be quick. nil = any that leaves room for changes.
	MaxVersion func() uint64

	// Policies have the limits of checks that name one; nil = there are none.
	Policies Policies

	// Heat makes what counts the operations on a shard's objects; nil = they are not
	// counted.
	Heat func() Heat

	// Stale reports whether a part of a split object, by its key, which begins with a NUL
	// byte, and the hash of that, is of a split that is over. The sweep asks it, with the
	// shard locked, and forgets such parts whatever node owns them, with request ids and all,
	// and tells the Sink nothing. It must be quick and not keep the key. nil = none is.
	Stale func(hash uint64, key []byte) bool
}

// Defaults of Config, with their reasons.
const (
	DefaultShards            = 64              // a few cores rarely meet in one of 64, whose heads stay in the cache
	DefaultMaxObjects        = 10_000_000      // about 1 GiB of token buckets
	DefaultMaxBytes          = 1 << 30         // fits the smallest machines people run this on
	DefaultMaxWaiters        = 65_536          // each costs a parked call, about 10 KiB
	DefaultMaxWaitersPerLock = 1_024           // a longer queue is a mistake more often than a wish
	DefaultIDWindow          = 300_000_000_000 // ns: retries older than half of it are rare
	DefaultClientsPerObject  = 1_024
	DefaultIDsPerClient      = 1_024
	DefaultKeys              = 1 << 20 // about 100 MB; with a window of 5 min, 3,500 operations a second
	DefaultKeysPerObject     = 1 << 16 // … 200 operations a second
)

// MaxQueue bounds Config.MaxWaitersPerLock: all places of an object may leave with one change, which
// says so in one message between nodes (package handoff sees to it that it fits).
const MaxQueue = 65_536

// QueueLevel is the level of the cluster from which on more may wait for an object than fit one
// record of it.
const QueueLevel = 7

// maxPerShardBits bounds the objects of a shard on average, four times below
// what its references can name.
const maxPerShardBits = 22

func (c Config) withDefaults() Config {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def64 := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.Shards, DefaultShards)
	def64(&c.MaxObjects, min(DefaultMaxObjects, int64(c.Shards)<<maxPerShardBits))
	def64(&c.MaxBytes, DefaultMaxBytes)
	def64(&c.MaxWaiters, DefaultMaxWaiters)
	def(&c.MaxWaitersPerLock, DefaultMaxWaitersPerLock)
	def64(&c.MaxLockTTL, hold.MaxTTL)
	def64(&c.RequestIDs.Window, DefaultIDWindow)
	def(&c.RequestIDs.ClientsPerObject, DefaultClientsPerObject)
	def(&c.RequestIDs.IDsPerClient, DefaultIDsPerClient)
	def64(&c.Keys, DefaultKeys)
	def(&c.KeysPerObject, DefaultKeysPerObject)
	if c.LostLimits == "" {
		c.LostLimits = LostFull
	}
	return c
}

func (c Config) validate() *failure.Error {
	switch {
	case c.Rule == nil:
		return invalid("Rule", "is required")
	case c.Shards < 1 || c.Shards > 4096 || bits.OnesCount(uint(c.Shards)) != 1:
		return invalid("Shards", "must be a power of two from 1 to 4096, is %d", c.Shards)
	case c.MaxObjects < 1:
		return invalid("MaxObjects", "must be at least 1, is %d", c.MaxObjects)
	case c.MaxObjects > int64(c.Shards)<<maxPerShardBits:
		return invalid("MaxObjects", "is %d; at most %d are allowed with %d shards", c.MaxObjects, int64(c.Shards)<<maxPerShardBits, c.Shards)
	case c.MaxBytes < 1<<20:
		return invalid("MaxBytes", "must be at least 1 MiB, is %d", c.MaxBytes)
	case c.MaxWaiters < 1:
		return invalid("MaxWaiters", "must be at least 1, is %d", c.MaxWaiters)
	case c.MaxWaitersPerLock < 1 || c.MaxWaitersPerLock > MaxQueue:
		return invalid("MaxWaitersPerLock", "must be from 1 to %d, is %d", MaxQueue, c.MaxWaitersPerLock)
	case c.MaxLockTTL < hold.MinTTL || c.MaxLockTTL > hold.MaxTTL:
		return invalid("MaxLockTTL", "must be from %s to %s, is %s", time.Duration(hold.MinTTL), time.Duration(hold.MaxTTL), time.Duration(c.MaxLockTTL))
	case c.LostLimits != LostFull && c.LostLimits != LostEmpty:
		return invalid("LostLimits", "must be %s or %s, is %q", LostFull, LostEmpty, c.LostLimits)
	case c.RequestIDs.Window < 1e9:
		return invalid("RequestIDs.Window", "must be at least 1s, is %s", time.Duration(c.RequestIDs.Window))
	case c.Keys < 1 || c.KeysPerObject < 1:
		return invalid("Keys", "at least one idempotency key must be remembered")
	case c.RequestIDs.ClientsPerObject < 1 || c.RequestIDs.IDsPerClient < 1:
		return invalid("RequestIDs", "at least one client and one id must be remembered")
	}
	return nil
}

// Store holds the objects of this process. Its methods may be called from any
// goroutine.
type Store struct {
	cfg        Config
	shift      int          // of a hash, to its shard
	seed       maphash.Seed // of the tags in the indexes
	splits     Splits       // the rule, if objects may be split; else nil
	partial    PartialSink  // the sink, if it may get records that are Partial; else nil
	owners     Owners       // the rule, if copies of others' may come here; else nil
	policies   Policies     // nil = there are none
	levels     Levels       // the rule, if it is that of a cluster with levels; else nil
	dates      Dates        // the rule, if it knows the time of day; else nil
	shards     []shard
	wakes      wakes
	asks       askQueue
	treeSignal chan struct{} // capacity 1: see ChildrenChanged

	sessions sessionCounts

	tickets atomic.Uint64 // the last ticket of a queue place
	waiting atomic.Int64  // callers in queues
	objects [kinds]atomic.Int64
	bytes   atomic.Int64
	idBytes atomic.Int64 // … of them, those of request ids

	ungathered atomic.Int64        // bytes that wait for a Gather
	keys       atomic.Int64        // idempotency keys that were used here
	mine       atomic.Int64        // objects of this process's own, about
	expired    [kinds]atomic.Int64 // objects forgotten because their time was over
	lapsed     atomic.Int64        // locks whose TTL ended while they were held

	sweepMu   sync.Mutex
	sweepNext int // guarded by sweepMu: shard to sweep next
}

// New returns an empty store whose time starts at now.
func New(cfg Config, now int64) (*Store, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if err := check(&machines); err != nil {
		return nil, err
	}
	s := &Store{
		cfg:        cfg,
		seed:       maphash.MakeSeed(),
		shift:      64 - bits.TrailingZeros(uint(cfg.Shards)),
		shards:     make([]shard, cfg.Shards),
		treeSignal: make(chan struct{}, 1),
		wakes:      wakes{heap: wakeHeap{place: map[wakeOf]int{}}, signal: make(chan struct{}, 1)},
		asks:       askQueue{signal: make(chan struct{}, 1)},
	}
	s.splits, _ = cfg.Rule.(Splits)
	s.partial, _ = cfg.Sink.(PartialSink)
	s.owners, _ = cfg.Rule.(Owners)
	s.levels, _ = cfg.Rule.(Levels)
	s.dates, _ = cfg.Rule.(Dates)
	s.policies = cfg.Policies
	for i := range s.shards {
		s.shards[i].store, s.shards[i].number, s.shards[i].now = s, i, now
		s.shards[i].ids = reqid.NewTable(cfg.RequestIDs)
		if cfg.Heat != nil {
			s.shards[i].heat = cfg.Heat()
		}
	}
	return s, nil
}

// SetWindow changes how long request ids and idempotency keys are kept, from what Config has
// to what was agreed on, in nanoseconds. It is called before operations are let in by the
// table that says so.
func (s *Store) SetWindow(window int64) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		sh.ids.SetWindow(window)
		sh.mu.Unlock()
	}
}

// Confirm returns the check before the answer: see Rule.
func (s *Store) Confirm(p Permit, now int64) error { return s.cfg.Rule.Confirm(p, now) }

// Hash is a key's position on the ring.
func Hash(key string) uint64 { return xxhash.Sum64String(key) }

func (s *Store) shard(hash uint64) *shard {
	return &s.shards[hash>>s.shift&uint64(len(s.shards)-1)]
}

// Stats are figures of a store for people and metrics.
type Stats struct {
	Objects map[Kind]int64 // held now
	Expired map[Kind]int64 // forgotten since the start because their time was over
	Lapsed  int64          // locks whose TTL ended while they were held, since the start
	Bytes   int64          // allocated for objects and request ids
	Waiting int64          // callers in queues of locks

	Sessions     int64 // that hold something here, copies included
	SessionHolds int64 // … what they hold
}

// Stats returns the present figures.
func (s *Store) Stats() Stats {
	st := Stats{
		Objects: map[Kind]int64{}, Expired: map[Kind]int64{},
		Lapsed: s.lapsed.Load(), Bytes: s.bytes.Load(), Waiting: s.waiting.Load(),
		Sessions: s.sessions.sessions.Load(), SessionHolds: s.sessions.holds.Load(),
	}
	for _, k := range Kinds() {
		st.Objects[k], st.Expired[k] = s.objects[k].Load(), s.expired[k].Load()
	}
	return st
}
