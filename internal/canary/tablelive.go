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
	}}
}
