package owner

import (
	"fmt"
	"time"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/owner/wire"
)

// Kind is what an object is.
type Kind uint8

const (
	KindLimit Kind = iota + 1
	KindCounter
	KindLock
	KindRegister
	KindSemaphore
	KindOnce
	KindElection
	KindBarrier
	KindGroup
	KindAdmission

	kinds // how many there are, with the zero Kind, which is none
)

// machines has the machine of each kind. It is the only list of kinds in the store.
var machines = [kinds]machine{
	KindLimit:     limitMachine,
	KindCounter:   counterMachine,
	KindLock:      lockMachine,
	KindRegister:  registerMachine,
	KindSemaphore: semaphoreMachine,
	KindOnce:      onceMachine,
	KindElection:  electionMachine,
	KindBarrier:   barrierMachine,
	KindGroup:     groupMachine,
	KindAdmission: admissionMachine,
}

// machine is all that the store knows of a kind of object beside its operations.
type machine struct {
	name  string  // in messages, settings and labels of metrics
	level uint32  // of the cluster, from which on there are such objects; see Kind.Level
	cell  uintptr // bytes of its state in the cell of an object

	states states
	slab   slab   // nil: all of a state is in the cell
	grants grants // nil: nobody holds such an object
	waits  waits  // nil: nobody waits in a queue for such an object
	timed  timed  // nil: time alone changes nothing that callers wait for, but in a queue
	parts  parts  // nil: such an object is never split
	old    old    // nil: headers before version 4 cannot have its state

	hold    *family // nil: its objects are not held under leases as package hold has it
	results bool    // what is over by its time is a result, and no grant that lapsed
}

// states are those of the objects of one kind. Their methods are called with the shard
// locked.
type states interface {
	// absent reports whether an object equals one that never was.
	absent(sh *shard, e *entry, now int64) bool
	// spent reports whether an object that is absent is so because its time is over.
	spent(sh *shard, e *entry) bool
	// fades reports whether a copy of an object whose time is over is absent as well, a
	// moment later, so that no record has to say so.
	fades() bool
	// clear makes an object absent. Its waiters have been answered before.
	clear(sh *shard, e *entry)
	// record puts the state into a record, where it stands, and the members: all of them,
	// or, if partial is set, those that have changed since the last record.
	record(sh *shard, e *entry, r *Record, partial bool)
	// write appends the state of a record, without its members. It is not absent.
	write(r *Record, to []byte, now int64) []byte
	// judge reports what in a record from elsewhere cannot be, and whether its object is
	// absent. What it returns beside that is for install, and may be nil. The shard is not
	// locked.
	judge(r *Record, now int64) (judged any, absent bool, err error)
	// grows reports whether what a record says may take memory beside the cell.
	grows(r *Record) bool
	// install makes the object, which has a cell, what a record says that was judged.
	install(t target, r *Record, judged any)
}

// old is a kind that there was before version 4 of the header of records.
type old interface {
	// version is the first one that can say what the record does.
	version(r *Record) byte
	// write appends the state with all that belongs to it.
	write(r *Record, to []byte, now int64) []byte
	// read reads what write wrote into State and Members, and returns what is behind it.
	read(r *Record, from wire.Reader, version byte) (rest wire.Reader)
}

// slab is where a kind keeps states that have no room in the cell.
type slab interface {
	// room reports whether one more fits into what is allocated.
	room(sh *shard) bool
	// refers returns how many bytes the state of an object refers to.
	refers(sh *shard, e *entry) int
}

// grants is a kind whose objects are granted under fencing tokens. Its methods are called with
// the shard locked.
type grants interface {
	// remembers reports whether an object that is absent knows a token that was used.
	remembers(sh *shard, e *entry) bool
	// holds reports whether a token holds an object now, and lets time pass for the object
	// before. The error is Recovering if that is not known.
	holds(t target, token uint64) (bool, error)
}

// timed is a kind of object that time changes for its waiters, although there is no queue. Its
// methods are called with the shard locked.
type timed interface {
	// next returns when lapse has something to do, if it has.
	next(sh *shard, e *entry) (at int64, ok bool)
	// lapse lets time pass for an object that is there. If it fails, nothing has changed.
	lapse(t target) error
}

// parts is a kind whose objects may be split. Its methods are called with the shard locked.
type parts interface {
	// refresh applies to the state what the time and the weight of the target change in it,
	// before the state is read or replaced.
	refresh(t *target)
	// room returns the error of a record that does not fit, nil if it does. id is one of
	// the record's, if it has some.
	room(t *target, id *reqid.ID, r *Record) *failure.Error
	// put replaces the state by that of a record, as a change of this store's own. The
	// target has a cell.
	put(t *target, r *Record)
}

// check reports what the list of machines lacks.
func check(machines *[kinds]machine) error {
	names := map[string]bool{}
	for k := Kind(1); k < kinds; k++ {
		switch m := &machines[k]; {
		case m.name == "" || names[m.name]:
			return fmt.Errorf("owner: kind %d has no name of its own", k)
		case m.states == nil:
			return fmt.Errorf("owner: kind %s has no states", m.name)
		case m.old == nil && m.level < RecordLevel:
			return fmt.Errorf("owner: kind %s is there before records can tell of it", m.name)
		case m.cell == 0 && m.slab == nil:
			return fmt.Errorf("owner: the states of kind %s are nowhere", m.name)
		}
		names[machines[k].name] = true
	}
	return nil
}

// Known reports whether there is such a kind.
func (k Kind) Known() bool { return k > 0 && k < kinds }

// String returns the name of the kind.
func (k Kind) String() string {
	if !k.Known() {
		return "object of an unknown kind"
	}
	return machines[k].name
}

// Parts reports whether objects of the kind may be split.
func (k Kind) Parts() bool { return k.Known() && machines[k].parts != nil }

// Level returns the level of the cluster from which on there are objects of the kind: see
// package table.
func (k Kind) Level() uint32 {
	if !k.Known() {
		return 0
	}
	return machines[k].level
}

// RecordLevel is the level of the cluster from which on records have the header of version 4.
const RecordLevel = 4

// DeleteLevel is the level of the cluster from which on counters are deleted and limits
// reset: a process that makes a copy says how far the versions of its owner have come.
const DeleteLevel = 5

// The most bytes that the state of an object takes in a record without its members, that of
// one member, and the state of an object whose kind has no members. No kind has more.
const (
	MaxState  = 2048
	MaxMember = 1214
	MaxAlone  = 61 << 10
)

// Levels is what a Rule implements, too, if the members of a cluster agree on what they
// understand. Under one that does not, there are objects of all kinds.
type Levels interface {
	// Uses reports whether all members understand a level, and always will. It is called
	// under the shard lock and must be quick.
	Uses(level uint32) bool
}

var errLevel = &failure.Error{Reason: failure.Unavailable, RetryAfter: time.Second,
	Message: "not all nodes of the cluster know objects of this kind yet; nothing happened",
	Hint:    "try again when all nodes are upgraded: `keystead status` shows their versions"}

// ErrLevel is the error of an operation of a level that not all members understand.
var ErrLevel = &failure.Error{Reason: failure.Unavailable, RetryAfter: time.Second,
	Message: "not all nodes of the cluster know this operation yet; nothing happened",
	Hint:    "try again when all nodes are upgraded: `keystead status` shows their versions"}

// uses returns the error of an operation of a level that not all members understand.
func (s *Store) uses(level uint32) error {
	//guard:operation-level
	if s.levels != nil && !s.levels.Uses(level) {
		return ErrLevel
	}
	return nil
}

// Kinds returns all kinds, in the order of their numbers.
func Kinds() []Kind {
	all := make([]Kind, 0, kinds-1)
	for k := Kind(1); k < kinds; k++ {
		all = append(all, k)
	}
	return all
}

// ParseKind returns the kind of a name.
func ParseKind(name string) (Kind, bool) {
	for k := Kind(1); k < kinds; k++ {
		if machines[k].name == name {
			return k, true
		}
	}
	return 0, false
}
