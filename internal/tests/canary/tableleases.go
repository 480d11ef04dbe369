package main

import "time"

// leases are the guards of who may act.
func leases() []Canary {
	const file = "ring/epoch/lease/lease.go"
	tests := Tests{Package: "ring/epoch/lease", Run: "."}
	return []Canary{{
		Name: "lease-dropped", Guard: "an answer to a renewal of before the lease was dropped does not bring it back",
		Edits: []Edit{{file, "if s.Frame != h.frame {", "if s.Frame > h.frame {"}},
		Tests: tests,
	}, {
		Name: "lease-ready", Guard: "a leader that has not applied what was committed before its term grants nothing",
		Edits: []Edit{{file, "if !g.IsReady() {\n\t\treturn 0, NotNow", "if g.term == 0 {\n\t\treturn 0, NotNow"}, {file, "if !g.IsReady() {\n\t\treturn\n", "if g.term == 0 {\n\t\treturn\n"}},
		Tests: tests,
	}, {
		Name: "lease-full-ttl", Guard: "a new leader calls nobody expired for a whole TTL",
		Edits: []Edit{{file, "g.quiet = max(g.quiet, g.led+cfg.TTL+cfg.Margin)", ""}, {file, "expires: now + g.cfg.TTL + g.cfg.Margin", "expires: now"}},
		Tests: tests,
	}, {
		Name: "lease-gap", Guard: "a leader that has slept calls nobody expired for a whole TTL",
		Edits: []Edit{{file, "if gap {\n\t\tg.Hush(now)\n\t}", ""}},
		Tests: tests,
	}, {
		Name: "lease-new-member", Guard: "who is in the table anew is not called expired for a whole TTL",
		Edits: []Edit{{file, "expires: now + g.cfg.TTL + g.cfg.Margin", "expires: now"}},
		Tests: tests,
	}, {
		Name: "lease-removing", Guard: "who is being removed is granted nothing",
		Edits: []Edit{{file, "if m.removing || m.granted", "if m.granted"}},
		Tests: tests,
	}, {
		Name: "lease-unheard", Guard: "after two grants that did not arrive the lease is not extended",
		Edits: []Edit{{file, "if m.removing || m.granted-m.heard >= maxUnheard {", "if m.removing {"}},
		Tests: tests,
	}, {
		Name: "lease-margin", Guard: "the leader counts the drift of clocks on top",
		Edits: []Edit{{file, "received+g.cfg.TTL+g.cfg.Margin", "received+g.cfg.TTL"}},
		Tests: tests,
	}, {
		Name: "lease-expired", Guard: "only whose lease is over is removed",
		Edits: []Edit{{file, "m.expires <= now && g.quiet <= now", "g.quiet <= now"}},
		Tests: tests,
	}, {
		Name: "lease-agreed-ttl", Guard: "a leader counts by the TTL that was agreed",
		Edits: []Edit{{file, "g.cfg, g.ready = cfg, true", "g.ready = true"}},
		Tests: tests,
	}}
}

// epochTests run in real time.
func epochTests(run string) Tests {
	return Tests{Package: "ring/epoch", Run: run, Timeout: 2 * time.Minute}
}

// keepers are those of the process that keeps its lease, and of the leader.
func keepers() []Canary {
	const leader, rpc, keeper = "ring/epoch/leader.go", "ring/epoch/rpc.go", "ring/epoch/keeper.go"
	return []Canary{{
		Name: "proof", Guard: "a leader proves its leadership before it grants",
		Edits: []Edit{{leader, "err := k.g.proof(ctx, term)", "err := ctx.Err()"}},
		Tests: epochTests("^TestTrap05GrantNeedsProof$"),
	}, {
		Name: "proof-majority", Guard: "a majority has to answer the proof",
		Edits: []Edit{{rpc, "if yes > voters/2 && g.leads() == term {", "if yes > 0 && g.leads() == term {"}},
		Tests: epochTests("^TestTrap01"),
	}, {
		Name: "proof-voters", Guard: "only voters count in the proof",
		Edits: []Edit{{rpc, "if s.Suffrage != raft.Voter {", "if s.Suffrage > raft.Nonvoter {"}},
		Tests: epochTests("^TestProofAsksVotersOnly$"),
	}, {
		Name: "proof-term", Guard: "a voter that knows a later term does not count in the proof",
		Edits: []Edit{{rpc, "return r != nil && r.Term == term", "return r != nil && r.Term > 0"}},
		Tests: epochTests("^TestTrap01"),
	}, {
		Name: "proof-after-receipt", Guard: "a renewal waits for a proof that began after it came",
		Edits: []Edit{{leader, "for _, r := range round {\n", "round, k.waiting = append(round, k.waiting...), nil\n\tfor _, r := range round {\n"}},
		Tests: epochTests("^TestProofAfterReceipt$"),
	}, {
		Name: "barrier", Guard: "a new leader applies what was committed before its term, and then grants",
		Edits: []Edit{{leader, "if k.g.settled(k.g.raft.Barrier(applyWait)) == nil && k.g.rise(term) == nil {", "if true {"}},
		Tests: epochTests("^TestTrap02"),
	}, {
		Name: "removal-proposed", Guard: "the leader grants nothing to whom it has proposed to remove",
		Edits: []Edit{{leader, "k.grants.Removing(c.Remove.Members)", ""}},
		Tests: epochTests("^TestTrap03"),
	}, {
		Name: "count-from-send", Guard: "a node counts its lease from when it sent the renewal",
		Edits: []Edit{{keeper, "k.holding.Received(s,", "s.Sent = k.now\n\tk.holding.Received(s,"}},
		Tests: Tests{Package: "internal/tests/sim", Run: "^TestLateAnswers$"},
	}}
}

// terms are those of who is admitted, under which clock and from which epoch on.
func terms() []Canary {
	const leader, keeper = "ring/epoch/leader.go", "ring/epoch/keeper.go"
	return []Canary{{
		Name: "renewal-epoch", Guard: "who has not applied its own admission is granted nothing",
		Edits: []Edit{{leader, "r.req.Epoch < m.Since", "r.req.Epoch < 0*m.Since"}},
		Tests: epochTests("^TestRemovedComesBack$"),
	}, {
		Name: "removed-comes-back", Guard: "who was removed is not admitted again under the same incarnation",
		Edits: []Edit{{leader, "if k.known[q.Node] == q.Incarnation {", "if q.Node == \"\" {"}},
		Tests: epochTests("^TestRemovedComesBack$"),
	}, {
		Name: "candidate-epoch", Guard: "who does not follow the log is not admitted",
		Edits: []Edit{{"ring/epoch/resume.go", "return c.epoch >= k.membersAt && c", "return c"}},
		Tests: epochTests("^TestRemovedComesBack$"),
	}, {
		Name: "wall-jump", Guard: "the lease is dropped when wall time and boot time part",
		Edits: []Edit{{keeper, "k.holding.Drop()\n\tk.g.rule.Extend(0)\n\tk.renewAt = k.now", "k.renewAt = k.now"}},
		Tests: epochTests("^TestLeaseIsDroppedAtAJump$"),
	}, {
		Name: "unknown-command", Guard: "a node stops at a command that it does not know",
		Edits: []Edit{{"ring/epoch/fsm.go", "f.stopped = true\n\t\tf.fail(", "f.fail("}},
		Tests: epochTests("^TestUnknownCommandStops$"),
	}, {
		Name: "epoch-floor", Guard: "a new cluster begins above the floor of epochs",
		Edits: []Edit{{leader, "k.cfg.EpochFloor, 1)", "1)"}},
		Tests: epochTests("^TestTrap28EpochFloor$"),
	}, {
		Name: "epoch-of-the-wall", Guard: "a new cluster begins at the epoch of the wall clock",
		Edits: []Edit{{leader, "max(WallEpoch(k.cfg.Wall()), k.cfg.EpochFloor, 1)", "max(k.cfg.EpochFloor, 1)"}},
		Tests: epochTests("^TestEpochOfANewCluster$"),
	}, {
		Name: "sole-epoch", Guard: "a lone node starts above the epoch that it kept",
		Edits: []Edit{{"internal/node/epoch.go", "next = max(next, last+1)", "next = max(next, last)"}},
		Tests: Tests{Package: "internal/node", Run: "^TestEpoch"},
	}, {
		Name: "sole-epoch-kept", Guard: "a lone node keeps its epoch before it uses it",
		Edits: []Edit{{"internal/node/epoch.go", "if s.path != \"\" {", "if false {"}},
		Tests: Tests{Package: "internal/node", Run: "^TestEpoch"},
	}}
}
