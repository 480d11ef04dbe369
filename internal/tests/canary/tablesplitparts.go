package main

// splitStores are the guards of a store that has parts.
func splitStores() []Canary {
	const split, take = "owner/split.go", "owner/take.go"
	tests := Tests{Package: "owner", Run: "^Test(CounterSplitAndJoined|LimitSplitAndJoined|WeightsGetToStates|LostParts|ErrWhole|TakeAndPutOfMany)$"}
	return []Canary{{
		Name: "split-lost-part", Guard: "a part that was lost is empty, not full",
		Edits: []Edit{{split, "*state = part.Emptied(t.now)", "*state = limit.State{}"}},
		Tests: tests,
	}, {
		Name: "split-partible", Guard: "a part does not decide an add whose bounds are those of the whole",
		Edits: []Edit{{split, "return op.IdleTTL == 0 && !op.HasMin && !op.HasMax", "return op.IdleTTL == 0"}},
		Tests: tests,
	}, {
		Name: "split-look-lowers", Guard: "a weight that was lowered gets to a part that nobody asks",
		Edits: []Edit{{"owner/limitstate.go", "if t.ref.Role == Look {", "if t.ref.Role == Look && t.weight == 0 {"}},
		Tests: tests,
	}, {
		Name: "split-put-replaces", Guard: "what is put together has its own request ids, and not those of before",
		Edits: []Edit{{take, "		sh.ids.Drop(t.e.ids)\n		t.e.ids = 0\n", ""}},
		Tests: Tests{Package: "hotkey/divide", Run: "^TestJoinReplaces$"},
	}, {
		Name: "split-put-told", Guard: "the standby is told of what was put together",
		Edits: []Edit{{take, "if sink := sh.store.cfg.Sink; sink != nil {", "if sink := sh.store.cfg.Sink; sink != nil && len(all) > 1<<20 {"}},
		Tests: tests,
	}}
}

// splitWeights are those of the arithmetic of parts of a limit.
func splitWeights() []Canary {
	const part = "owner/limit/part.go"
	tests := Tests{Package: "owner/limit", Run: "^Test(WeightsGiveNothing|PartsNeverAdmitMore|CutAndRaisedAsleep|Reweigh|UniteWithoutAll)$"}
	return []Canary{{
		Name: "split-raise", Guard: "a higher weight gives room, and no tokens",
		Edits: []Edit{{part, "s.Spent = min(s.Spent+more, MaxLimit)", "s.Spent = min(s.Spent+more-more, MaxLimit)"}},
		Tests: tests,
	}, {
		Name: "split-lower", Guard: "a lower weight takes the tokens that do not fit any more",
		Edits: []Edit{{part, "s.Spent -= min(capacity*uint64(from-to)>>weightBits, s.Spent)", "s.Spent -= min(capacity*uint64(from)>>weightBits, s.Spent)"}},
		Tests: tests,
	}, {
		Name: "split-divide-up", Guard: "what is spent is rounded up in every part",
		Edits: []Edit{{part, "part.Spent = (s.Spent*uint64(w) + Whole - 1) >> weightBits", "part.Spent = (s.Spent * uint64(w)) >> weightBits"}},
		Tests: tests,
	}, {
		Name: "split-unite-weight", Guard: "a limit that is united of fewer parts than there were lacks what they had",
		Edits: []Edit{{part, "to := uint32(min(max(weight, 1), Whole))", "to := uint32(min(max(weight, Whole), Whole))"}},
		Tests: tests,
	}, {
		Name: "split-slow", Guard: "what came back before a weight changed, came back at the lower rate",
		Edits: []Edit{{part, "s = s.settled(now).paced(to)", "s = s.paced(to).settled(now)"}},
		Tests: tests,
	}}
}

// splitCalls are those of the calls about objects that are split, and about parts.
func splitCalls() []Canary {
	const split, forward, part = "internal/rpc/split.go", "internal/rpc/splitforward.go", "internal/rpc/splitpart.go"
	tests := Tests{Package: "internal/rpc", Run: "^Test(Divisible|MayBeBehind|Choose|PlaceOfOperation|Aim|AimAtAPart|Order|PlantAndRead|ReadPartOfMany)$"}
	return []Canary{{
		Name: "split-retry-part", Guard: "an operation with a request id goes to the part of the id, wherever it comes to",
		Edits: []Edit{{split, "	if id != nil && id.Given() {\n		i = table.PartOf", "	if id != nil && id.Given() && n > table.MaxParts {\n		i = table.PartOf"}},
		Tests: tests,
	}, {
		Name: "split-place-open", Guard: "an operation acts on a part only when the split is open",
		Edits: []Edit{{split, "	if sp.Phase != table.Open {\n		return r, share{}, errNotOwner", "	if sp.Phase == table.Closing {\n		return r, share{}, errNotOwner"}},
		Tests: tests,
	}, {
		Name: "split-divisible", Guard: "an add within bounds waits for the whole",
		Edits: []Edit{{split, "return x.Add.Min == nil && x.Add.Max == nil && x.Add.IdleTtlNs == 0", "return x.Add.IdleTtlNs == 0"}},
		Tests: tests,
	}, {
		Name: "split-aim-phase", Guard: "nobody waits for a part whose time is over",
		Edits: []Edit{{forward, "if sp.Phase != phaseOf(p.call) {", "if sp.Phase > table.Closing {"}},
		Tests: tests,
	}, {
		Name: "split-behind-part", Guard: "a call to a part that is closed goes back to who sent it",
		Edits: []Edit{{forward, "case sp.Phase > phaseOf(c):", "case sp.Phase > table.Closing:"}},
		Tests: tests,
	}, {
		Name: "split-behind-whole", Guard: "who calls the whole of an object whose parts are served, learns of them",
		Edits: []Edit{{forward, "return sp.Phase != table.Open //", "return true //"}},
		Tests: tests,
	}, {
		Name: "split-plant-address", Guard: "a part takes in what is its own",
		Edits: []Edit{{part, "if string(x.Key) != r.Key ||", "if string(x.Key) == \"\" ||"}},
		Tests: tests,
	}, {
		Name: "split-plant-home", Guard: "a home of before plants nothing, for the next one may divide another state",
		Edits: []Edit{{part, "if !ok || home.Holder() != (table.Holder{Node: req.Home, Incarnation: req.HomeIncarnation}) {", "if !ok || home.Node == \"\" {"}},
		Tests: tests,
	}, {
		Name: "split-look-value", Guard: "the value of a part with many request ids is that of its state",
		Edits: []Edit{{part, "if x.Whole { //", "if x.Whole || x.More { //"}},
		Tests: tests,
	}, {
		Name: "split-trimmed", Guard: "a part with many request ids fits into a message, so that the object gets whole",
		Edits: []Edit{{part, "r.Records, err = trimmed(encoded, s.cfg.Clock.Now())", "r.Records = encoded"}},
		Tests: tests,
	}, {
		Name: "split-carry-many", Guard: "an object with many request ids can be split",
		Edits: []Edit{{part, "		records, err = readRecords(encoded, now)\n	}\n	return records, now, err", "		records, err = ReadRecords(encoded, now)\n	}\n	return records, now, err"}},
		Tests: Tests{Package: "internal/rpc", Run: "^TestTakeWholeOfMany$"},
	}, {
		Name: "split-look-restarts", Guard: "what a part was asked for is not counted wrong when another owner counts from 0",
		Edits: []Edit{{"internal/node/splitbalance.go", "		if now < *was { // another", "		if now == 0 { // another"}},
		Tests: Tests{Package: "internal/node", Run: "^TestPartLook$"},
	}, {
		Name: "split-order", Guard: "nobody splits a part",
		Edits: []Edit{{"internal/rpc/splitservice.go", "case key[0] == 0 || !utf8", "case !utf8"}},
		Tests: tests,
	}, {
		Name: "split-told-owner", Guard: "who watches is told that a part has another owner",
		Edits: []Edit{{"internal/rpc/splitwire.go", "was.Parts[i] != p || partOwner(from, was, i) != partOwner(to, s, i)", "was.Parts[i] != p"}},
		Tests: Tests{Package: "internal/rpc", Run: "^TestWatchTellsSplits$"},
	}, {
		Name: "split-told-over", Guard: "who watches is told that a split is over",
		Edits: []Edit{{"internal/rpc/clustertable.go", "Splits: splits, Merged: merged,", "Splits: splits, Merged: merged[:0],"}},
		Tests: Tests{Package: "internal/rpc", Run: "^TestWatchTellsSplits$"},
	}, {
		Name: "split-view-copied", Guard: "what a client knew of splits before stays as it was",
		Edits: []Edit{{"client/split.go", "		v.told = make(map[uint64]*pb.Split, len(before)+len(changed))\n		maps.Copy(v.told, before)", "		if v.told == nil {\n			v.told = maps.Clone(map[uint64]*pb.Split{})\n		}"}},
		Tests: Tests{Package: "client", Run: "^TestSplitChanges$"},
	}}
}
