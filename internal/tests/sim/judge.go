package sim

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/internal/tests/caller"
	"github.com/keystead/keystead/internal/tests/history"
	"github.com/keystead/keystead/internal/tests/kinds"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring/epoch/table"
)

const (
	// judgeTime bounds the check of one object, in real time.
	judgeTime = time.Minute
	// lateness is by how much durations may be longer in all: nodes are paused and cut off for
	// as long as a scene lasts. That they are not shorter is what counts here.
	lateness = int64(time.Hour)
)

// Judge judges what clients were told: each object by the model of its kind
// (internal/tests/kinds), as long as its state lives: until its row's loss is declared in
// the table. From then on nothing is known of it: it may be gone, or there was a copy, which
// did not count as one. Of locks, after a loss, and of all through losses:
//
//   - Epochs of answers about one object do not go back (history.Epochs).
//   - Fencing tokens of one lock rise, and nobody is granted it while another holds it
//     (kinds.Fencing).
//
// What clients were not told, or were told to be unknown, may have happened or not.
type Judge struct {
	recording *kinds.Recording
	drift     history.Drift

	mu         sync.Mutex          // guards what follows
	table      *table.Table        // the latest
	losses     map[string][]uint64 // by key: epochs in which its state was lost, in order
	errs       map[string]int      // attempts without an answer, by code
	unexpected []string
}

// NewJudge returns a judge of clients of nodes whose clocks drift by so much. It is to be
// made in the bubble in which the clients are.
func NewJudge(drift history.Drift) *Judge {
	began := time.Now()
	return &Judge{
		recording: kinds.NewRecording(func() int64 { return int64(time.Since(began)) }), drift: drift,
		table: &table.Table{}, losses: map[string][]uint64{}, errs: map[string]int{},
	}
}

// Learn takes a table in: it says what was lost.
func (j *Judge) Learn(t *table.Table) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if t.Epoch <= j.table.Epoch {
		return
	}
	j.table = t
	for key := range j.losses {
		j.inspectLocked(key)
	}
}

// inspectLocked learns from the table whether the state of a key was lost.
func (j *Judge) inspectLocked(key string) {
	i := j.table.Find(owner.Hash(key))
	if i < 0 {
		return
	}
	lost, known := j.table.Rows[i].Lost, j.losses[key]
	if known == nil || lost > known[len(known)-1] {
		j.losses[key] = append(known, lost)
	}
}

// AllLost says that all that there was is gone, with all that knew of it: what is
// answered under later epochs than the present ones is of another life.
func (j *Judge) AllLost() {
	r := j.recording.Record()
	j.mu.Lock()
	defer j.mu.Unlock()
	last := j.table.Epoch
	for _, calls := range r.Objects() {
		for _, c := range calls {
			last = max(last, c.Epoch)
		}
	}
	for key := range j.losses {
		j.losses[key] = append(j.losses[key], last+1)
	}
}

// Answered implements kinds.Log.
func (j *Judge) Answered(key string, _, _ int64, _ bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.inspectLocked(key)
}

// Failed implements kinds.Log.
func (j *Judge) Failed(err error, _ caller.Fate) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.errs[status.Code(err).String()]++
}

// Open implements kinds.Log. What is open is in the record.
func (j *Judge) Open() {}

// Unexpected implements kinds.Log.
func (j *Judge) Unexpected(what string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.unexpected) < maxFaults {
		j.unexpected = append(j.unexpected, "an answer that nobody should get: "+what)
	}
}

// Faults returns what is wrong with what clients were told. It is for real time, outside of
// bubbles, when all clients are done.
func (j *Judge) Faults() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append(slices.Clone(j.unexpected), j.judgeLocked(j.recording.Record())...)
}

func (j *Judge) judgeLocked(r kinds.Record) (faults []string) {
	wrong := func(err error) {
		if err != nil && len(faults) < maxFaults {
			faults = append(faults, err.Error())
		}
	}
	slack := kinds.Slack{Delay: lateness, Drift: j.drift}
	for k, calls := range r.Objects() {
		wrong(history.Epochs(calls))
		if k.Together && len(j.losses[calls[0].Object]) > 1 {
			continue
		}
		m := slack.Of(k)
		for _, life := range j.livesLocked(calls) {
			wrong(history.Check(m, life, judgeTime))
			var ok bool
			if m, ok = m.Unsure(); !ok { // there may have been a copy, of which nothing is promised
				break
			}
		}
	}
	for _, lock := range slices.Sorted(maps.Keys(r.Writes)) {
		if err := kinds.Fencing(r.Writes[lock]); err != nil {
			wrong(fmt.Errorf("%s: %w", lock, err))
		}
	}
	return faults
}

// livesLocked parts the calls on an object by the losses of its state, as the epochs tell
// under which they were answered: one after the other, but those without an answer in them.
// A call without an answer may have acted in each life.
func (j *Judge) livesLocked(calls []history.Call) [][]history.Call {
	losses := j.losses[calls[0].Object]
	lives := make([][]history.Call, len(losses)+1)
	for _, c := range calls {
		if c.Output == nil {
			for i := range lives {
				lives[i] = append(lives[i], c)
			}
			continue
		}
		i, lost := slices.BinarySearch(losses, epochOf(c))
		if lost {
			i++
		}
		lives[i] = append(lives[i], c)
	}
	return slices.DeleteFunc(lives, func(life []history.Call) bool {
		return !slices.ContainsFunc(life, func(c history.Call) bool { return c.Output != nil })
	})
}

// epochOf returns the epoch that tells of which life an answer is. One about a session names
// none, for all nodes may have a part in it: what it tells is of a grant, and a token is of an
// epoch.
func epochOf(c history.Call) uint64 {
	if in, ok := c.Input.(history.SemaphoreInput); ok && c.Epoch == 0 {
		return in.Token >> owner.SeqBits
	}
	return c.Epoch
}

// Summary returns how many answers of each kind there were, and errors by code, for people.
func (j *Judge) Summary() string {
	r := j.recording.Record()
	out := ""
	for _, k := range kinds.All {
		n := 0
		for _, c := range r.Calls[k.Name] {
			if c.Output != nil {
				n++
			}
		}
		out += fmt.Sprintf("%d answers about a %s, ", n, k.Name)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return out + fmt.Sprint("errors ", j.errs)
}

// Lost is of how many keys state was lost, as the tables declare it.
func (j *Judge) Lost() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	n := 0
	for _, losses := range j.losses {
		for _, e := range losses {
			if e != 0 {
				n++
			}
		}
	}
	return n
}
