package main

// queues are the guards of places in the queues of locks, of their records, and of
// the level by which the records are written.
func queues() []Canary {
	level := Tests{Package: "ring/epoch/table", Run: "^TestAdopt$"}
	return []Canary{{
		Name: "adopt-all", Guard: "a level is committed only when all members know it (trap 48)",
		Edits: []Edit{{"ring/epoch/table/level.go", "return max(1, m.Level) < c.Level })", "return max(1, m.Level) < FirstAdopted-1 })"}},
		Tests: level,
	}}
}
