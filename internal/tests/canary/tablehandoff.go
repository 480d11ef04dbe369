package main

// handoffTests are all of the package: they take a second.
func handoffTests() Tests { return Tests{Package: "handoff", Run: "."} }

// waiting are the guards of what answers wait for.
func waiting() []Canary {
	const routes, source, copies = "handoff/routes.go", "handoff/source.go", "handoff/copy.go"
	return []Canary{{
		Name: "told", Guard: "an answer is told at once only if all have what it speaks of",
		Edits: []Edit{{routes, "if l.feed.Acked() < l.feed.LastOf(hash) {\n\t\t\treturn false", "if l.feed.Acked() > l.feed.LastOf(hash)+1<<60 {\n\t\t\treturn false"}},
		Tests: handoffTests(),
	}, {
		Name: "await", Guard: "an answer waits until all have what it speaks of",
		Edits: []Edit{{routes, "s.awaitOne(s.ctx, hash, l, l.feed.LastOf(hash), rt)", "s.awaitOne(s.ctx, hash, l, 0, rt)"}},
		Tests: handoffTests(),
	}, {
		Name: "await-slow", Guard: "a standby is taken out by agreement before answers go on without it",
		Edits: []Edit{{routes, "case <-pulse:\n", "case <-pulse:\n\t\t\tif l.feed.Lag(s.cfg.Now()) >= int64(slowStandby) {\n\t\t\t\treturn\n\t\t\t}\n"}},
		Tests: handoffTests(),
	}, {
		Name: "await-failed", Guard: "a standby whose stream has failed keeps answers waiting until it is taken out",
		Edits: []Edit{{routes, "done = nil // until a table takes it out", "return true"}},
		Tests: handoffTests(),
	}, {
		Name: "await-lease", Guard: "who may not answer any more does not wait for ever",
		Edits: []Edit{{routes, "s.ctx.Err() != nil || s.cfg.Now() >= s.cfg.Rule.Until()", "s.ctx.Err() != nil"}},
		Tests: handoffTests(),
	}, {
		Name: "slow-taken-out", Guard: "a standby that does not keep up is taken out",
		Edits: []Edit{{copies, "failed || l.feed.Lag(now) >= int64(slowStandby)", "failed"}},
		Tests: handoffTests(),
	}, {
		Name: "deaf-keeps-standby", Guard: "a node that hears nobody does not take its standbys out",
		Edits: []Edit{{copies, "behind && !s.cfg.Heard(l.behindAt)", "behind && l.behindAt < 0"}},
		Tests: handoffTests(),
	}, {
		Name: "union-new", Guard: "while a Sync is undecided, answers wait for the new standby",
		Edits: []Edit{{routes, "w.feeds, w.wait = append(w.feeds, p.link), append(w.wait, p.link)", "w.feeds = append(w.feeds, p.link)"}},
		Tests: handoffTests(),
	}, {
		Name: "union-old", Guard: "while a Sync is undecided, answers wait for the standby of before",
		Edits: []Edit{{routes, "append(w.feeds, p.link), append(w.wait, p.link)", "append(w.feeds, p.link), []*link{p.link}"}},
		Tests: handoffTests(),
	}, {
		Name: "sync-flushed", Guard: "a Sync is proposed when the standby has all that may have been told without it",
		Edits: []Edit{{"handoff/sync.go", "err := l.feed.Wait(s.ctx, l.feed.Last())", "err := s.ctx.Err()"}},
		Tests: handoffTests(),
	}, {
		Name: "unknown-is-no-refusal", Guard: "a command whose outcome is unknown is not taken for refused",
		Edits: []Edit{{source, "if err == nil || errors.As(err, new(*table.Refused)) {", "if err == nil || errors.As(err, new(*table.Refused)) || errors.Is(err, err) {"}},
		Tests: handoffTests(),
	}, {
		Name: "proposed-and-applied", Guard: "a command counts as done when the node goes by a table that shows it",
		Edits: []Edit{{source, "rt.table.Epoch < epoch; rt = s.routes.Load() {", "rt.table.Epoch < 0*epoch; rt = s.routes.Load() {"}},
		Tests: handoffTests(),
	}}
}

// copying are those of a copy that is made, and of who takes it in.
func copying() []Canary {
	const source, copies, target = "handoff/source.go", "handoff/copy.go", "handoff/target.go"
	return []Canary{{
		Name: "copy-sent", Guard: "what there was before a copy began is sent",
		Edits: []Edit{{copies, "_, ok := find(ranges, h); return ok }\n\tobjects,", "_, ok := find(ranges, h); return ok && false }\n\tobjects,"}},
		Tests: handoffTests(),
	}, {
		Name: "copy-whole", Guard: "a copy counts when all of it is sent",
		Edits: []Edit{{copies, "j := &job{to: to, ranges: ranges,", "j := &job{to: to, ranges: ranges, caught: true,"}},
		Tests: handoffTests(),
	}, {
		Name: "copy-acknowledged", Guard: "a copy counts when all of it is acknowledged",
		Edits: []Edit{{copies, "if !whole || l.feed.Wait(s.ctx, l.feed.Last()) != nil {", "if !whole {"}},
		Tests: handoffTests(),
	}, {
		Name: "copy-of-missed-tables", Guard: "copies are thrown away when tables were missed that may have had the target discard them",
		Edits: []Edit{{source, "if t.Epoch != was.Epoch+1 {", "if t.Epoch == was.Epoch {"}},
		Tests: handoffTests(),
	}, {
		Name: "copy-of-clean-rows", Guard: "what is still to be discarded is not copied",
		Edits: []Edit{{copies, "if !s.cfg.Rule.Clean(s.table.Epoch) {", "if s.cfg.Rule == nil {"}},
		Tests: handoffTests(),
	}, {
		Name: "copy-shrinks", Guard: "what the target had to discard is copied anew",
		Edits: []Edit{{source, "covers(j.ranges, r) && s.table.MayHold(i, l.to) &&", "covers(j.ranges, r) &&"}},
		Tests: handoffTests(),
	}, {
		Name: "copy-of-changed-rows", Guard: "what the target may have had to discard in a table that was missed is copied anew",
		Edits: []Edit{{source, "known = was.Epoch\n", "known = t.Epoch\n"}},
		Tests: Tests{Package: "handoff", Run: "^TestSpareThatWasDiscarded$"},
	}, {
		Name: "begin-discards", Guard: "who gets a copy forgets what it had of the rows",
		Edits: []Edit{{target, "return in && t.cfg.Rule.Takes(h, from)", "return in && !t.cfg.Rule.Takes(h, from)"}},
		Tests: handoffTests(),
	}, {
		Name: "records-of-others", Guard: "a record of a process that the table does not name as the owner is dropped",
		Edits: []Edit{{target, "\t\t\treturn t.cfg.Rule.Takes(h, from)\n", "\t\t\treturn t.cfg.Rule.Takes(h, from) || !unclean\n"}},
		Tests: handoffTests(),
	}, {
		Name: "records-of-unclean-rows", Guard: "a record that comes too early for the target is not dropped",
		Edits: []Edit{{target, "case !unclean:", "case !unclean || unclean:"}},
		Tests: handoffTests(),
	}, {
		Name: "feed-names-its-table", Guard: "a batch names the table that its source goes by",
		Edits: []Edit{{source, "Epoch: func() uint64 { return s.routes.Load().table.Epoch },", "Epoch: func() uint64 { return 1 },"}},
		Tests: handoffTests(),
	}}
}

// handingOver are those of rows that change hands.
func handingOver() []Canary {
	const flip = "handoff/flip.go"
	return []Canary{{
		Name: "flip-freezes", Guard: "rows are frozen before they are handed over",
		Edits: []Edit{{flip, "if f.Ends = s.cfg.Rule.Freeze(f.Transition, f.To, f.Ends); len(f.Ends) == 0 {", "if len(f.Ends) == 0 {"}},
		Tests: handoffTests(),
	}, {
		Name: "flip-rests", Guard: "what cannot be handed over now is not tried without end",
		Edits: []Edit{{flip, "s.pause(proposePause) // the rule", "// the rule"}},
		Tests: handoffTests(),
	}, {
		Name: "flip-barrier", Guard: "a flip waits for operations that were let in before the freeze",
		Edits: []Edit{{flip, "s.store.Load().Barrier()", ""}},
		Tests: Tests{Package: "handoff", Run: "^TestFlipWaitsForLocks$", Tries: 5}, // in real time
	}, {
		Name: "flip-flushes", Guard: "a flip waits until the target has acknowledged everything",
		Edits: []Edit{{flip, "for w.feed.Acked() < seq {", "for w.feed.Acked() > seq {"}},
		Tests: handoffTests(),
	}, {
		Name: "flip-closes", Guard: "no answer leaves for a row once its flip is proposed",
		Edits: []Edit{{flip, "s.cfg.Rule.Close(f.To)", ""}},
		Tests: handoffTests(),
	}, {
		Name: "flip-stays-frozen", Guard: "a row stays frozen whatever becomes of the proposal",
		Edits: []Edit{{flip, "t := s.routes.Load().table\n\t\tif t.Transition == nil", "s.cfg.Rule.Thaw(f.To)\n\t\tt := s.routes.Load().table\n\t\tif t.Transition == nil"}, {"ring/epoch/serving/serving.go", "if f.to == to && !f.closed {", "if f.to == to {"}},
		Tests: handoffTests(),
	}, {
		Name: "flip-given-up", Guard: "a flip is given up if the stream to the target fails",
		Edits: []Edit{{flip, "if w == l {\n\t\t\t\t\treturn false", "if w == l {\n\t\t\t\t\tbreak"}},
		Tests: handoffTests(),
	}}
}
