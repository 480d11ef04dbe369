package main

// operators are the guards of what an operator does to a node at night.
func operators() []Canary {
	node := func(run string) Tests { return Tests{Package: "internal/node", Run: run} }
	return []Canary{{
		Name: "lone-directory", Guard: "a node does not run alone on the data directory of another",
		Edits: []Edit{{"internal/node/alone.go", `if name == "" || name == id {`, `if name == "" || name != "\x00" {`}},
		Tests: node("^TestStateOfAnother$"),
	}, {
		Name: "lone-loss", Guard: "the death of a node that runs alone is declared",
		Edits: []Edit{{"internal/node/statefile.go", "if last > 0 {\n\t\t\tn.declareLoss(", "if last > 1<<62 {\n\t\t\tn.declareLoss("}},
		Tests: node("^TestLossOfALoneNode$"),
	}, {
		Name: "keep-tries-on", Guard: "a stop that cannot write the state tries on within its time",
		Edits: []Edit{{"internal/node/keeps.go", "if k.err == nil || left <= 0 ||", "if true || left <= 0 ||"}},
		Tests: node("^TestKeep$"),
	}, {
		Name: "keep-error", Guard: "a stop that could not write the state has an error",
		Edits: []Edit{{"internal/node/keeps.go", "func (n *Node) Kept() error { return n.keeps.err }", "func (n *Node) Kept() error { return nil }"}},
		Tests: node("^TestKeep$"),
	}, {
		Name: "order-gap", Guard: "signals within a second are one order to stop",
		Edits: []Edit{{"internal/cli/orders.go", "time.Since(last) < orderGap", "time.Since(last) < 0"}},
		Tests: Tests{Package: "internal/cli", Run: "^TestOrders$"},
	}, {
		Name: "log-write-fails", Guard: "a write to the log that fails is known",
		Edits: []Edit{{"ring/epoch/stall.go", "if d.err = err; err != nil {", "if d.err = nil; err != nil {"}},
		Tests: Tests{Package: "ring/epoch", Run: "^TestWriteFailures$"},
	}, {
		Name: "waiting-said", Guard: "calls at a node that has not heard of its cluster are told so",
		Edits: []Edit{{"internal/rpc/forward.go", `if st.Waiting == "" || time.Since(st.Started) < startTime {`, `if true || st.Waiting == "" || time.Since(st.Started) < startTime {`}},
		Tests: node("^TestCallsOfANodeThatWaits$"),
	}, {
		Name: "state-newer", Guard: "the state of a newer program is not put aside",
		Edits: []Edit{{"handoff/disk/disk.go", "errors.Is(err, ErrNewer) {\n\t\treturn nil, errors.Join(err, f.Close())", "err == ErrNewer {\n\t\treturn nil, errors.Join(err, s.Refuse())"}},
		Tests: Tests{Package: "handoff/disk", Run: "^TestNewer$"},
	}}
}
