package main

// joiners are the guards of who joins and has no room for what it is to take over.
func joiners() []Canary {
	const room, keeper = "ring/epoch/room.go", "ring/epoch/keeper.go"
	scene := Tests{Package: "internal/tests/sim", Run: "^TestJoinerWithoutRoom$"}
	return []Canary{{
		Name: "joiner-gives-up", Guard: "who joins and has no room gives up, and holds up nobody",
		Edits: []Edit{{room, "if !k.room.givesUp(k.g.Table(), k.g.rule.Self(), k.now) {", "if k.now >= 0 {"}},
		Tests: scene,
	}, {
		Name: "joiner-full-store", Guard: "only a store that is full counts as want of room, and it does",
		Edits: []Edit{{"handoff/target.go", "full.Reason == failure.StoreFull {", "full.Reason != failure.StoreFull {"}},
		Tests: scene,
	}, {
		Name: "joiner-stays-away", Guard: "who was left out does not ask at once",
		Edits: []Edit{{keeper, "k.now >= max(k.renewAt, k.room.asksAt)", "k.now >= k.renewAt"}},
		Tests: scene,
	}, {
		Name: "joiner-strands", Guard: "nobody gives up who has what nobody else has",
		Edits: []Edit{{room, " && !t.Strands(self, []table.Holder{self})", ""}},
		Tests: epochTests("^TestRoomGivesUp$"),
	}, {
		Name: "joiner-active", Guard: "an active member never gives up",
		Edits: []Edit{{room, " || m.Phase != table.Joining", ""}},
		Tests: epochTests("^TestRoomGivesUp$"),
	}, {
		Name: "joiner-row-more", Guard: "a row more is a success",
		Edits: []Edit{{room, "rows > r.most", "rows < 0"}},
		Tests: epochTests("^TestRoomPatience$"),
	}, {
		Name: "joiner-acts-no-more", Guard: "who gives its lease up acts no more",
		Edits: []Edit{{keeper, "k.retired || k.leaving ||", "k.retired ||"}},
		Tests: epochTests("^TestNoLeaseWhileItLeaves$"),
	}}
}
