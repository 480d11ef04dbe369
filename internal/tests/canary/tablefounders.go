package main

// founders are the guards of who makes a cluster from a list of founders.
func founders() []Canary {
	const file = "internal/node/found.go"
	tests := func(run string) Tests { return Tests{Package: "internal/node", Run: run} }
	return []Canary{{
		Name: "founders-one", Guard: "only the first founder makes the cluster",
		Edits: []Edit{{file, "len(f) > 0 && f[0] == c.cfg.ID", "slices.Contains(f, c.cfg.ID)"}},
		Tests: tests("^TestFoundsAlone$"),
	}, {
		Name: "founders-all", Guard: "it makes none before all founders are there",
		Edits: []Edit{{file, "if len(missing) > 0 {", "if len(missing) == len(c.cfg.Cluster.Founders) {"}},
		Tests: tests("^TestUnfounded$"),
	}, {
		Name: "founders-alive", Guard: "a founder that has failed is not there",
		Edits: []Edit{{file, "f.State == member.Alive && ", ""}},
		Tests: tests("^TestUnfounded$"),
	}, {
		Name: "founders-belong", Guard: "none is made while anybody belongs to a cluster",
		Edits: []Edit{{file, `f.Ours && f.Self.UID != "" && f.Name != c.cfg.ID`, "false && f.Ours"}},
		Tests: tests("^TestUnfounded$"),
	}, {
		Name: "founders-wait", Guard: "it waits for those who try to reach members that have failed",
		Edits: []Edit{{"internal/node/vigil.go", "founderRounds*p.Reconnect() + founderSpare", "founderSpare"}},
		Tests: tests("^TestVigil$"),
	}, {
		Name: "founders-slept", Guard: "what it saw before it was stopped does not count",
		Edits: []Edit{{"internal/node/vigil.go", "now-v.last > int64(founderGap)", "now-v.last > 1<<60"}},
		Tests: tests("^TestVigil$"),
	}, {
		Name: "founders-late", Guard: "it looks at the clock just before the log is written",
		Edits: []Edit{{"ring/epoch/found.go", "if err := still(); err != nil {", "if err := still(); err != nil && g == nil {"}},
		Tests: epochTests("^TestFoundTooLate$"),
	}, {
		Name: "alone-floor", Guard: "a cluster begins above what its maker has served under alone",
		Edits: []Edit{{"internal/node/alone.go", "max(c.cfg.EpochFloor, c.alone+1)", "c.cfg.EpochFloor"}},
		Tests: tests("^TestAloneThenInACluster$"),
	}}
}
