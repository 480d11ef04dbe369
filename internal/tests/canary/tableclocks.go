package main

// clocks are the guards against clocks that run at other rates than others.
func clocks() []Canary {
	const keeper = "ring/epoch/keeper.go"
	return []Canary{{
		Name: "lease-steady-clock", Guard: "leases are counted by the clock that nobody slews",
		Edits: []Edit{{keeper, "k.now = k.g.steady() }", "k.now = k.boot }"}},
		Tests: Tests{Package: "internal/tests/sim", Run: "^TestTrap45SlewedClocks$", Tries: 3},
	}, {
		Name: "lease-slew-reserve", Guard: "the rule is given less than is left, should its clock run slow",
		Edits: []Edit{{keeper, "int64(clock.MaxSlew*float64(left))", "int64(0*clock.MaxSlew*float64(left))"}},
		Tests: epochTests("^TestTrap45LeaseOfASlewedClock$"),
	}, {
		Name: "pace-gained", Guard: "a lease is dropped when the leader's clock has gained more than the margin",
		Edits: []Edit{{"ring/epoch/pace.go", "return gained == 0 && !is\n", "return true\n"}, {"ring/epoch/pace.go", "if gained > 0 {\n\t\tk.g.gains.Add(1)\n\t\tk.holding.Drop()", "if gained > 0 {\n\t\tk.g.gains.Add(1)"}},
		Tests: epochTests("^TestLeaseIsDroppedWhenTheLeadersClockGains$"),
	}, {
		Name: "pace-messages", Guard: "a late message is not taken for a fast clock",
		Edits: []Edit{{"ring/epoch/lease/pace.go", "own := is.Answered - was.Sent", "own := is.Sent - was.Sent"}},
		Tests: Tests{Package: "ring/epoch/lease", Run: "^TestPaceOfMessages$"},
	}, {
		Name: "pace-rates", Guard: "who finds the leader's clock fast again and again asks for no lease",
		Edits: []Edit{{"ring/epoch/lease/pace.go", "p.apart = e.Answered + apartTTLs*cfg.TTL", "p.apart = 0"}},
		Tests: Tests{Package: "internal/tests/sim", Run: "^TestSlowHardware$"},
	}, {
		Name: "pace-leader", Guard: "a leader whose clock most find fast removes nobody and passes leadership on",
		Edits: []Edit{{"ring/epoch/pace.go", "return slower >= 2 && 2*slower > others", "return slower > others"}},
		Tests: Tests{Package: "internal/tests/sim", Run: "^TestFastLeader$"},
	}, {
		Name: "lease-over", Guard: "a node that cannot go on is given no more of its lease by a tick",
		Edits: []Edit{{keeper, " || k.g.over.Load() {", " {"}},
		Tests: epochTests("^TestNoLeaseAfterAFailure$"),
	}}
}
