package main

// living are the guards of nodes that are dead but smile: their disks hang, or their
// logs stand still.
func living() []Canary {
	const stall = "ring/epoch/stall.go"
	return []Canary{{
		Name: "stall-aside", Guard: "a leader whose disk hangs takes no part in raft, so that the others elect one of them",
		Edits: []Edit{{stall, "k.g.wire.shut(kindRaft, aside)", ""}},
		Tests: Tests{Package: "ring/epoch", Run: "^TestLeaderDiskHangsOfThree$"},
	}, {
		Name: "stall-stays", Guard: "a leader whose disk hangs stays where nobody could be elected in its place",
		Edits: []Edit{{stall, "return able > voters/2", "return true"}},
		Tests: Tests{Package: "ring/epoch", Run: "^TestLeaderDiskHangsAlone$"},
	}, {
		Name: "lag-stuck", Guard: "a node that does not apply what the table says of its rows is granted nothing",
		Edits: []Edit{{"ring/epoch/leader.go", "k.stuck(r.holder(), r.req.Epoch) || ", ""}},
		Tests: Tests{Package: "ring/epoch", Run: "^TestLogStandsStill$"},
	}, {
		Name: "lag-own-rows", Guard: "a node that misses what does not concern it keeps its lease",
		Edits: []Edit{{"ring/epoch/lag.go", "needs := t.Concerns(h)", "needs := t.Epoch"}},
		Tests: Tests{Package: "ring/epoch", Run: "^TestLogStandsStillElsewhere$"},
	}, {
		Name: "rise-clock", Guard: "the first leader after disks were set back raises the epoch to the clock's",
		Edits: []Edit{{"ring/epoch/leader.go", " && k.g.rise(term) == nil", ""}},
		Tests: Tests{Package: "ring/epoch", Run: "^TestRestoredDisks$"},
	}, {
		Name: "rise-first", Guard: "a leader commits nothing that is proposed before the epoch has risen",
		Edits: []Edit{{"ring/epoch/rise.go", "term != 0 && g.risen.Load() == term && ", "term != 0 && "}},
		Tests: Tests{Package: "ring/epoch", Run: "^TestNothingBeforeTheRise$"},
	}, {
		Name: "rise-floor", Guard: "what a candidate remembers counts only up to the clock's epoch",
		Edits: []Edit{{"ring/epoch/rise.go", " && floor <= clock", " && clock > 0"}},
		Tests: Tests{Package: "ring/epoch", Run: "^TestFloorOfACandidate$"},
	}, {
		Name: "ahead", Guard: "a process that has applied more than the leader gets no lease",
		Edits: []Edit{{"ring/epoch/leader.go", " || k.ahead(r.holder(), r.req.Epoch)", ""}},
		Tests: Tests{Package: "ring/epoch", Run: "^TestAheadOfTheLeader$"},
	}, {
		Name: "stop-all-keep", Guard: "when all nodes are told to stop, each keeps what it has",
		Edits: []Edit{{"ring/epoch/table/standby.go", "case !c.Stop || !allStop(members):", "case true || !allStop(members):"}},
		Tests: Tests{Package: "ring/epoch/table", Run: "^TestAllStop$"},
	}, {
		Name: "stop-collected", Guard: "those that stop are collected for a moment before anything is given away",
		Edits: []Edit{{"ring/epoch/leader.go", "max(k.joinedAt, k.stops.at)", "k.joinedAt"}},
		Tests: Tests{Package: "ring/epoch", Run: "^TestStopsAreCollected$"},
	}, {
		Name: "stop-waited-for", Guard: "those that have stopped together are waited for",
		Edits: []Edit{{"ring/epoch/resume.go", " || k.synced.Stopped(h) && k.stops.all(k.synced, k.now, k.cfg.ResumeWait)", ""}},
		Tests: Tests{Package: "ring/epoch", Run: "^TestAllStopAreWaitedFor$"},
	}, {
		Name: "spare-standby", Guard: "a standby that is lost is replaced before it is removed",
		Edits: []Edit{{"handoff/copy.go", "if h.None() || h != to && !is {", "if h.None() || h != to {"}},
		Tests: Tests{Package: "handoff", Run: "^TestSpareStandby$"},
	}, {
		Name: "spare-level", Guard: "nobody is a spare before all members know what that is",
		Edits: []Edit{{"ring/epoch/table/plan.go", " || !t.Uses(3) || ", " || "}},
		Tests: Tests{Package: "ring/epoch/table", Run: "^TestSpare$"},
	}, {
		Name: "mute-waited-for", Guard: "a mute member that alone has the state of rows is waited for",
		Edits: []Edit{{"ring/epoch/resume.go", " || k.waitsFor(h, all)", " || all == nil"}},
		Tests: Tests{Package: "ring/epoch", Run: "^TestMuteIsWaitedFor$"},
	}, {
		Name: "mute-only-stranded", Guard: "nobody waits for a member whose rows have standbys",
		Edits: []Edit{{"ring/epoch/mute.go", " || !k.synced.Strands(h, over)", ""}},
		Tests: Tests{Package: "ring/epoch", Run: "^TestMuteIsNotWaitedFor$"},
	}, {
		Name: "mute-bounded", Guard: "a mute member is not waited for for ever",
		Edits: []Edit{{"ring/epoch/mute.go", "k.grants.Overdue(h, k.now) >= int64(k.cfg.TTL) || ", ""}},
		Tests: Tests{Package: "ring/epoch", Run: "^TestTrap07OneWayLoss$"},
	}}
}
