package main

// living are the guards of nodes that are dead but smile: their disks hang, or their
// logs stand still.
func living() []Canary {
	const stall = "ring/epoch/stall.go"
	return []Canary{{
		Name: "stall-aside", Guard: "a leader whose disk hangs takes no part in raft, so that the others elect one of them",
		Edits: []Edit{{stall, "k.g.wire.shut(kindRaft, aside)", ""}},
		Tests: Tests{Package: "ring/epoch", Run: "^TestLeaderDiskHangsOfThree$"},
	}, {
		Name: "stall-stays", Guard: "a leader whose disk hangs stays where nobody could be elected in its place",
		Edits: []Edit{{stall, "return able > voters/2", "return true"}},
		Tests: Tests{Package: "ring/epoch", Run: "^TestLeaderDiskHangsAlone$"},
	}, {
		Name: "lag-stuck", Guard: "a node that does not apply what the table says of its rows is granted nothing",
		Edits: []Edit{{"ring/epoch/leader.go", "k.behind(r) || k.stuck(r.holder(), r.req.Epoch)", "k.behind(r)"}},
		Tests: Tests{Package: "ring/epoch", Run: "^TestLogStandsStill$"},
	}, {
		Name: "lag-own-rows", Guard: "a node that misses what does not concern it keeps its lease",
		Edits: []Edit{{"ring/epoch/lag.go", "needs := t.Concerns(h)", "needs := t.Epoch"}},
		Tests: Tests{Package: "ring/epoch", Run: "^TestLogStandsStillElsewhere$"},
	}}
}
