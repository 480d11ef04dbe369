package main

// answers are the guards between a decision and its answer.
func answers() []Canary {
	rpc := func(run string) Tests { return Tests{Package: "internal/rpc", Run: run} }
	const promise, items = "internal/rpc/promise.go", "internal/rpc/items.go"
	return []Canary{{
		Name: "answer-check-one", Guard: "the rule is asked once more before the answer to a single call",
		Edits: []Edit{{promise, "err = s.cfg.Store.Confirm(meta(a).Permit, s.cfg.Clock.Now())", "_ = s.cfg.Store.Confirm(meta(a).Permit, s.cfg.Clock.Now())"}},
		Tests: rpc("^TestConfirmFails$"),
	}, {
		Name: "answer-check-batch", Guard: "the rule is asked once more before the answers to a batch or a message of a stream",
		Edits: []Edit{{items, "err = s.cfg.Store.Confirm(it.meta(&answers[i]).Permit, now)", "err = nil"}},
		Tests: rpc("^TestConfirmFails$"),
	}, {
		Name: "answer-check-forwarded", Guard: "the rule is asked once more before the answers to calls that another node has passed on",
		Edits: []Edit{{promise, "err = s.cfg.Store.Confirm(p.permit, now)", "_ = now"}},
		Tests: rpc("^TestForwardedAnswersAreConfirmed$"),
	}, {
		Name: "answers-wait-one", Guard: "the answer to a single call waits for the copies",
		Edits: []Edit{{promise, "err = s.await(o, meta(a).Permit)", ""}},
		Tests: rpc("^TestAnswersWaitForCopies$"),
	}, {
		Name: "answers-wait-batch", Guard: "the answers to a batch wait for the copies",
		Edits: []Edit{{items, "errs[i] = s.await(o, it.meta(&answers[i]).Permit)", ""}},
		Tests: rpc("^TestAnswersWaitForCopies$"),
	}, {
		Name: "answers-wait-forwarded", Guard: "the answers to calls that another node has passed on wait for the copies",
		Edits: []Edit{{"internal/rpc/forwardservice.go", "if behind := p.behind(in.s); behind != ([2]table.Holder{}) {", "if behind := p.behind(in.s); behind != ([2]table.Holder{}) && false {"}},
		Tests: rpc("^TestForwardedAnswersWaitForCopies$"),
	}, {
		Name: "answer-check-of-the-node", Guard: "a node in a cluster asks its serving rule before an answer",
		Edits: []Edit{{"internal/node/serving.go", "if m.rule.Still(p.Hash, p.Seen, now) {", "if true {"}},
		Tests: Tests{Package: "internal/node", Run: "^TestRuleInCluster$"},
	}, {
		Name: "admission-of-the-node", Guard: "a node in a cluster asks its serving rule before an operation",
		Edits: []Edit{{"internal/node/serving.go", "switch v {", "switch serving.Yes | v&0 {"}},
		Tests: Tests{Package: "internal/node", Run: "^TestRuleInCluster$"},
	}}
}

// Of the serving rule.
const (
	serving = "ring/epoch/serving/serving.go"
	// servingTests are all of its tests but the protocol with random processes, which takes
	// seconds.
	servingTests = "^Test(Trap|Row|Freeze|Thaw|Become|Promoted|Standbys|Takes|Declared|Keeps|Drained|RuleFollows)"
)

// rules are those of the serving rule about operations and answers.
func rules() []Canary {
	const still = "return i >= 0 && s.rows[i].mine && !s.rows[i].closed && s.table.Rows[i].Held <= seen && now < until"
	return []Canary{{
		Name: "still-lease", Guard: "no answer leaves after the lease",
		Edits: []Edit{{serving, still, "return i >= 0 && s.rows[i].mine && !s.rows[i].closed && s.table.Rows[i].Held <= seen && until >= 0"}},
		Tests: Tests{Package: "ring/epoch/serving", Run: servingTests},
	}, {
		Name: "still-owner", Guard: "no answer leaves when the row is another's",
		Edits: []Edit{{serving, still, "return i >= 0 && !s.rows[i].closed && s.table.Rows[i].Held <= seen && now < until"}},
		Tests: Tests{Package: "ring/epoch/serving", Run: servingTests},
	}, {
		Name: "still-closed", Guard: "no answer leaves when the row is closed to be handed over",
		Edits: []Edit{{serving, still, "return i >= 0 && s.rows[i].mine && s.table.Rows[i].Held <= seen && now < until"}},
		Tests: Tests{Package: "ring/epoch/serving", Run: servingTests},
	}, {
		Name: "still-held", Guard: "no answer leaves when the row has been another's meanwhile",
		Edits: []Edit{{serving, still, "return i >= 0 && s.rows[i].mine && !s.rows[i].closed && now < until"}},
		Tests: Tests{Package: "ring/epoch/serving", Run: servingTests},
	}, {
		Name: "still-incarnation", Guard: "a row of a former incarnation is not the process's",
		Edits: []Edit{
			{serving, "s.rows[is].holds = s.table.Rows[is].Owner == s.self, true", "s.rows[is].holds = s.table.Rows[is].Owner.Node == s.self.Node, true"},
			{"ring/epoch/table/table.go", "if r.Owner == h || r.Standby == h {", "if r.Owner.Node == h.Node || r.Standby.Node == h.Node {"},
		},
		Tests: Tests{Package: "ring/epoch/serving", Run: servingTests},
	}, {
		Name: "may-owner", Guard: "no operation begins on a row of another",
		Edits: []Edit{{serving, "if i < 0 || !s.rows[i].mine {\n\t\treturn e, NotOwner", "if i < 0 {\n\t\treturn e, NotOwner"}},
		Tests: Tests{Package: "ring/epoch/serving", Run: servingTests},
	}, {
		Name: "may-lease", Guard: "no operation begins without a lease",
		Edits: []Edit{{serving, "case now >= r.until.Load():", "case now < 0:"}},
		Tests: Tests{Package: "ring/epoch/serving", Run: servingTests},
	}, {
		Name: "may-frozen", Guard: "no operation begins on a frozen row",
		Edits: []Edit{{serving, "case w.frozen || w.gained", "case w.gained"}},
		Tests: Tests{Package: "ring/epoch/serving", Run: servingTests},
	}, {
		Name: "may-clean", Guard: "no operation begins on a row of which old state is still to be discarded",
		Edits: []Edit{{serving, "case w.frozen || w.gained > r.clean.Load() ||", "case w.frozen ||"}},
		Tests: Tests{Package: "ring/epoch/serving", Run: servingTests},
	}, {
		Name: "may-quiet", Guard: "no operation begins on a node that stops",
		Edits: []Edit{{serving, "w.gained > r.clean.Load() || r.quiet.Load():", "w.gained > r.clean.Load():"}},
		Tests: Tests{Package: "ring/epoch/serving", Run: servingTests},
	}}
}

// holdings are those of the serving rule about what is frozen, taken in, kept and
// discarded.
func holdings() []Canary {
	const takes = "return i >= 0 && s.table.Rows[i].Owner == source && source != s.self && s.rows[i].holds && s.rows[i].gained <= r.clean.Load()"
	return []Canary{{
		Name: "takes-owner", Guard: "a record is taken in only from the owner that the table names",
		Edits: []Edit{{serving, takes, "return i >= 0 && source != s.self && s.rows[i].holds && s.rows[i].gained <= r.clean.Load()"}},
		Tests: Tests{Package: "ring/epoch/serving", Run: servingTests},
	}, {
		Name: "takes-incarnation", Guard: "a record is taken in only from the very incarnation of the owner",
		Edits: []Edit{{serving, takes, "return i >= 0 && s.table.Rows[i].Owner.Node == source.Node && source != s.self && s.rows[i].holds && s.rows[i].gained <= r.clean.Load()"}},
		Tests: Tests{Package: "ring/epoch/serving", Run: servingTests},
	}, {
		Name: "takes-holder", Guard: "a record is taken in only by who may hold a copy",
		Edits: []Edit{{serving, takes, "return i >= 0 && s.table.Rows[i].Owner == source && source != s.self && s.rows[i].gained <= r.clean.Load()"}},
		Tests: Tests{Package: "ring/epoch/serving", Run: servingTests},
	}, {
		Name: "takes-clean", Guard: "no record is taken in while old state of the row is still to be discarded",
		Edits: []Edit{{serving, takes, "return i >= 0 && s.table.Rows[i].Owner == source && source != s.self && s.rows[i].holds"}},
		Tests: Tests{Package: "ring/epoch/serving", Run: servingTests},
	}, {
		Name: "freeze-moving-rows", Guard: "only rows are frozen that move to this member",
		Edits: []Edit{{serving, "m.Holder() != to || to == s.self {", "m.Holder() != to && to == s.self {"}},
		Tests: Tests{Package: "ring/epoch/serving", Run: servingTests},
	}, {
		Name: "freeze-clean", Guard: "a row that is not clean is not frozen",
		Edits: []Edit{{serving, "!s.rows[i].mine || s.rows[i].gained > r.clean.Load() || !possible(s.table, f)", "!s.rows[i].mine || !possible(s.table, f)"}},
		Tests: Tests{Package: "ring/epoch/serving", Run: servingTests},
	}, {
		Name: "freeze-outlives-tables", Guard: "a table unfreezes a row only if its flip cannot happen any more",
		Edits: []Edit{{serving, "ok && next.rows[i].mine && possible(t, f) {", "ok && next.rows[i].mine && !possible(t, f) {"}},
		Tests: Tests{Package: "ring/epoch/serving", Run: servingTests},
	}, {
		Name: "thaw-closed", Guard: "a row is not thawed once its flip may have been proposed",
		Edits: []Edit{{serving, "if f.to == to && !f.closed {", "if f.to == to {"}},
		Tests: Tests{Package: "ring/epoch/serving", Run: servingTests},
	}, {
		Name: "discard-before-acting", Guard: "who gets a row back acts for it only when what it had is discarded",
		Edits: []Edit{{serving, "gained := s.table.Epoch", "gained := uint64(0)"}},
		Tests: Tests{Package: "ring/epoch/serving", Run: servingTests},
	}, {
		Name: "discard-declared-loss", Guard: "what a node has of a row whose loss was declared is discarded when the row comes to it",
		Edits: []Edit{{serving, "old.self == s.self && !s.spoilt(is, old, was)", "old.self == s.self"}, {serving, "func (s *state) spoilt(is int, old *state, was int) bool {", "func (s *state) spoilt(is int, old *state, was int) bool {\n\t_ = is"}},
		Tests: Tests{Package: "ring/epoch/serving", Run: servingTests},
	}, {
		Name: "keep-what-stayed", Guard: "what a node has of a row that never left it is not discarded",
		Edits: []Edit{{serving, "return !stayed", "return !stayed || true"}},
		Tests: Tests{Package: "ring/epoch/serving", Run: servingTests},
	}, {
		Name: "keep-as-standby", Guard: "who gave a row away and stands by for it keeps what it has",
		Edits: []Edit{{serving, "s.table.MayHold(is, s.self)", "s.table.Rows[is].Owner == s.self"}},
		Tests: Tests{Package: "ring/epoch/serving", Run: servingTests},
	}, {
		Name: "cleaner-order", Guard: "rows count as clean when they have been discarded, not before",
		Edits: []Edit{{"ring/epoch/fsm.go", "\t\t\tc.discard(todo)\n", "\t\t\tgo c.discard(todo)\n"}},
		Tests: Tests{Package: "ring/epoch", Run: "^TestCleaner$"},
	}}
}
