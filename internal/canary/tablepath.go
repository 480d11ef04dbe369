package main

// paths are the guards on the way of a call: between nodes, and between a decision and
// its answer.
func paths() []Canary {
	const routes, promise, lanes = "handoff/routes.go", "internal/rpc/promise.go", "internal/rpc/lanes.go"
	const budget = "owner/budget.go"
	return []Canary{{
		Name: "wait-that-gave-up", Guard: "a wait for the standby that ended with the lease reports that it gave up",
		Edits: []Edit{{routes, "s.cfg.Now() >= s.cfg.Rule.Until() {\n\t\t\treturn false", "s.cfg.Now() >= s.cfg.Rule.Until() {\n\t\t\treturn true"}},
		Tests: Tests{Package: "handoff", Run: "^TestLeaseComesBack$"},
	}, {
		Name: "answer-not-told", Guard: "an answer whose wait for the standby gave up is not let out by a lease that is back",
		Edits: []Edit{{promise, "c == nil || c.Told(hash) || c.Await(hash) {", "c == nil || c.Told(hash) || c.Await(hash) || true {"}},
		Tests: Tests{Package: "internal/rpc", Run: "^TestUntold"},
	}, {
		Name: "answer-not-told-batch", Guard: "... nor one of a batch",
		Edits: []Edit{{"internal/rpc/items.go", "errs[i] = s.await(o, it.meta(&answers[i]).Permit)", "_ = s.await(o, it.meta(&answers[i]).Permit)"}},
		Tests: Tests{Package: "internal/rpc", Run: "^TestUntoldIsUnknown$"},
	}, {
		Name: "answer-not-told-forwarded", Guard: "... nor one that another node has passed on",
		Edits: []Edit{{lanes, "l.answer(k, []held{h}, untold(h.o.read))", "l.answer(k, []held{h}, nil)"}},
		Tests: Tests{Package: "internal/rpc", Run: "^TestUntoldIsUnknown$"},
	}, {
		Name: "one-context-a-call", Guard: "a call that was passed on leaves nothing with the stream that it came by",
		Edits: []Edit{{"internal/rpc/forwardservice.go", "\tctx, cancel := context.WithCancelCause(context", "\t_, _ = context.WithCancelCause(in.stream.Context())\n\tctx, cancel := context.WithCancelCause(context"}},
		Tests: Tests{Package: "internal/rpc", Run: "^TestForwardedCallsLeaveNothing$"},
	}, {
		Name: "answers-in-lanes", Guard: "answers that wait for one standby hold up none that wait for another one",
		Edits: []Edit{{lanes, "k := l.all[of]; k != nil {", "k := l.all[table.Holder{}]; k != nil {"}, {lanes, "\tl.all[of] = k\n", "\tl.all[table.Holder{}] = k\n"}},
		Tests: Tests{Package: "internal/rpc", Run: "^TestAnswersOvertake$"},
	}, {
		Name: "lane-has-room", Guard: "a call is refused before it is done when no more answers may wait for its standby",
		Edits: []Edit{{"internal/rpc/forwardservice.go", "case in.s.lanes.full(c):", "case in.s.lanes.full(c) && false:"}},
		Tests: Tests{Package: "internal/rpc", Run: "^TestManyAnswersWait$"},
	}, {
		Name: "fault-is-its-callers", Guard: "an error about the parameters of a limit is for the callers that state them",
		Edits: []Edit{{"internal/chunk/book.go", "if !own || w.bucket.same(&e.bucket) {", "if true {"}},
		Tests: Tests{Package: "internal/chunk", Run: "^TestFaultIsItsCallers$"},
	}, {
		Name: "nonsense-at-the-door", Guard: "a limit that cannot be is refused before it meets others of its key",
		Edits: []Edit{{"internal/rpc/chunks.go", "if err := op.Validate(); errors.As(err, &field) {", "if err := op.Validate(); errors.As(err, &field) && false {"}, {"internal/chunk/book.go", "if !own || w.bucket.same(&e.bucket) {", "if true {"}},
		Tests: Tests{Package: "internal/rpc", Run: "^TestAnywhereNonsenseIsItsCallers$"},
	}, {
		Name: "own-share", Guard: "a node's own objects leave room for the copies that it keeps for others",
		Edits: []Edit{{budget, "case s.shareFull():", "case s.shareFull() && false:"}},
		Tests: Tests{Package: "owner", Run: "^TestBudgets$"},
	}, {
		Name: "id-reserve", Guard: "request ids of objects that are there have room when new objects have none",
		Edits: []Edit{{budget, "reserve := s.cfg.MaxBytes / idReserve", "reserve := s.cfg.MaxBytes / idReserve * 0"}},
		Tests: Tests{Package: "owner", Run: "^TestReserve$"},
	}, {
		Name: "id-takeover", Guard: "a node that has taken over, and has memory left, goes on remembering request ids",
		Edits: []Edit{{budget, "s.ownFull(idMost, idParts)", "s.ownFull(ownShare, ownParts)"}},
		Tests: Tests{Package: "owner", Run: "^TestIDsAfterTakeover$"},
	}, {
		Name: "id-reserve-fair", Guard: "one object does not use up what is kept for request ids",
		Edits: []Edit{{budget, "case !sh.ids.Few(t.e.ids, id.Client, reserveClients):", "case !sh.ids.Few(t.e.ids, id.Client, 1<<30):"}},
		Tests: Tests{Package: "owner", Run: "^TestReserve$"},
	}, {
		Name: "stream-names-its-cluster", Guard: "a node decides nothing that was meant for a node of another cluster",
		Edits: []Edit{{"internal/rpc/address.go", "case t.UID != \"\" && !slices", "case t.UID == \"-\" && !slices"}},
		Tests: Tests{Package: "internal/rpc", Run: "^Test(AddressOfAnotherCluster|StreamNamesItsTarget)$"},
	}, {
		Name: "stream-names-its-node", Guard: "a node decides nothing that was meant for another node",
		Edits: []Edit{{"internal/rpc/address.go", "case s.cfg.Node != \"\" && !slices", "case s.cfg.Node == \"-\" && !slices"}},
		Tests: Tests{Package: "internal/rpc", Run: "^Test(AddressOfAnotherCluster|StreamNamesItsTarget)$"},
	}, {
		Name: "stream-without-names", Guard: "a stream that names nobody is refused once all members are of a version that does",
		Edits: []Edit{{"internal/rpc/address.go", "case !named && !t.Uses(namedSince):", "case !named:"}},
		Tests: Tests{Package: "internal/rpc", Run: "^TestStreamNamesItsTarget$"},
	}}
}
