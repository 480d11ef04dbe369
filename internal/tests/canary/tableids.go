package main

// ids are the guards of ids, and of limits that any node may decide.
func ids() []Canary {
	return []Canary{{
		Name: "id-epoch", Guard: "a process hands out ids of an epoch that it was given, not of one that another was",
		Edits: []Edit{{"internal/node/ids.go", "above = max(above, got) // somebody was quicker", "return got, nil"}},
		Tests: Tests{Package: "internal/tests/sim", Run: "^TestIDsUnderFaults$"},
	}, {
		Name: "id-order", Guard: "a block of ids is not used when it is too old to keep the order",
		Edits: []Edit{{"internal/ids/blocks.go", " && now-b.asked < int64(Order)", ""}},
		Tests: Tests{Package: "internal/ids", Run: "^TestBlocks$"},
	}, {
		Name: "chunk-slack", Guard: "the owner keeps back what other nodes may hold",
		Edits: []Edit{{"internal/rpc/chunks.go", "Burst: b.Burst - chunk.Slack(b.Burst), Cost: cost", "Burst: b.Burst, Cost: cost"}},
		Tests: Tests{Package: "internal/rpc", Run: "^TestAnywhereKeepsBack$"},
	}, {
		Name: "chunk-lease", Guard: "a chunk is not spent when its time is over",
		Edits: []Edit{{"internal/chunk/cell.go", "if now >= c.until {", "if now >= c.until && false {"}},
		Tests: Tests{Package: "internal/chunk", Run: "^TestLeaseOfChunks$"},
	}, {
		Name: "chunk-parameters", Guard: "what is left of a chunk goes when other parameters are stated",
		Edits: []Edit{{"internal/chunk/book.go", "	e.forget()\n", ""}},
		Tests: Tests{Package: "internal/chunk", Run: "^TestOneChunkForAllParameters$"},
	}, {
		Name: "chunk-strangers", Guard: "who is not on the ring holds no chunk",
		Edits: []Edit{{"internal/rpc/chunks.go", "|| !mayHold(t, self):", "|| !mayHold(t, self) && self.None():"}},
		Tests: Tests{Package: "internal/rpc", Run: "^TestAnywhereStrangers$"},
	}}
}
