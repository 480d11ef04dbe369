package main

import "slices"

// stock are the guards of what stock software asks: Envoy, its rate limit filter, and
// gRPC's clients.
func stock() []Canary { return slices.Concat(rateLimits()) }

// rateLimits are those of Envoy's rate limit service.
func rateLimits() []Canary {
	const decide, rules = "envoy/rls/decide.go", "envoy/rls/rules.go"
	conformance := Tests{Package: "envoy/rls", Run: "^TestConformance$"}
	return []Canary{{
		Name: "rls-quotas", Guard: "a request that is over all of its quotas is over its limit",
		Edits: []Edit{{decide, "return quotas > 0 && over == quotas", "return quotas > 1 && over == quotas"}},
		Tests: conformance,
	}, {
		Name: "rls-quota-room", Guard: "one quota with room is enough",
		Edits: []Edit{{decide, "return quotas > 0 && over == quotas", "return over > 0"}},
		Tests: conformance,
	}, {
		Name: "rls-wildcard-order", Guard: "the parts of a wildcard are found in their order, and do not overlap",
		Edits: []Edit{{rules, "rest, ok = strings.CutSuffix(rest, w.last)", "ok = strings.HasSuffix(value, w.last)"}},
		Tests: conformance,
	}, {
		Name: "rls-negative", Guard: "hits that are given back are never over a limit",
		Edits: []Edit{{decide, "it.denied = !it.negative && (!a.Allowed || it.hits > it.limit.capacity())", "it.denied = !a.Allowed || it.hits > it.limit.capacity()"}},
		Tests: conformance,
	}, {
		Name: "rls-retry", Guard: "a descriptor that is over its limit says when its hits fit, and not when all is back",
		Edits: []Edit{{decide, "if it.refused() && it.limit.Algorithm != FixedWindow {", "if it.refused() && it.limit.Algorithm == SlidingWindow {"}},
		Tests: Tests{Package: "envoy/rls", Run: "^TestDurationUntilReset$"},
	}, {
		Name: "rls-metadata-passed", Guard: "what a descriptor says that is over its limit is not in the metadata",
		Edits: []Edit{{"envoy/rls/metadata.go", "!it.unlimited && !it.refused()", "!it.unlimited"}},
		Tests: Tests{Package: "envoy/rls", Run: "^TestMetadata$"},
	}}
}
