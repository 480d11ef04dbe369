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
	}}
}
