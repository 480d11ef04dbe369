package main

import "slices"

// stock are the guards of what stock software asks: Envoy, its rate limit filter, and
// gRPC's clients.
func stock() []Canary { return slices.Concat(rateLimits(), discovery()) }

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

// discovery are those of xDS.
func discovery() []Canary {
	const push, resources, routes = "envoy/xds/push.go", "envoy/xds/resources.go", "envoy/xds/routes.go"
	return []Canary{{
		Name: "xds-order", Guard: "clients are told of clusters before endpoints",
		Edits: []Edit{{push, "[]types.ResponseType{types.Cluster, types.Endpoint,", "[]types.ResponseType{types.Endpoint, types.Cluster,"}},
		Tests: Tests{Package: "envoy/xds", Run: "^TestOrderOf"},
	}, {
		Name: "xds-order-whole", Guard: "responses of whole states are sent in the order in which they were made",
		Edits: []Edit{{"envoy/xds/server.go", ", sotw.WithOrderedADS())", ")"}},
		Tests: Tests{Package: "envoy/xds", Run: "^TestOrderOfWholeStates$"},
	}, {
		Name: "xds-first", Guard: "who asks before there is anything to say is told of all types in order",
		Edits: []Edit{{push, "if o.told[kind] != nil {\n\t\treturn start()", "if o != nil {\n\t\treturn start()"}},
		Tests: Tests{Package: "envoy/xds", Run: "^TestOrderAtTheStart$"},
	}, {
		Name: "xds-unknown", Guard: "a name that nobody has is answered in deltas",
		Edits: []Edit{{push, "if _, known := has[name]; !known && name != \"*\" {", "if _, known := has[name]; known && name != \"*\" {"}},
		Tests: Tests{Package: "envoy/xds", Run: "^TestUnknownNames$"},
	}, {
		Name: "xds-grpcjs", Guard: "gRPC in JavaScript makes no connection but by its ring",
		Edits: []Edit{{resources, "if c == GRPCJS {\n\t\treturn owners", "if c == GRPCJS && owners == any {\n\t\treturn owners"}},
		Tests: Tests{Package: "envoy/xds", Run: "^TestGRPCJSTakesRings$"},
	}, {
		Name: "deployment-labels", Guard: "panels and alerts group by labels that series have",
		Edits: []Edit{{"internal/tests/deploy/labels.go", "if !all[l] && !slices.Contains(scraped, l) {", "if all[l] && !slices.Contains(scraped, l) {"}},
		Tests: Tests{Package: "internal/tests/deploy", Run: "^TestLabels$"},
	}, {
		Name: "xds-retry", Guard: "Envoy sends again what was never sent",
		Edits: []Edit{{routes, "if c == Envoy {\n\t\tto.RetryPolicy", "if c == GRPC {\n\t\tto.RetryPolicy"}},
		Tests: Tests{Package: "envoy/xds", Run: "^TestRoutesRetry$"},
	}}
}
