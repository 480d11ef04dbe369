package main

// budgets are the guards of a store that is nearly full, and of crowds at locks.
func budgets() []Canary {
	const budget = "owner/budget.go"
	return []Canary{{
		Name: "own-share", Guard: "a node's own objects leave room for the copies that it keeps for others",
		Edits: []Edit{{budget, "case s.shareFull():", "case s.shareFull() && false:"}},
		Tests: Tests{Package: "owner", Run: "^TestBudgets$"},
	}, {
		Name: "id-reserve", Guard: "request ids of objects that are there have room when new objects have none",
		Edits: []Edit{{budget, "reserve := s.cfg.MaxBytes / idReserve", "reserve := s.cfg.MaxBytes / idReserve * 0"}},
		Tests: Tests{Package: "owner", Run: "^TestReserve$"},
	}, {
		Name: "id-takeover", Guard: "a node that has taken over, and has memory left, goes on remembering request ids",
		Edits: []Edit{{budget, "s.idsFull(idMost)", "s.ownFull(ownShare, ownParts)"}},
		Tests: Tests{Package: "owner", Run: "^TestIDsAfterTakeover$"},
	}, {
		Name: "id-alone-before", Guard: "… also one that owns nearly all, until a node that joins has its rows",
		Edits: []Edit{{budget, "&& without < s.cfg.MaxBytes/idParts*idHalf", "&& without >= 0"}},
		Tests: Tests{Package: "owner", Run: "^TestIDsAfterTakeover$"},
	}, {
		Name: "id-reserve-fair", Guard: "one object does not use up what is kept for request ids",
		Edits: []Edit{{budget, "case !sh.ids.Few(t.e.ids, id.Client, reserveClients):", "case !sh.ids.Few(t.e.ids, id.Client, 1<<30):"}},
		Tests: Tests{Package: "owner", Run: "^TestReserve$"},
	}, {
		Name: "stream-names-its-cluster", Guard: "a node decides nothing that was meant for a node of another cluster",
		Edits: []Edit{{"internal/rpc/address.go", "case t.UID != \"\" && !slices", "case t.UID == \"-\" && !slices"}},
		Tests: Tests{Package: "internal/rpc", Run: "^Test(AddressOfAnotherCluster|StreamNamesItsTarget)$"},
	}, {
		Name: "stream-names-its-node", Guard: "a node decides nothing that was meant for another node",
		Edits: []Edit{{"internal/rpc/address.go", "case s.cfg.Node != \"\" && !slices", "case s.cfg.Node == \"-\" && !slices"}},
		Tests: Tests{Package: "internal/rpc", Run: "^Test(AddressOfAnotherCluster|StreamNamesItsTarget)$"},
	}, {
		Name: "stream-without-names", Guard: "a stream that names nobody is refused once all members are of a version that does",
		Edits: []Edit{{"internal/rpc/address.go", "case !named && !t.Uses(namedSince):", "case !named:"}},
		Tests: Tests{Package: "internal/rpc", Run: "^TestStreamNamesItsTarget$"},
	}, {
		Name: "crowd-copies", Guard: "callers that queue are not held back for a node that joins and falls behind",
		Edits: []Edit{{"handoff/routes.go", "rt.rows[i].wait {\n\t\tif err := l.feed.CrowdRoom", "rt.rows[i].feeds {\n\t\tif err := l.feed.CrowdRoom"}},
		Tests: Tests{Package: "handoff", Run: "^TestCrowdBesideAJoin$"},
	}, {
		Name: "crowd-retries", Guard: "who has a place in a queue is not held back when it comes another way",
		Edits: []Edit{{"internal/rpc/locks.go", " && !l.s.cfg.Store.Waits(lockRef(req.Key, req.Name), id)", ""}},
		Tests: Tests{Package: "internal/rpc", Run: "^TestRetryNeedsNoRoom$"},
	}}
}
