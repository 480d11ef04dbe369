package main

// losses are the guards of the grace period after a declared loss.
func losses() []Canary {
	const grace = "ring/epoch/table/grace.go"
	owner := func(run string) Tests { return Tests{Package: "owner", Run: run} }
	return []Canary{{
		Name: "settle-owner", Guard: "only the owner of a row ends its grace",
		Edits: []Edit{{grace, "case r.Owner != c.Owner:", "case false:"}},
		Tests: Tests{Package: "ring/epoch/table", Run: "^TestEndGraceNamesTheLoss$"},
	}, {
		Name: "settle-loss", Guard: "the grace of a later loss is not ended by an owner that has seen the earlier one",
		Edits: []Edit{{grace, "r.Lost != l.Lost", "r.Lost == l.Lost+1<<60"}},
		Tests: Tests{Package: "ring/epoch/table", Run: "^TestEndGraceNamesTheLoss$"},
	}, {
		Name: "grace-grants-nothing", Guard: "no lock is granted while the row is in grace",
		Edits: []Edit{{"owner/lock.go", "if t.permit.Lost != 0 {\n\t\treturn AcquireAnswer{}", "if t.permit.Lost == 1 {\n\t\treturn AcquireAnswer{}"}},
		Tests: owner("^TestNothingIsGrantedInGrace$"),
	}, {
		Name: "reclaim-highest", Guard: "of two claims the one with the higher token wins (trap 35)",
		Edits: []Edit{{"owner/lock/reclaim.go", "if op.Token <= s.LastToken {", "if op.Token == s.LastToken {"}},
		Tests: Tests{Package: "owner/lock", Run: "^TestTranscripts$|Reclaim"},
	}, {
		Name: "lost-ids", Guard: "a request of before the loss is not taken for a new one",
		Edits: []Edit{{"internal/node/serving.go", "p.Since = max(m.start, e.LostAt)", "p.Since = m.start"}},
		Tests: Tests{Package: "internal/node", Run: "^TestRuleInCluster$"},
	}, {
		Name: "reclaim-before-loss", Guard: "a claim of a token that cannot have been granted before the loss is refused",
		Edits: []Edit{{"owner/lock.go", "claim != nil && t.permit.Lost != 0 && !beforeLoss(token, t.permit.Lost)", "claim != nil && token == 0"}},
		Tests: owner("^Test(ClaimsThatCannotBe|ClaimsInAnyOrder)$"),
	}}
}

// returns are the guards of a process that goes on from what an earlier one left.
func returns() []Canary {
	const resume, serves, file = "ring/epoch/table/resume.go", "ring/epoch/serving/serving.go", "internal/node/statefile.go"
	loaded := Tests{Package: "ring/epoch/serving", Run: "^TestLoaded"}
	return []Canary{{
		Name: "resume-incarnation", Guard: "a process takes only the place of the one whose state it has (trap 27)",
		Edits: []Edit{{resume, "!ok || t.Members[at].Incarnation != c.Old", "!ok"}},
		Tests: Tests{Package: "ring/epoch/table", Run: "^TestResume$"},
	}, {
		Name: "resume-standby", Guard: "what an earlier process stood by for is not its successor's",
		Edits: []Edit{{resume, "r.Standby, r.Synced, r.Since = Holder{}, false, t.Epoch", "r.Standby, r.Since = m.Holder(), t.Epoch"}},
		Tests: Tests{Package: "ring/epoch/table", Run: "^TestResume$"},
	}, {
		Name: "loaded-lost", Guard: "state of rows that were lost since it was written does not count",
		Edits: []Edit{{serves, "if w.mine && r.Lost <= epoch {", "if w.mine {"}},
		Tests: loaded,
	}, {
		Name: "loaded-others", Guard: "state of rows that others own is discarded",
		Edits: []Edit{{serves, "if w.mine && r.Lost <= epoch {\n\t\t\tcounts = true", "if !w.mine || r.Lost <= epoch {\n\t\t\tcounts = true"}},
		Tests: loaded,
	}, {
		Name: "state-once", Guard: "a state file that is older than what the node did since does not count",
		Edits: []Edit{{file, "if h.Epoch != last {", "if h.Epoch > last {"}},
		Tests: Tests{Package: "internal/node", Run: "^TestStateRefused$"},
	}, {
		Name: "resume-wait", Guard: "nodes that were stopped with all others are waited for",
		Edits: []Edit{{"ring/epoch/resume.go", "return k.roll.awaits(h, k.now)", "return h.None() && k.roll.awaits(h, k.now)"}},
		Tests: Tests{Package: "ring/epoch", Run: "^TestResumeOneAfterTheOther$"},
	}, {
		Name: "level-admits", Guard: "a program that does not know what the cluster has used is not admitted",
		Edits: []Edit{{"ring/epoch/table/level.go", "if max(1, m.Level) < t.Level {", "if m.Level > t.Level {"}},
		Tests: Tests{Package: "ring/epoch/table", Run: "^TestLevels$"},
	}}
}
