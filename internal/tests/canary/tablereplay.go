package main

// replays are the guards of a log that is replayed in its own time.
func replays() []Canary {
	return []Canary{{
		Name: "replay-order", Guard: "lines that were logged late are decided in their place",
		Edits: []Edit{{"internal/cli/replay/order.go", "for o.held > o.most {", "for o.held > 0 {"}},
		Tests: Tests{Package: "internal/cli/replay", Run: "^TestLogTimeIsExact$"},
	}, {
		Name: "replay-late", Guard: "time does not go back for a line that comes too late",
		Edits: []Edit{{"internal/cli/replay/order.go", "		at = o.reached\n", ""}},
		Tests: Tests{Package: "internal/cli/replay", Run: "^TestOrder$"},
	}, {
		Name: "replay-strange", Guard: "a file that is no log is not taken for one without requests",
		Edits: []Edit{{"internal/cli/replay/report.go", "if r.Broken <= r.Entries {", "if r.Broken >= 0 {"}},
		Tests: Tests{Package: "internal/cli/replay", Run: "^TestUnreadable$"},
	}}
}
