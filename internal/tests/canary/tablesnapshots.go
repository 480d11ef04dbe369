package main

// snapshots are the guards of what a follower makes of the snapshot of a leader.
func snapshots() []Canary {
	const file = "ring/epoch/transport.go"
	return []Canary{{
		Name: "snapshot-applied", Guard: "a snapshot that holds nothing new does not reach raft",
		Edits: []Edit{{file, "if !t.has(s.req) {", "if len(s.data) > 0 {"}},
		Tests: epochTests("^TestTrap38LateConfiguration$"),
	}, {
		Name: "snapshot-in-log", Guard: "a snapshot whose entries are in the log does not reach raft",
		Edits: []Edit{{file, "== nil && last.Term == req.LastLogTerm", "== nil && last.Term != last.Term"}},
		Tests: epochTests("^TestSnapshotIsHere$"),
	}, {
		Name: "snapshot-in-turn", Guard: "a snapshot is judged when raft is done with all that came before it",
		Edits: []Edit{{file, "\tcase a := <-answer:\n\t\treply <- a\n\tcase <-t.dead:\n\t}", "\tcase a := <-answer:\n\t\treply <- a\n\tcase <-t.dead:\n\tdefault:\n\t}"}},
		Tests: epochTests("^TestRaftGetsOneMessageAtATime$"),
	}, {
		Name: "snapshot-whole", Guard: "raft gets a snapshot when all of it has arrived",
		Edits: []Edit{{file, "t.arrive(rpc, req)", "_ = req\n\t\t\t\tt.pass(rpc)"}},
		Tests: epochTests("^TestHalfASnapshot$"),
	}, {
		Name: "restore-forward", Guard: "the state machine refuses a snapshot of an older epoch",
		Edits: []Edit{{"ring/epoch/fsm.go", "if t.Epoch < f.table.Epoch {", "if t.Epoch < 0*f.table.Epoch {"}},
		Tests: epochTests("^TestRestoreGoesForward$"),
	}}
}
