package main

// clocks are the guards against clocks that run at other rates than others.
func clocks() []Canary {
	const keeper = "ring/epoch/keeper.go"
	return []Canary{{
		Name: "lease-steady-clock", Guard: "leases are counted by the clock that nobody slews",
		Edits: []Edit{{keeper, "k.now = k.g.steady() }", "k.now = k.boot }"}},
		Tests: Tests{Package: "internal/sim", Run: "^TestTrap45SlewedClocks$", Tries: 3},
	}, {
		Name: "lease-slew-reserve", Guard: "the rule is given less than is left, should its clock run slow",
		Edits: []Edit{{keeper, "int64(clock.MaxSlew*float64(left))", "int64(0*clock.MaxSlew*float64(left))"}},
		Tests: epochTests("^TestTrap45LeaseOfASlewedClock$"),
	}}
}
