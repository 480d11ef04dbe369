package main

// queues are the guards of places in the queues of locks, and of levels.
func queues() []Canary {
	const waits, line = "owner/waits.go", "owner/queue/queue.go"
	owner := func(run string) Tests { return Tests{Package: "owner", Run: run} }
	sim := func(run string) Tests { return Tests{Package: "internal/tests/sim", Run: run} }
	level := Tests{Package: "ring/epoch/table", Run: "^TestAdopt$"}
	return []Canary{{
		Name: "adopt-all", Guard: "a level is committed only when all members know it (trap 48)",
		Edits: []Edit{{"ring/epoch/table/level.go", "return max(1, m.Level) < c.Level })", "return max(1, m.Level) < FirstAdopted-1 })"}},
		Tests: level,
	}, {
		Name: "older-attempt", Guard: "a late attempt does not take the place of a later one of the same request",
		Edits: []Edit{{line, "case !away && attempt.ID.Age < c.ID.Age:", "case false:"}},
		Tests: owner("^TestOlderAttempt"),
	}, {
		Name: "leave-together", Guard: "who leaves while the node may not act is passed over by one step",
		Edits: []Edit{{line, "p.GiveUp, p.Away = min(p.GiveUp, last), true", ""}},
		Tests: owner("^TestManyLeave"),
	}, {
		Name: "detached-granted", Guard: "nothing is granted to a caller whose way has ended (trap 34)",
		Edits: []Edit{{line, "p.Away = true\n\tif", "if"}},
		Tests: owner("^TestHandovers$"),
	}, {
		Name: "detached-grace", Guard: "a free lock is kept for detached callers for one grace only (trap 34)",
		Edits: []Edit{{line, "if busy || q.Grace <= now {", "if true {"}},
		Tests: owner("^TestHandovers$"),
	}, {
		Name: "detached-counted", Guard: "places of detached callers count as waiters",
		Edits: []Edit{{waits, ".counts = true\n\tsh.store.waiting.Add(1)", ""}},
		Tests: owner("^TestDetachedCount$"),
	}, {
		Name: "way-of-caller", Guard: "the end of a stream between nodes is not the end of those who wait (trap 42)",
		Edits: []Edit{{"internal/rpc/locks.go", "if context.Cause(ctx) != errWayEnded {", "if true {"}},
		Tests: sim("^TestQueueOutlivesForwarder$"),
	}, {
		Name: "detached-told", Guard: "a node that stops does not cancel what it passed on (trap 42)",
		Edits: []Edit{{"internal/rpc/link.go", "if keeps && waits(a.call)", "if false && waits(a.call)"}},
		Tests: sim("^TestQueueOutlivesForwarder$"),
	}, {
		Name: "standing-attempt", Guard: "a client whose lock has moved asks the new owner before it leaves the old one",
		Edits: []Edit{{"client/acquire.go", "case <-moved:\n", "case <-moved:\n\t\t\ta.cancel()\n"}},
		Tests: sim("^TestQueueMovesWithClients$"),
	}}
}

// placeRecords are the guards of records that name places, and of what a crowd sends.
func placeRecords() []Canary {
	const waits, line = "owner/waits.go", "owner/queue/queue.go"
	owner := func(run string) Tests { return Tests{Package: "owner", Run: run} }
	copies := Tests{Package: "handoff/record", Run: "^TestQueueOfCopy$"}
	return []Canary{{
		Name: "place-gone", Guard: "a copy learns of each place that is gone",
		Edits: []Edit{{waits, "\t\tw.recordLocked(nil)\n\t\tif !w.away()", "\t\tif !w.away()"}},
		Tests: copies,
	}, {
		Name: "place-changed", Guard: "a copy learns of each place that has changed hands",
		Edits: []Edit{{waits, "w.recordLocked(t.sh.locks.At(t.e.lock).Queue.Find(ticket))", ""}},
		Tests: copies,
	}, {
		Name: "place-level", Guard: "records name places only when all members can read that (trap 48)",
		Edits: []Edit{{"handoff/routes.go", "return s.routes.Load().table.Uses(placeLevel)", "return true"}},
		Tests: Tests{Package: "handoff", Run: "^TestPlacesNeedTheLevel$"},
	}, {
		Name: "place-moments", Guard: "moments of a copy do not go back when a record is quicker than the one before",
		Edits: []Edit{{"owner/moves.go", "from.Queue, from.At = s.Queue, max(s.At, from.At)", "from.Queue = s.Queue"}, {line, "p.Since = max(p.Since, q.Places[n-1].Since)", "_ = n"}},
		Tests: Tests{Package: "handoff/record", Run: "^TestQueueOverSlowWire$"},
	}, {
		Name: "place-callers", Guard: "callers whose lock is a copy now are sent on by the first record",
		Edits: []Edit{{"owner/moves.go", "if t.e.lock != 0 && !sh.isCopyLocked(t.slot) {", "if false {"}},
		Tests: owner("^TestMovesBeforeDismiss$"),
	}, {
		Name: "place-most", Guard: "the queue of a copy does not grow beyond what any may have",
		Edits: []Edit{{"owner/moves.go", "return n > MaxQueue", "return false"}},
		Tests: owner("^TestMovesAreBounded$"),
	}, {
		Name: "crowd-room", Guard: "callers are queued only when the copies have room for more",
		Edits: []Edit{{"internal/rpc/locks.go", "if err == nil && req.WaitNs > 0 &&", "if false &&"}},
		Tests: Tests{Package: "internal/rpc", Run: "^TestQueueNeedsRoom$"},
	}, {
		Name: "crowd-window", Guard: "a crowd does not fill up the stream to the standby",
		Edits: []Edit{{"handoff/routes.go", "if err := l.feed.CrowdRoom(ctx); err != nil && ctx.Err() != nil {", "if err := l.feed.Err(); err != nil && ctx.Err() != nil {"}},
		Tests: Tests{Package: "handoff", Run: "^TestCrowdIsHeldBack$"},
	}}
}
