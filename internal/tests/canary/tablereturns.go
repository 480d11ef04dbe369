package main

// coldStarts are the guards of who is waited for after all were stopped, and of removals
// over a change of leaders.
func coldStarts() []Canary {
	const roll, resume = "ring/epoch/roll.go", "ring/epoch/table/resume.go"
	return []Canary{{
		Name: "returned-marked", Guard: "the table says who came back while others were waited for",
		Edits: []Edit{{resume, "was.HashKey, was.Phase, t.Epoch, c.Cold", "was.HashKey, was.Phase, t.Epoch, false"}},
		Tests: epochTests("^TestTrap40LeaderChangesWhileOneIsWaitedFor$"),
	}, {
		Name: "returned-is-not-before", Guard: "who has returned is no process of before for the next leader",
		Edits: []Edit{{roll, "if !m.Returned {", "if m.Node != \"\" {"}},
		Tests: epochTests("^TestRoll$"),
	}, {
		Name: "released-again", Guard: "who has returned and stops again does not end the wait for others",
		Edits: []Edit{{"ring/epoch/leader.go", "k.roll.heard(r.holder())\n\t\t\tk.grants.Release", "k.roll.before = nil\n\t\t\tk.grants.Release"}},
		Tests: epochTests("^TestReleaseWhileOneIsWaitedFor$"),
	}, {
		Name: "wait-ended", Guard: "marks of who has returned are taken away when nobody is waited for",
		Edits: []Edit{{"ring/epoch/leader.go", "if t.Returning() && !k.roll.waits(k.now) {", "if t.Returning() && k.now < 0 {"}},
		Tests: epochTests("^TestWaitEnds$"),
	}, {
		Name: "returned-readable", Guard: "nothing is marked before all members can read the mark",
		Edits: []Edit{{resume, "if cold && !t.Uses(3) {", "if cold && t.Epoch == 0 {"}},
		Tests: Tests{Package: "ring/epoch/table", Run: "^TestReturned$"},
	}, {
		Name: "removal-term", Guard: "a removal that was judged in another term removes nobody",
		Edits: []Edit{{"ring/epoch/fsm.go", "c.Remove.Term != l.Term {", "c.Remove.Term != c.Remove.Term {"}},
		Tests: epochTests("^TestRemovalOfAnotherTerm$"),
	}, {
		Name: "removal-names-term", Guard: "the leader names the term in which it judged a removal",
		Edits: []Edit{{"ring/epoch/leader.go", ", Term: k.termOf(t)}", "}"}},
		Tests: epochTests("^TestRemovalNamesItsTerm$"),
	}, {
		Name: "turned-away-once", Guard: "why a node cannot be admitted is logged once",
		Edits: []Edit{{"ring/epoch/resume.go", "k.turnedAway[node] != why {", "why != \"\" {"}},
		Tests: epochTests("^TestCannotBeAdmitted$"),
	}, {
		Name: "resume-tried", Guard: "a Resume that would be refused is not proposed",
		Edits: []Edit{{"ring/epoch/resume.go", "if k.tries(t, n, r) {", "if r.Resume != nil {"}},
		Tests: epochTests("^TestCannotBeAdmitted$"),
	}, {
		Name: "candidate-behind", Guard: "who is far behind in the log is not admitted yet",
		Edits: []Edit{{"ring/epoch/resume.go", " && c.epoch+maxBehind >= t.Epoch", ""}},
		Tests: epochTests("^TestAdmittedWhileEpochsAreRaised$"),
	}, {
		Name: "drawn-and-crashed", Guard: "the number of a cluster that was never made is that of none",
		Edits: []Edit{{"ring/epoch/storage.go", "if empty, err := s.Empty(); empty || err != nil {", "if _, err := s.Empty(); err != nil {"}},
		Tests: epochTests("^TestDrawnAndCrashed$"),
	}}
}
