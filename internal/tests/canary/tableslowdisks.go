package main

// slowDisks are the guards of leaders whose disks hang, where those of others are slow too.
func slowDisks() []Canary {
	return []Canary{{
		Name: "stall-others-write", Guard: "a leader whose disk hangs steps aside for nodes that write fast enough to vote",
		Edits: []Edit{{"ring/epoch/stall.go", "&peerv1.ProveRequest{Write: true}", "&peerv1.ProveRequest{}"}},
		Tests: epochTests("^TestSlowDisksElectNobody$"),
	}}
}
