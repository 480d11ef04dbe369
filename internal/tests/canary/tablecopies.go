package main

// streams are the guards of the stream between two processes.
func streams() []Canary {
	const intake, wire, sender = "handoff/feed/intake.go", "handoff/feed/wire.go", "handoff/feed/connection.go"
	tests := func(run string) Tests { return Tests{Package: "handoff/feed", Run: run} }
	const quick = "^Test(Transcripts|OtherTarget|Behind|Forgotten|NotTaken|LastOf)$"
	return []Canary{{
		Name: "feed-checksum", Guard: "a batch that was damaged on its way is refused",
		Edits: []Edit{{wire, "if b.Checksum != checksum(b.Session, b.First, uint64(b.Count), b.Epoch, b.Records) {", "if b.Checksum == 0 {"}},
		Tests: tests(quick),
	}, {
		Name: "feed-target", Guard: "a stream that is for another incarnation is refused",
		Edits: []Edit{{intake, "target != self || self.None() {", "target.Node != self.Node {"}},
		Tests: tests(quick),
	}, {
		Name: "feed-target-changes", Guard: "a process that has become another incarnation takes no more of the stream",
		Edits: []Edit{{intake, "case self != c.target:", "case self.Node != c.target.Node:"}},
		Tests: tests(quick),
	}, {
		Name: "feed-version", Guard: "a stream of another version is refused",
		Edits: []Edit{{intake, "if h.Version != Version {", "if h.Version == 0 {"}},
		Tests: tests(quick),
	}, {
		Name: "feed-session", Guard: "a stream of an earlier session is refused",
		Edits: []Edit{{intake, "case h.Session < was.number:", "case h.Session == 0:"}},
		Tests: tests(quick),
	}, {
		Name: "feed-connection", Guard: "an earlier connection does not come after a later one",
		Edits: []Edit{{intake, "case h.Connection <= was.conn.number:", "case h.Connection == 0:"}},
		Tests: tests(quick),
	}, {
		Name: "feed-batch-session", Guard: "a batch of another session is refused",
		Edits: []Edit{{intake, "if b.Session != c.session.number {", "if b.Session == 0 {"}},
		Tests: tests(quick),
	}, {
		Name: "feed-gap", Guard: "a batch after which one is missing is refused",
		Edits: []Edit{{intake, "case b.First > s.applied+1:", "case b.First == 0:"}},
		Tests: tests(quick),
	}, {
		Name: "feed-epoch", Guard: "a batch waits until the target goes by the table of its source",
		Edits: []Edit{{intake, "if epoch <= c.epoch {", "if epoch >= c.epoch {"}},
		Tests: tests(quick),
	}, {
		Name: "feed-forgotten", Guard: "a target that has forgotten what it acknowledged is noticed",
		Edits: []Edit{{sender, "case w.Applied < s.acked.Load():", "case w.Applied > 0 && w.Applied < s.acked.Load():"}},
		Tests: tests(quick),
	}, {
		Name: "feed-refused", Guard: "a session in which a record was not taken does not go on",
		Edits: []Edit{{intake, "if c.session.refused != nil {", "if c.session.refused != nil && false {"}},
		Tests: tests(quick),
	}, {
		Name: "feed-last-of", Guard: "it is known which record of an object was the last",
		Edits: []Edit{{"handoff/feed/sender.go", "s.lastOf[r.Hash%slots].Store(seq)", ""}},
		Tests: tests(quick),
	}, {
		Name: "feed-ack-after-install", Guard: "a record is acknowledged when it is installed, not when it has come",
		Edits: []Edit{{intake, "s.refused = refuse(peerv1.FeedReason_FEED_REASON_NOT_TAKEN, \"record %d: %v\", seq, err)\n\t\t\treturn 0, s.refused", "_ = err"}},
		Tests: tests(quick),
	}}
}

// stores are those of what is kept and what travels.
func stores() []Canary {
	const install, own, shard, rule = "owner/install.go", "owner/own.go", "owner/shard.go", "owner/rule.go"
	tests := func(run string) Tests { return Tests{Package: "owner", Run: run} }
	const quick = "^Test(Install|RecordWins|Export|Handovers|Tokens|CopiesAreQuiet|Discard|Retries|Replays)"
	return []Canary{{
		Name: "install-asks", Guard: "whether a record is to be taken in is asked under the lock of the shard",
		Edits: []Edit{{install, "if !accept(t.hash) {", "if accept(t.hash); false {"}},
		Tests: tests(quick),
	}, {
		Name: "record-ids", Guard: "a record has the request ids that the change answered",
		Edits: []Edit{{shard, "r.Done = sh.done", ""}},
		Tests: tests(quick),
	}, {
		Name: "record-ids-written", Guard: "the request ids travel with the record",
		Edits: []Edit{{"handoff/record/record.go", "if len(r.Done) > 0 {", "if len(r.Done) > 1<<20 {"}},
		Tests: Tests{Package: "handoff/record", Run: "^TestGolden$"},
	}, {
		Name: "install-ids", Guard: "a copy knows the request ids of a record",
		Edits: []Edit{{install, "if d := &r.Done[i]; !sh.ids.Knows(t.e.ids, &d.ID) {", "if d := &r.Done[i]; !sh.ids.Knows(t.e.ids, &d.ID) && false {"}},
		Tests: tests(quick),
	}, {
		Name: "install-kept-ids", Guard: "a copy knows the request ids that its owner remembered",
		Edits: []Edit{{install, "if r.IDs != nil {\n\t\tt.e.ids =", "if r.IDs != nil && r.More {\n\t\tt.e.ids ="}},
		Tests: tests(quick),
	}, {
		Name: "ids-from-before", Guard: "a retry from before the row was here is too old",
		Edits: []Edit{{shard, "id, print, t.permit.Since, t.now)", "id, print, t.permit.Since-t.permit.Since, t.now)"}},
		Tests: tests(quick),
	}, {
		Name: "token-epoch", Guard: "fencing tokens begin with the epoch of the row",
		Edits: []Edit{{rule, "first := p.Epoch<<SeqBits | 1", "first := uint64(1)"}},
		Tests: tests(quick),
	}, {
		Name: "token-floor", Guard: "tokens rise above those of a lock that came from elsewhere",
		Edits: []Edit{{install, "sh.lastToken = max(sh.lastToken, state.LastToken)", ""}},
		Tests: tests(quick),
	}, {
		Name: "token-exhausted", Guard: "the epoch is raised before the tokens of one are used up",
		Edits: []Edit{{rule, "if next>>SeqBits == sh.lastToken>>SeqBits {", "if next>>SeqBits >= sh.lastToken>>SeqBits {"}},
		Tests: tests(quick),
	}, {
		Name: "queue-away", Guard: "a lock that came from elsewhere is kept for those who waited there",
		Edits: []Edit{{install, "p.Ticket, p.Away = uint64(i), true", "p.Ticket, p.Away = uint64(i), false"}},
		Tests: tests(quick),
	}, {
		Name: "queue-order", Guard: "places in a queue keep their order",
		Edits: []Edit{{install, "kept = append(kept, place)", "kept = append([]lock.Waiter{place}, kept...)"}},
		Tests: tests(quick),
	}, {
		Name: "queue-grace", Guard: "who has waited elsewhere has time to come back",
		Edits: []Edit{{own, "max(1, t.now+grace)", "1"}},
		Tests: tests(quick),
	}, {
		Name: "copies-grant-nothing", Guard: "a copy grants nothing to who waits in it",
		Edits: []Edit{{own, "_, ok := sh.copies[slot]\n\treturn ok", "_, ok := sh.copies[slot]\n\treturn ok && slot == 0"}},
		Tests: tests(quick),
	}, {
		Name: "discard-all", Guard: "what is discarded takes its request ids along",
		Edits: []Edit{{"owner/discard.go", "if e.ids != 0 {", "if e.ids == ^uint32(0) {"}},
		Tests: tests(quick),
	}}
}
