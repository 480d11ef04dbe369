package main

// clients are the guards of the Go client.
func clients() []Canary {
	return []Canary{{
		Name: "client-settle", Guard: "a lock that was granted to a caller who had left is given back",
		Edits: []Edit{{"client/lock.go", "errors.Is(err, ErrOutcomeUnknown) && c.ctx.Err() == nil", "errors.Is(err, ErrOutcomeUnknown) && c.ctx.Err() != nil"}},
		Tests: Tests{Package: "client", Run: "^TestLockGrantedToNobody$"},
	}, {
		Name: "client-close", Guard: "Close ends calls that wait to be put together",
		Edits: []Edit{{"client/coalesce.go", "	case <-o.c.ctx.Done():\n		return resp, !o.withdraw(it), errClosed()\n", ""}},
		Tests: Tests{Package: "client", Run: "^TestCloseEndsCallsThatGather$"},
	}, {
		Name: "client-address", Guard: "an address that cannot be one is judged before it is dialled",
		Edits: []Edit{{"client/config.go", "if err := validAddress(addr); err != nil {", "if err := validAddress(addr); err != nil && addr == \"-\" {"}},
		Tests: Tests{Package: "client", Run: "^TestDialJudgesAddresses$"},
	}}
}
