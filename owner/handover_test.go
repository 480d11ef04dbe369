package owner

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner/reqid"
)

// TestHandovers runs testdata/handovers: a lock and its queue, on two nodes of which
// one has a copy.
//
//	acquire <holder> ttl= [wait=] [ticket=] [id=] [at=]    to the owner
//	release <holder> [at=]
//	leave   <holder> [at=]                        the caller of an acquire is gone
//	detach  <holder> [at=]                        the caller's way to the owner has ended
//	park    <holder> [at=]                        the wait of a ticket is over
//	wake    [at=]
//	move    [at=]                                 the other node becomes the owner; the callers hear of it
//	own                                           the new owner looks through its rows
//
// Tokens are shown as epoch:sequence. What callers are told comes first, then the
// lock as the owner and the copy have it.
func TestHandovers(t *testing.T) {
	datadriven.Walk(t, "testdata/handovers", func(t *testing.T, path string) {
		for _, partial := range []bool{false, true} { // the copy is the same
			sc := newHandover(t)
			sc.nodes[0].partial, sc.nodes[1].partial = partial, partial
			datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return sc.run(t, d) })
		}
	})
}

// handover is two nodes, the first of which is the owner.
type handover struct {
	now     int64
	nodes   [2]*node
	callers []*caller
	tokens  map[string]uint64 // by holder
	text    strings.Builder
}

// node is a store that gives what it does to the other one, while it is the owner.
type node struct {
	name  string
	rule  testRule
	store *Store
	other *node

	partial bool
}

func (n *node) Partial() bool { return n.partial }

type caller struct {
	holder string
	w      *Wait[GrantAnswer]
	told   bool // what Park returned
}

func (n *node) Changed(r *Record) {
	if n.rule.admit != nil {
		panic("a copy decided something")
	}
	if err := n.other.store.Install(r.At, r, func(uint64) bool { return n.other.rule.admit != nil }); err != nil {
		panic(err)
	}
}

func newHandover(t *testing.T) *handover {
	sc := &handover{tokens: map[string]uint64{}}
	for i, name := range []string{"A", "B"} {
		n := &node{name: name}
		n.store = newStore(t, func(c *Config) { c.Rule, c.Sink = &n.rule, n })
		sc.nodes[i] = n
	}
	sc.nodes[0].other, sc.nodes[1].other = sc.nodes[1], sc.nodes[0]
	sc.nodes[0].rule.epoch = 1
	sc.nodes[1].rule.admit = &failure.Error{Reason: failure.NotOwner}
	return sc
}

func (sc *handover) run(t *testing.T, d *datadriven.TestData) string {
	if s := arg(t, d, "at"); s != "" {
		at, err := time.ParseDuration(s)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		sc.now = int64(at)
	}
	sc.text.Reset()
	sc.do(t, d)
	sc.tell()
	for i, n := range sc.nodes {
		what := "owner"
		if i == 1 {
			what = "copy "
		}
		fmt.Fprintf(&sc.text, "%s %s: %s\n", what, n.name, sc.show(n))
	}
	return sc.text.String()
}

func (sc *handover) do(t *testing.T, d *datadriven.TestData) {
	s := sc.nodes[0].store
	switch d.Cmd {
	case "acquire":
		op := AcquireLock{Holder: d.CmdArgs[0].Key, TTL: span(t, d, "ttl"), Wait: span(t, d, "wait"), Keep: span(t, d, "ticket")}
		var id reqid.ID
		if n, _ := strconv.ParseUint(arg(t, d, "id"), 10, 64); n != 0 {
			id = reqid.ID{Client: reqid.Client{Hi: n}, Sequence: 1}
		}
		a, w, err := s.Acquire(sc.now, door, id, op)
		if w != nil {
			sc.callers = append(sc.callers, &caller{holder: op.Holder, w: w})
			return
		}
		sc.answer(op.Holder, a, err)
	case "release":
		holder := d.CmdArgs[0].Key
		a, err := s.Release(sc.now, door, noID, sc.tokens[holder])
		fmt.Fprintf(&sc.text, "%s: released %v %v\n", holder, a.Released, err)
	case "leave", "detach", "park":
		for _, c := range sc.callers {
			switch {
			case c.holder != d.CmdArgs[0].Key:
			case d.Cmd == "leave":
				c.w.GiveUp(sc.now)
			case d.Cmd == "park":
				a, err := Park(c.w, sc.now)
				sc.answer(c.holder, a, err)
				c.told = true
			default:
				c.w.Detach(sc.now)
			}
		}
	case "wake":
		s.Wake(sc.now)
	case "move":
		from, to := sc.nodes[0], sc.nodes[1]
		sc.nodes[0], sc.nodes[1] = to, from
		from.rule.admit, to.rule.admit, to.rule.epoch = to.rule.admit, nil, from.rule.epoch+1
		from.store.Dismiss(func(uint64) bool { return true })
	case "own":
		s.Own(sc.now, func(uint64) bool { return true }, OwnGrace)
	default:
		d.Fatalf(t, "unknown command")
	}
}

func arg(t *testing.T, d *datadriven.TestData, name string) (v string) {
	d.MaybeScanArgs(t, name, &v)
	return v
}

func span(t *testing.T, d *datadriven.TestData, name string) int64 {
	v, _ := time.ParseDuration(arg(t, d, name))
	return int64(v)
}

// tell says which callers have been answered.
func (sc *handover) tell() {
	var kept []*caller
	for _, c := range sc.callers {
		if !c.w.finished() {
			kept = append(kept, c)
			continue
		}
		if a, err := c.w.Answer(); !c.told {
			sc.answer(c.holder, a, err)
		}
	}
	sc.callers = kept
}

func (sc *handover) answer(holder string, a GrantAnswer, err error) {
	switch {
	case err != nil:
		fmt.Fprintf(&sc.text, "%s: %v\n", holder, err)
	case a.Acquired:
		sc.tokens[holder] = a.Token
		fmt.Fprintf(&sc.text, "%s: has it, token %s, for %v, waited %v, replay %v\n", holder, token(a.Token), time.Duration(a.TTL), time.Duration(a.Waited), a.Replayed)
	case a.Waiting:
		fmt.Fprintf(&sc.text, "%s: waits, place %d\n", holder, a.Place)
	default:
		fmt.Fprintf(&sc.text, "%s: refused, place %d\n", holder, a.Place)
	}
}

func token(t uint64) string { return fmt.Sprintf("%d:%d", t>>SeqBits, t&(1<<SeqBits-1)) }

// show prints the lock of a node: who has it, and who waits, in brackets those
// who are elsewhere.
func (sc *handover) show(n *node) string {
	sh := n.store.shard(Hash(door.Key))
	sh.mu.Lock()
	defer sh.mu.Unlock()
	slot := sh.findLocked(n.store.addressTag(door), door)
	if slot == 0 || sh.entryLocked(slot).rest == 0 {
		return "free"
	}
	s := sh.holds.At(sh.entryLocked(slot).rest)
	text := "kept"
	if len(s.Holders) > 0 {
		h := &s.Holders[0]
		text = fmt.Sprintf("%s %s until %v", h.Name, token(h.Token), time.Duration(h.Expires))
	}
	for _, w := range s.Queue.Places {
		if w.Away {
			text += fmt.Sprintf(", (%s)", w.Request.Name)
		} else {
			text += ", " + w.Request.Name
		}
	}
	if at, ok := sh.scheduled[slot]; ok {
		text += fmt.Sprintf("; wakes at %v", time.Duration(at))
	}
	return text
}
