package main

// hotKeys are the guards of what is said to be hot.
func hotKeys() []Canary {
	const sketch, watch = "hotkey/heat/sketch.go", "hotkey/heat/watch.go"
	return []Canary{{
		Name: "hot-decay", Guard: "what was done long ago does not count",
		Edits: []Edit{{sketch, "	count -= (count + Forget - 1) / Forget\n", "	count -= 0\n"}},
		Tests: Tests{Package: "hotkey/heat", Run: "^Test(Bounds|Rates|Times)$"},
	}, {
		Name: "hot-debt", Guard: "what was counted for others makes no key hot",
		Edits: []Edit{{sketch, "tag, t.counts[least]\n", "tag, 0\n"}},
		Tests: Tests{Package: "hotkey/heat", Run: "^Test(Bounds|Zipf)$"},
	}, {
		Name: "hot-others", Guard: "a key is compared with the others, not with itself",
		Edits: []Edit{{watch, "max(load.Rate-rate, 0)", "max(load.Rate, 0)"}},
		Tests: Tests{Package: "hotkey/heat", Run: "^TestThreshold$"},
	}, {
		Name: "hot-half", Guard: "a key that is hot stays so down to half of what made it hot",
		Edits: []Edit{{watch, "s.Rate >= threshold/2", "s.Rate >= threshold"}},
		Tests: Tests{Package: "hotkey/heat", Run: "^TestWatch$"},
	}, {
		Name: "hot-shared", Guard: "of objects that share a tag none is said to be hot",
		Edits: []Edit{{"internal/node/heat.go", "if len(objects) > 1 {", "if len(objects) > 2 {"}},
		Tests: Tests{Package: "internal/node", Run: "^TestSharedTags$"},
	}}
}
