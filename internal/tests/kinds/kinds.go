// Package kinds lists the kinds of objects for all tests that let clients work on a
// cluster and judge what they were told: one literal says what such a test has to know of
// a kind.
//
//	All ─▶ Kind: Name, Work, Probe, Model
//	         │
//	Worker ──┴─▶ calls through gRPC, under request ids, again and again ─▶ Recording
//	                                                                          │
//	nemesis (real processes), sim (simulated time) ◀── verdicts ◀── Models ◀── Record
//
// What makes faults ranges over All, and names no kind. A new kind is a file here and a
// line in All.
//
// # What an attempt without an answer means
//
// An attempt that no connection took, or that was answered with a reason by which nothing
// happened, did nothing. Any other one may have acted, at any time from then on: it stays
// in the record as lost, until a retry under the same request id tells. Reads that fail are
// left out.
package kinds

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/internal/tests/history"
	"github.com/keystead/keystead/owner"
)

// All are the kinds of objects, in the order in which tests list them.
var All = []*Kind{&Counter, &Bucket, &Window, &Turns, &Quota, &Override, &Policy, &Lock, &SharedLock, &Register, &Semaphore, &Once, &Election, &Barrier, &Phaser, &Group, &Admission, &Across}

// Kind is a kind of object, as the tests of clusters know it.
type Kind struct {
	// Name is that of the kind among All: of its calls in a Record, and of its objects.
	Name string
	// Of is what the store calls it. Several may be of one kind of the store.
	Of owner.Kind
	// Share is how often a worker turns to objects of this kind, beside those of others.
	Share int
	// Work does one thing with an object, or some that belong together, and records it.
	Work func(ctx context.Context, w *Worker, o Object)
	// Probe reads an object, and changes nothing.
	Probe Probe
	// Model is how one of its objects behaves, if durations may be longer by so many ns.
	Model func(delay int64) history.Model
	// Together is set if things are done to several objects at once, whose answers name no epoch of any of them: nothing
	// is judged of an object whose state was lost.
	Together bool
	// Splits is set if its objects may be split into parts.
	Splits bool
	// Workload is the one of `keystead bench` that measures it.
	Workload string
}

// Object is one of those that a test works on.
type Object struct {
	Kind   *Kind
	Key    string
	Number int // among those of its kind
}

// Objects are those of a test, by kind.
type Objects map[*Kind][]Object

// NewObjects are so many of each kind, with keys that a test and a kind have to
// themselves.
func NewObjects(n int, prefix string) Objects {
	all := Objects{}
	for _, k := range All {
		for i := range n {
			all[k] = append(all[k], Object{Kind: k, Key: fmt.Sprintf("%s-%s%d", k.Name, prefix, i), Number: i})
		}
	}
	return all
}

// Named returns the kind of a name.
func Named(name string) (k *Kind, ok bool) {
	i := slices.IndexFunc(All, func(k *Kind) bool { return k.Name == name })
	if i < 0 {
		return nil, false
	}
	return All[i], true
}

// Each returns all of them, in order.
func (o Objects) Each() []Object {
	var all []Object
	for _, k := range All {
		all = append(all, o[k]...)
	}
	return all
}

// Probe is a read.
type Probe struct {
	In  any // of its call in the record
	Ask func(ctx context.Context, conn *grpc.ClientConn, key string) (Answer, error)
}

// Answer is what a call was told.
type Answer struct {
	Out   any // of its call in the record
	Owner string
	Epoch uint64
}

// Slack is what a test allows all models.
type Slack struct {
	Delay  int64 // ns by which durations may be longer, in all
	Drift  history.Drift
	Splits history.Splits
}

// Of returns the model of a kind with a slack.
func (s Slack) Of(k *Kind) history.Model {
	return k.Model(s.Delay).Drifting(s.Drift).Split(s.Splits)
}

// Recording is what workers are told, while they work. It may be used concurrently.
type Recording struct {
	now   func() int64
	calls map[*Kind]*history.Recorder

	mu        sync.Mutex
	protected map[string]*Guarded // guarded by mu: by lock
	sights    map[sight]string    // guarded by mu: what versions have shown to watchers
	slots     map[string]uint64   // guarded by mu: by key, numbers that are used
}

// sight is a version of an object that is watched.
type sight struct {
	key     string
	version uint64
}

// shown notes what a version has shown. It returns what that version has shown before, if that was
// something else.
func (r *Recording) shown(key string, version uint64, what string) (before string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := sight{key, version}
	switch was, known := r.sights[at]; {
	case !known:
		r.sights[at] = what
	case was != what:
		return was
	}
	return ""
}

// NewRecording returns an empty one. It takes the time from now, in ns, the clock that the
// nodes use.
func NewRecording(now func() int64) *Recording {
	r := &Recording{now: now, calls: map[*Kind]*history.Recorder{}, protected: map[string]*Guarded{}, sights: map[sight]string{}, slots: map[string]uint64{}}
	for _, k := range All {
		r.calls[k] = history.NewRecorder(now)
	}
	return r
}

// Guarded returns what a lock protects.
func (r *Recording) Guarded(lock string) *Guarded {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.protected[lock] == nil {
		r.protected[lock] = &Guarded{now: r.now}
	}
	return r.protected[lock]
}

// Record returns what workers were told so far.
func (r *Recording) Record() Record {
	all := Record{Calls: map[string][]history.Call{}, Writes: map[string][]Write{}}
	for k, calls := range r.calls {
		all.Calls[k.Name] = calls.Calls()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for lock, reg := range r.protected {
		all.Writes[lock] = reg.Writes()
	}
	return all
}

// Record is what the clients of a history were told.
type Record struct {
	Calls  map[string][]history.Call // by name of the kind
	Writes map[string][]Write        // to what locks protect, by lock
}

// Objects returns the objects of a record with their kind, in order, and the calls on each.
func (r *Record) Objects() iter.Seq2[*Kind, []history.Call] {
	return func(yield func(*Kind, []history.Call) bool) {
		for _, k := range All {
			by := map[string][]history.Call{}
			for _, c := range r.Calls[k.Name] {
				by[c.Object] = append(by[c.Object], c)
			}
			for _, object := range slices.Sorted(maps.Keys(by)) {
				if !yield(k, by[object]) {
					return
				}
			}
		}
	}
}

// ByParts returns how many answers, those of probes too, came from parts of split objects.
func (r *Record) ByParts() (n int) {
	for _, calls := range r.Calls {
		for _, c := range calls {
			if history.Parts(c.Output) > 0 {
				n++
			}
		}
	}
	return n
}
