package main

// rows are the guards of rows that nobody plans for, and of what planning costs.
func rows() []Canary {
	const plan = "ring/epoch/table/plan.go"
	return []Canary{{
		Name: "rows-misplaced", Guard: "rows that stand where the ring does not want them are moved, although nobody comes or goes",
		Edits: []Edit{{plan, "if !needed && moves == 0 {", "if !needed {"}},
		Tests: Tests{Package: "ring/epoch/table", Run: "^TestMisplaced$"},
	}, {
		Name: "rows-bare", Guard: "a row without a standby counts as unprotected, whoever owns it",
		Edits: []Edit{{"ring/epoch/table/table.go", "(r.Standby.None() || r.Owner != standby)", "r.Owner != standby"}},
		Tests: Tests{Package: "ring/epoch/table", Run: "^TestMisplaced$"},
	}, {
		Name: "flight-one", Guard: "a command that is proposed again while it is under way waits for the first",
		Edits: []Edit{{"ring/epoch/flight.go", "case was != nil && was.to == to:", "case was != nil && was.to == to && id == \"\":"}},
		Tests: epochTests("^TestRepeatWaitsForTheFirst$"),
	}, {
		Name: "flight-bound", Guard: "so many commands are under way and no more",
		Edits: []Edit{{"ring/epoch/flight.go", "case len(f.by) >= maxFlights:", "case len(f.by) < 0:"}},
		Tests: epochTests("^TestFlightsAreBounded$"),
	}, {
		Name: "batch-shown", Guard: "the table before a command that is no Sync is shown to this node",
		Edits: []Edit{{"ring/epoch/fsm.go", "if c.Sync == nil {\n\t\tf.show()\n\t}\n\tnext, refused", "next, refused"}},
		Tests: epochTests("^TestBatchShowsWhatMatters$"),
	}, {
		Name: "syncs-few", Guard: "a source has a few standbys put in at a time",
		Edits: []Edit{{"handoff/sync.go", "if s.syncing >= maxSyncs {", "if s.syncing < 0 {"}},
		Tests: Tests{Package: "handoff", Run: "^TestFewSyncsAtATime$"},
	}, {
		Name: "server-name", Guard: "where a server is, only the process says that has its name in gossip",
		Edits: []Edit{{"ring/epoch/servers.go", "|| nodeOf(raft.ServerID(p.RaftID)) != p.Node", ""}},
		Tests: epochTests("^TestServerAddr$"),
	}, {
		Name: "server-answers", Guard: "a server is added when it has answered as that of this cluster",
		Edits: []Edit{{"ring/epoch/servers.go", "if id != g.self {", "if id == \"\" {"}},
		Tests: epochTests("^TestForgedServers$"),
	}, {
		Name: "raft-says-once", Guard: "raft says the same of a server once a minute",
		Edits: []Edit{{"ring/epoch/log.go", "is && now.Sub(at) < sayAgain", "is && now.Sub(at) < 0"}},
		Tests: epochTests("^TestRaftSaysItOnce$"),
	}, {
		Name: "reopen", Guard: "rows that were closed for a flip that was refused are served while they are copied anew",
		Edits: []Edit{{"ring/epoch/serving/serving.go", "f.closed = false", "f.closed = true"}},
		Tests: Tests{Package: "handoff", Run: "^TestRefusedFlipIsOpened$"},
	}, {
		Name: "reopen-epoch", Guard: "rows are opened by a rule that goes by the table of the refusal",
		Edits: []Edit{{"ring/epoch/serving/serving.go", "if r.now.Load().table.Epoch < epoch {", "if epoch == 0 {"}},
		Tests: Tests{Package: "ring/epoch/serving", Run: "^TestReopen$"},
	}}
}
