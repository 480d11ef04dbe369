package main

// paths are the guards on the way of a call: between nodes, and between a decision and
// its answer.
func paths() []Canary {
	const routes, promise, lanes = "handoff/routes.go", "internal/rpc/promise.go", "internal/rpc/lanes.go"
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
	}}
}
