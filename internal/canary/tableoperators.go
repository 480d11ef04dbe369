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
	}}
}
