package epoch

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// fsm feeds the log to the table, and the tables to the serving rule.
type fsm struct {
	rule    *serving.Rule
	cleaner *cleaner
	before  func(*table.Table) // called before the serving rule goes by a table
	learned func(*table.Table)
	fail    func(error)

	table    *table.Table    // only the goroutine that applies the log touches it
	policies *table.Policies // likewise; nil = none
	agreed   func(*table.Policies)
	stopped  bool // by an entry that it does not know
	latest   atomic.Pointer[published]
}

// published is a table, and a channel that is closed when there is a later one.
type published struct {
	table    *table.Table
	replaced chan struct{}
}

// outcome is what became of a command.
type outcome struct {
	epoch   uint64
	refused error
}

func newFSM(rule *serving.Rule, c *cleaner) *fsm {
	f := &fsm{rule: rule, cleaner: c, table: &table.Table{}, before: func(*table.Table) {}, agreed: func(*table.Policies) {}}
	f.latest.Store(&published{f.table, make(chan struct{})})
	return f
}

// Apply implements raft.FSM.
func (f *fsm) Apply(l *raft.Log) any {
	out := f.apply(l)
	f.show()
	return out
}

// ApplyBatch implements raft.BatchingFSM. A cluster that forms has a Sync for each pair
// of its nodes, and every table costs each node more than the command that led to it. So
// nobody is shown the tables between two Syncs that are committed together: they differ
// in standbys alone, of which nothing was promised to anybody yet. Before a command of
// another kind, and after the last one, the table is shown.
func (f *fsm) ApplyBatch(logs []*raft.Log) []any {
	out := make([]any, len(logs))
	for i, l := range logs {
		if l.Type == raft.LogCommand {
			out[i] = f.apply(l)
		}
	}
	f.show()
	return out
}

// apply changes the table, and shows it unless it is but one of several Syncs.
func (f *fsm) apply(l *raft.Log) outcome {
	if f.stopped {
		return outcome{refused: table.ErrUnknown}
	}
	c, err := table.Decode(l.Data)
	if err != nil {
		//guard:unknown-command
		f.stopped = true
		f.fail(fmt.Errorf("entry %d: %w", l.Index, err))
		return outcome{refused: err}
	}
	//guard:removal-term
	if c.Remove != nil && c.Remove.Term != 0 && c.Remove.Term != l.Term {
		return outcome{f.table.Epoch, &table.Refused{Why: fmt.Sprintf("the removal was judged in term %d, and is of term %d", c.Remove.Term, l.Term)}}
	}
	//guard:batch-shown
	if c.Sync == nil {
		f.show()
	}
	if c.Policies != nil {
		return f.setPolicies(c)
	}
	next, refused := f.table.Apply(c)
	if f.table = next; c.Sync == nil {
		f.show()
	}
	return outcome{f.table.Epoch, refused}
}

// setPolicies changes the policies. They are in force before any later table is: see
// table.SetPolicies. In place of an epoch the outcome has their version.
func (f *fsm) setPolicies(c table.Command) outcome {
	next, refused := f.policies.After(f.table, c)
	if refused == nil && next != f.policies {
		f.policies = next
		f.agreed(next)
	}
	return outcome{next.Version, refused}
}

// show publishes the table, unless it is known already.
func (f *fsm) show() {
	if f.table != f.latest.Load().table {
		f.publish(f.table)
	}
}

func (f *fsm) publish(next *table.Table) {
	// gofail: var epochLearn struct{}

	f.table = next
	f.before(next)
	f.cleaner.add(f.rule.Learn(next), next.Epoch)
	was := f.latest.Swap(&published{next, make(chan struct{})})
	close(was.replaced)
	f.learned(next)
}

// Snapshot implements raft.FSM.
func (f *fsm) Snapshot() (raft.FSMSnapshot, error) {
	if f.stopped {
		return nil, table.ErrUnknown
	}
	return frozen{f.table, f.policies}, nil
}

// Restore implements raft.FSM.
func (f *fsm) Restore(r io.ReadCloser) error {
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, maxSnapshot))
	if err != nil {
		return err
	}
	t, p, err := table.RestoreWith(b)
	if err != nil {
		f.fail(err)
		return err
	}
	//guard:restore-forward
	if t.Epoch < f.table.Epoch { // transport lets none through; nothing takes the table back
		return fmt.Errorf("a snapshot of epoch %d came after epoch %d", t.Epoch, f.table.Epoch)
	}
	//guard:policies-restored
	if p != nil {
		f.policies = p
		f.agreed(p)
	}
	f.publish(t)
	return nil
}

// maxSnapshot is far above the largest table, 32,768 rows of 100 bytes.
const maxSnapshot = 64 << 20

// frozen is a table to be written down, with the policies.
type frozen struct {
	table    *table.Table
	policies *table.Policies
}

// Persist implements raft.FSMSnapshot.
func (s frozen) Persist(sink raft.SnapshotSink) error {
	if _, err := sink.Write(s.table.EncodeWith(s.policies)); err != nil {
		_ = sink.Cancel()
		return err
	}
	return sink.Close()
}

// Release implements raft.FSMSnapshot.
func (frozen) Release() {}

// await returns the first table known whose epoch is above after.
func (f *fsm) await(ctx context.Context, after uint64) (*table.Table, error) {
	for {
		p := f.latest.Load()
		if p.table.Epoch > after {
			return p.table, nil
		}
		select {
		case <-p.replaced:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// cleaner discards what the node has lost, in order, beside the log.
type cleaner struct {
	discard func([]serving.Range)
	cleaned func(epoch uint64)

	mu   sync.Mutex
	todo []serving.Range // guarded by mu
	upTo uint64          // guarded by mu: epoch that is clean when todo is done
	busy bool            // guarded by mu: a goroutine is at it
	done sync.WaitGroup
}

// add takes ranges on that were lost by the table of an epoch.
func (c *cleaner) add(lost []serving.Range, epoch uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.todo, c.upTo = append(c.todo, lost...), max(c.upTo, epoch)
	switch {
	case c.busy:
	case len(c.todo) == 0:
		c.cleaned(c.upTo)
	default:
		c.busy = true
		c.done.Go(c.run)
	}
}

func (c *cleaner) run() {
	for {
		c.mu.Lock()
		todo, epoch := c.todo, c.upTo
		c.todo = nil
		c.mu.Unlock()
		if len(todo) > 0 {
			//guard:cleaner-order -> go c.discard(todo)
			c.discard(todo)
		}
		c.mu.Lock()
		if len(c.todo) == 0 {
			c.cleaned(c.upTo)
			c.busy = false
			c.mu.Unlock()
			return
		}
		c.cleaned(epoch)
		c.mu.Unlock()
	}
}
