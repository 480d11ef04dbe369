package main

// drains are the guards of drains when nobody is left to take anything.
func drains() []Canary {
	return []Canary{{
		Name: "drain-of-the-last", Guard: "a drain of a process that does not say that it stops is judged as programs of level 2 do",
		Edits: []Edit{{"ring/epoch/table/standby.go", "case !c.Stop || !allStop(members):", "case !allStop(members):"}},
		Tests: Tests{Package: "ring/epoch/table", Run: "^TestDrainOfTheLastJoining$"},
	}}
}
