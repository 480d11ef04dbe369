package main

import "slices"

// splits are the guards of objects that are split: what is agreed, who may act as what,
// and what becomes of state and request ids.
func splits() []Canary {
	return slices.Concat(splitTables(), splitSteps(), splitRoles(), divisions(), splitIDs(), splitStores(), splitWeights(), splitCalls())
}

// splitTables are those of the commands that anybody may propose, and of the table.
func splitTables() []Canary {
	const split = "ring/epoch/table/split.go"
	tests := func(run string) Tests { return Tests{Package: "ring/epoch/table", Run: run} }
	const quick = "^Test(BeginSplitRefuses|SplitPhases|SplitHomes|TablesShareNoSplits|MaySplit|RestoreRefusesSplits)$"
	return []Canary{{
		Name: "split-epoch", Guard: "a split is named by the epoch in which it begins, so no other was ever named so",
		Edits: []Edit{{split, "case s.ID != t.Epoch:", "case s.ID > t.Epoch:"}},
		Tests: tests(quick),
	}, {
		Name: "split-once", Guard: "an object is split once at a time",
		Edits: []Edit{{split, "o.Name == s.Name }); i >= 0 {", "o.Name == s.Name }); i > len(t.Splits) {"}},
		Tests: tests(quick),
	}, {
		Name: "split-whole-weight", Guard: "the parts of a limit are not more than the whole",
		Edits: []Edit{{split, "if sum > WholeWeight {", "if sum > 2*WholeWeight {"}},
		Tests: tests(quick),
	}, {
		Name: "split-text", Guard: "no key is split that the log would change",
		Edits: []Edit{{split, "case !utf8.ValidString(s.Key) || !utf8.ValidString(s.Name)", "case !utf8.ValidString(s.Name)"}},
		Tests: tests(quick),
	}, {
		Name: "split-list-copied", Guard: "a command leaves the splits of the table before as they were",
		Edits: []Edit{{split, "	t.Splits = slices.Clone(t.Splits)\n	return &t.Splits[i], nil", "	return &t.Splits[i], nil"}},
		Tests: tests(quick),
	}, {
		Name: "split-weights-copied", Guard: "weights of the table before stay as they were",
		Edits: []Edit{{split, "parts, lower, higher := slices.Clone(s.Parts), false, false", "parts, lower, higher := s.Parts, false, false"}},
		Tests: tests("^Test(Weigh|TablesShareNoSplits)$"),
	}, {
		Name: "split-filter", Guard: "the filter that spares the look at the table lets no part through",
		Edits: []Edit{{split, "			mark(s.hashes[p])\n", ""}},
		Tests: tests(quick),
	}, {
		Name: "split-restored", Guard: "a snapshot with splits that cannot be is damaged",
		Edits: []Edit{{"ring/epoch/table/snapshot.go", "if err := t.checkSplits(); err", "if err := error(nil); err"}},
		Tests: tests(quick),
	}, {
		Name: "split-level", Guard: "nothing is split while a member does not know what that is",
		Edits: []Edit{{"ring/epoch/table/level.go", "case c.OfSplits():", "case c.OfSplits() && c.BeginSplit == nil:"}},
		Tests: tests("^TestSplitsNeedLevel2$"),
	}, {
		Name: "split-place", Guard: "a part is on the node that was chosen for it",
		Edits: []Edit{{split, "ok && m.Node == node {", "ok && m.Node != \"\" {"}},
		Tests: tests("^TestPlace$"),
	}}
}

// splitSteps are those of the phases and the weights, of which the home decides.
func splitSteps() []Canary {
	const split = "ring/epoch/table/split.go"
	tests := Tests{Package: "ring/epoch/table", Run: "^Test(SplitPhases|SplitHomes|Weigh|LateEndSplit|HomeAroundTheEnd)$"}
	const asks = "	s, why := t.change(c.ID)\n	if why == nil {"
	const any = "	s, why := t.change(c.ID)\n	if why == nil && t.Epoch == 0 {"
	const phase = "\n		return refused(\"split %d is %s\", s.ID, s.Phase)\n"
	return []Canary{{
		Name: "split-opened-by-home", Guard: "only the home says that the parts are planted",
		Edits: []Edit{{split, "openSplit(c *OpenSplit) *Refused {\n" + asks, "openSplit(c *OpenSplit) *Refused {\n" + any}},
		Tests: tests,
	}, {
		Name: "split-weighed-by-home", Guard: "only the home changes weights",
		Edits: []Edit{{split, "weigh(c *Weigh) *Refused {\n" + asks, "weigh(c *Weigh) *Refused {\n" + any}},
		Tests: tests,
	}, {
		Name: "split-ended-by-home", Guard: "only the home says that the object is whole",
		Edits: []Edit{{split, "endSplit(c *EndSplit) *Refused {\n" + asks, "endSplit(c *EndSplit) *Refused {\n" + any}},
		Tests: tests,
	}, {
		Name: "split-home-process", Guard: "an earlier process of the home's node is not the home",
		Edits: []Edit{{split, "t.Rows[i%len(t.Rows)].Owner != h {", "t.Rows[i%len(t.Rows)].Owner.Node != h.Node {"}},
		Tests: tests,
	}, {
		Name: "split-home-nobody", Guard: "nobody is the home of a key that nobody owns",
		Edits: []Edit{{split, "h.None() || t.Rows", "t.Rows"}},
		Tests: tests,
	}, {
		Name: "split-opens-once", Guard: "the parts of a split that is closed are not served again",
		Edits: []Edit{{split, "case s.Phase != Opening:", "case s.Phase == Open:"}},
		Tests: tests,
	}, {
		Name: "split-closes-open", Guard: "what was not opened is taken back, not united",
		Edits: []Edit{{split, "case s.Phase != Open:" + phase + "	case len(c.Reason)", "case s.Phase == Closing:" + phase + "	case len(c.Reason)"}},
		Tests: tests,
	}, {
		Name: "split-ends-served", Guard: "a split whose parts are served does not end",
		Edits: []Edit{{split, "case s.Phase == Open || s.Since != c.Since:", "case s.Since != c.Since:"}},
		Tests: tests,
	}, {
		Name: "split-ends-late", Guard: "a home that gives up opening does not end what is to be united",
		Edits: []Edit{{split, "case s.Phase == Open || s.Since != c.Since:", "case s.Phase == Open:"}},
		Tests: tests,
	}, {
		Name: "split-weighed-open", Guard: "weights change only while the parts are served",
		Edits: []Edit{{split, "case s.Phase != Open:" + phase + "	case s.Weighed", "case s.Phase == Opening:" + phase + "	case s.Weighed"}},
		Tests: tests,
	}, {
		Name: "split-one-way", Guard: "a commit lowers weights, or it raises them: cut before raise",
		Edits: []Edit{{split, "if lower == higher {", "if !lower && !higher {"}},
		Tests: tests,
	}, {
		Name: "split-weights-expected", Guard: "weights that have changed meanwhile are not raised by an answer about those before",
		Edits: []Edit{{split, "case s.Weighed != c.Expect:", "case s.Weighed < c.Expect:"}},
		Tests: tests,
	}}
}

// splitRoles are those of who may act on a split object and on its parts.
func splitRoles() []Canary {
	const may, split = "hotkey/divide/may.go", "owner/split.go"
	tests := Tests{Package: "hotkey/divide", Run: "^Test(May|Stale)$"}
	inStore := Tests{Package: "owner", Run: "^TestRoles$"}
	return []Canary{{
		Name: "split-whole-frozen", Guard: "the whole object is not served while its parts are planted",
		Edits: []Edit{{may, "case ref.Role == owner.Carry && sp.Phase == table.Opening,", "case ref.Role != owner.Join && sp.Phase == table.Opening,"}},
		Tests: tests,
	}, {
		Name: "split-join-closed", Guard: "nobody makes the object whole while its parts are served",
		Edits: []Edit{{may, "ref.Role == owner.Join && sp.Phase == table.Closing:", "ref.Role == owner.Join:"}},
		Tests: tests,
	}, {
		Name: "split-join-late", Guard: "who was held up while it put an object together does not do so in a later split of it",
		Edits: []Edit{{may, "case sp.ID != ref.Split && ref.Role != owner.Whole:", "case sp.ID < ref.Split && ref.Role != owner.Whole:"}},
		Tests: tests,
	}, {
		Name: "split-part-closed", Guard: "a part is not served any more when its split is closing",
		Edits: []Edit{{may, "sp.Phase != phaseFor[ref.Role] {", "sp.Phase < phaseFor[ref.Role] {"}},
		Tests: tests,
	}, {
		Name: "split-part-opened", Guard: "a part is not served before its split is open",
		Edits: []Edit{{may, "sp.Phase != phaseFor[ref.Role] {", "sp.Phase > phaseFor[ref.Role] {"}},
		Tests: tests,
	}, {
		Name: "split-part-key", Guard: "a part is the object under its own key, and no other",
		Edits: []Edit{{may, "sp.PartKey(i) != ref.Key || ", ""}},
		Tests: tests,
	}, {
		Name: "split-stale-early", Guard: "a part is not forgotten before the table has come to its split",
		Edits: []Edit{{may, "return ok && !is && t.Epoch >= id", "return ok && !is"}},
		Tests: tests,
	}, {
		Name: "split-role", Guard: "what is not split is acted on as a whole only",
		Edits: []Edit{{split, "		if t.ref.Role != Whole {\n", "		if t.ref.Role > Look {\n"}},
		Tests: inStore,
	}, {
		Name: "split-reserved", Guard: "no user's key is that of a part",
		Edits: []Edit{{"owner/store.go", "case r.Key[0] == reserved && !r.Role.onPart():", "case r.Key[0] == reserved && r.Role > Look:"}},
		Tests: inStore,
	}}
}

// divisions are those of the state, when it is divided and united.
func divisions() []Canary {
	const division = "hotkey/divide/divide.go"
	tests := Tests{Package: "hotkey/divide", Run: "^Test(ThereAndBack|BucketThereAndBack|LostParts|Indivisible|LargeCounters)$"}
	return []Canary{{
		Name: "split-lost-empty", Guard: "of a limit, all that a lost part had counts as spent",
		Edits: []Edit{{division, "if s := part[0].Limit; s.Weight != 0 {\n", "if s := part[0].Limit; s.Limit < 1<<60 {\n			s.Weight = max(s.Weight, sp.Parts[0].Weight)\n"}},
		Tests: tests,
	}, {
		Name: "split-base", Guard: "what a counter had before it was divided is in the sum",
		Edits: []Edit{{division, "value, exists := sp.Base, sp.Base != 0", "value, exists := int64(0), sp.Base != 0"}},
		Tests: tests,
	}, {
		Name: "split-ttl", Guard: "a counter that expires is not split",
		Edits: []Edit{{division, "case c.IdleTTL != 0:", "case c.IdleTTL < 0:"}},
		Tests: tests,
	}, {
		Name: "split-window", Guard: "a window is not split as if it were a bucket",
		Edits: []Edit{{division, "first.Limit.Algorithm != limit.TokenBucket:", "first.Limit.Algorithm > 99:"}},
		Tests: tests,
	}, {
		Name: "split-large", Guard: "a counter is not split whose sum might overflow",
		Edits: []Edit{{division, "case c.Value > maxBase || c.Value < -maxBase:", "case c.Value > maxBase:"}},
		Tests: tests,
	}, {
		Name: "split-part-large", Guard: "a part of a counter does not become so large that the sum might overflow",
		Edits: []Edit{{"owner/split.go", "return res.Applied && next.Value <= maxShare &&", "return res.Applied && next.Value <= 1<<62 &&"}},
		Tests: tests,
	}, {
		Name: "split-absolute", Guard: "what is put together replaces what was there, and is not added to it",
		Edits: []Edit{{"owner/counterstate.go", "	c := r.Counter\n", "	c := r.Counter\n	c.Value += t.e.counter().Value\n"}},
		Tests: tests,
	}}
}

// splitIDs are those of request ids, when their object is divided and united.
func splitIDs() []Canary {
	const division, take = "hotkey/divide/divide.go", "owner/take.go"
	tests := func(run string) Tests { return Tests{Package: "hotkey/divide", Run: run} }
	const quick = "^Test(ThereAndBack|Life|TooManyIDs|EvictedIsEverywhere|LostParts|Together)$"
	return []Canary{{
		Name: "split-ids-part", Guard: "a request id is remembered where its retry goes",
		Edits: []Edit{{division, "return table.PartOf(c.Hi, c.Lo, seq, n) == i })", "return int(seq)%n == i })"}},
		Tests: tests(quick),
	}, {
		Name: "split-ids-floors", Guard: "every part knows what a client has settled",
		Edits: []Edit{{division, "if len(x.ops) > 0 || x.Floor > 0 {", "if len(x.ops) > 0 {"}},
		Tests: tests(quick),
	}, {
		Name: "split-ids-answers", Guard: "a retry at a part is told what the whole answered",
		Edits: []Edit{{division, "o.A, o.B = o.A-base, o.B|OfWhole", "o.B |= OfWhole"}},
		Tests: tests(quick),
	}, {
		Name: "split-ids-united", Guard: "a retry at the whole is told what the part answered",
		Edits: []Edit{{division, "if o.A += sp.Base; o.B&OfWhole != 0 {", "if o.B&OfWhole != 0 {"}},
		Tests: tests(quick),
	}, {
		Name: "split-ids-bound", Guard: "what travels of an object is bounded",
		Edits: []Edit{{division, "	if total <= MaxIDs {\n		return\n	}\n	times", "	if total <= MaxIDs<<20 {\n		return\n	}\n	times"}},
		Tests: tests("^Test(Largest|Trim)$"),
	}, {
		Name: "split-ids-evicted", Guard: "ids for which there is no room are too old, not new",
		Edits: []Edit{{division, "	k.evicted = max(k.evicted, last)\n", ""}},
		Tests: tests(quick),
	}, {
		Name: "split-ids-nobody", Guard: "a part that remembers nobody knows since when ids are remembered",
		Edits: []Edit{{division, "if len(ids.clients) == 0 && ids.evicted != math.MinInt64 {", "if len(ids.clients) == 0 && ids.evicted == math.MaxInt64 {"}},
		Tests: tests(quick),
	}, {
		Name: "split-ids-lost", Guard: "ids that were lost with a row are unknown wherever the object goes",
		Edits: []Edit{{take, "min(t.permit.Since, t.now))", "min(t.permit.Since, math.MinInt64))"}},
		Tests: tests(quick),
	}}
}
