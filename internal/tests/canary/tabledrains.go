package main

// drains are the guards of drains when nobody is left to take anything.
func drains() []Canary {
	return []Canary{{
		Name: "drain-of-the-last", Guard: "a drain of a process that does not say that it stops is judged as programs of level 2 do",
		Edits: []Edit{{"ring/epoch/table/standby.go", "case !c.Stop || !allStop(members):", "case !allStop(members):"}},
		Tests: Tests{Package: "ring/epoch/table", Run: "^TestDrainOfTheLastJoining$"},
	}, {
		Name: "last-taker-dies", Guard: "those that stop keep what they have when the last one that could take it dies",
		Edits: []Edit{{"ring/epoch/table/apply.go", "t.nodes = nodes; !slices", "t.nodes = nodes; false && !slices"}},
		Tests: Tests{Package: "ring/epoch/table", Run: "^TestLastTakerDies$"},
	}}
}
