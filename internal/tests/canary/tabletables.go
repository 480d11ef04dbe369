package main

// tableTests are those of the table that draw nothing.
func tableTests() Tests {
	return Tests{Package: "ring/epoch/table", Run: "^Test(Trap|Transcripts|FlipRefuses|AdmitRefuses|Decode|Unowned|Drain|Compact)"}
}

// tables are the guards of the agreement: what a Flip, a Sync and an Unsync name and
// expect.
func tables() []Canary {
	const file, standby = "ring/epoch/table/apply.go", "ring/epoch/table/standby.go"
	return []Canary{{
		Name: "flip-owner", Guard: "a flip is refused if the row is not the source's",
		Edits: []Edit{{file, "if r.Owner != c.From {", "if r.Owner == (Holder{}) {"}},
		Tests: tableTests(),
	}, {
		Name: "flip-source-incarnation", Guard: "a flip is refused if the row belongs to another incarnation of the source",
		Edits: []Edit{{file, "if r.Owner != c.From {", "if r.Owner.Node != c.From.Node {"}, {file, "case !t.Holds(c.From) || !t.Holds(c.To):", "case !t.Holds(c.To):"}},
		Tests: tableTests(),
	}, {
		Name: "flip-target-incarnation", Guard: "a flip is refused if the target has restarted",
		Edits: []Edit{{file, "to != c.To {", "to.Node != c.To.Node {"}, {file, "case !t.Holds(c.From) || !t.Holds(c.To):", "case !t.Holds(c.From):"}},
		Tests: tableTests(),
	}, {
		Name: "flip-transition", Guard: "a flip is refused if it is of another transition",
		Edits: []Edit{{file, "case t.Transition == nil || t.Transition.ID != c.Transition:", "case t.Transition == nil:"}},
		Tests: tableTests(),
	}, {
		Name: "flip-want-since", Guard: "a flip is refused if the wanted ring has changed",
		Edits: []Edit{{file, "case c.WantSince != t.WantSince:", "case c.WantSince > t.Epoch:"}},
		Tests: tableTests(),
	}, {
		Name: "flip-wanted", Guard: "a flip is refused if the ring does not give the row to the target",
		Edits: []Edit{{file, "to != c.To {", "to.None() {"}},
		Tests: tableTests(),
	}, {
		Name: "flip-standby", Guard: "a flip is refused if the target's standby is gone",
		Edits: []Edit{{file, "case !c.Standby.None() && !t.Holds(c.Standby):", "case c.Standby == c.From && !t.Holds(c.From):"}},
		Tests: tableTests(),
	}, {
		Name: "sync-since", Guard: "a Sync is refused if the row was changed since",
		Edits: []Edit{{standby, "case r.Since != s.Since:", "case r.Since < s.Since:"}},
		Tests: tableTests(),
	}, {
		Name: "sync-owner", Guard: "a Sync is refused if the row is not the proposer's",
		Edits: []Edit{{standby, "case r.Owner != c.Owner:", "case r.Owner.None():"}},
		Tests: tableTests(),
	}, {
		Name: "sync-bounds", Guard: "a Sync is refused if the row has other bounds",
		Edits: []Edit{{standby, "after != s.After {", "after == s.End {"}},
		Tests: tableTests(),
	}, {
		Name: "sync-want-since", Guard: "a Sync is refused if the wanted ring has changed",
		Edits: []Edit{{standby, "case c.WantSince != t.WantSince:", "case c.WantSince > t.Epoch:"}},
		Tests: tableTests(),
	}, {
		Name: "sync-member", Guard: "a Sync is refused if the standby has restarted",
		Edits: []Edit{{standby, "case !t.Holds(c.Owner) || !t.Holds(c.Standby):", "case !t.Holds(c.Owner):"}, {standby, "case !t.MayHold(i, c.Standby):", "case false:"}},
		Tests: tableTests(),
	}, {
		Name: "unsync-stamps", Guard: "an Unsync makes a Sync void that was proposed before it",
		Edits: []Edit{{standby, "r.Since = t.Epoch\n\t\tif r.Standby == c.Standby {\n", "if r.Standby == c.Standby {\n\t\t\tr.Since = t.Epoch\n"}},
		Tests: tableTests(),
	}, {
		Name: "unsync-takes-out", Guard: "who was taken out is not promoted",
		Edits: []Edit{{standby, "if r.Standby == c.Standby {\n\t\t\tr.Standby, r.Synced = Holder{}, false", "if r.Standby == c.Standby {\n\t\t\tr.Synced = false"}, {file, "case !r.Standby.None() && r.Synced:", "case !r.Standby.None():"}},
		Tests: tableTests(),
	}}
}

// removals are those of members who come and go, of rows that are joined, and of
// the form of commands.
func removals() []Canary {
	const file, standby, command = "ring/epoch/table/apply.go", "ring/epoch/table/standby.go", "ring/epoch/table/command.go"
	return []Canary{{
		Name: "removal-of-rows", Guard: "a removal changes only rows that name who is gone",
		Edits: []Edit{{file, "if !gone[r.Owner] {\n", "if m, _ := t.byHashKey(survivors.Owner(r.End)); !gone[r.Owner] && m.Holder() == r.Owner {\n"}},
		Tests: tableTests(),
	}, {
		Name: "removal-promotes-synced", Guard: "the synced standby of a removed owner owns the row, and not whom the ring names",
		Edits: []Edit{{file, "case !r.Standby.None() && r.Synced:", "case !r.Standby.None() && r.Synced && survivors == nil:"}},
		Tests: tableTests(),
	}, {
		Name: "removal-declares-loss", Guard: "a row whose owner is gone without a standby is declared lost",
		Edits: []Edit{{file, "r.Lost, r.Grace = t.Epoch, t.LockTTL > 0\n", ""}},
		Tests: tableTests(),
	}, {
		Name: "removal-drops-standby", Guard: "a standby that was removed stands in no row any more",
		Edits: []Edit{{file, "if gone[r.Standby] {", "if gone[r.Standby] && gone[r.Owner] {"}},
		Tests: tableTests(),
	}, {
		Name: "admit-once", Guard: "a node is not admitted while another incarnation of it is a member",
		Edits: []Edit{{file, "if have, ok := t.Member(m.Node); ok {", "if have, ok := t.Member(m.Node); ok && have.Incarnation == m.Incarnation {"}},
		Tests: tableTests(),
	}, {
		Name: "tidy-keeps-loss", Guard: "a loss stays declared when rows are joined",
		Edits: []Edit{{file, "max(r.Lost, next.Lost)", "next.Lost"}},
		Tests: tableTests(),
	}, {
		Name: "tidy-stamps", Guard: "rows that are joined count as changed",
		Edits: []Edit{{file, "next.Since, next.Held, next.Lost = t.Epoch,", "next.Since, next.Held, next.Lost = next.Since,"}},
		Tests: tableTests(),
	}, {
		Name: "end-moves", Guard: "a transition does not end while rows have still to move",
		Edits: []Edit{{file, "n > 0 {\n\t\treturn refused(\"%d segments have still to move\", n)", "n < 0 {\n\t\treturn refused(\"%d segments have still to move\", n)"}},
		Tests: tableTests(),
	}, {
		Name: "command-version", Guard: "a command of a later version is not guessed at",
		Edits: []Edit{{command, "if c.Version != Version || c.count() != 1 {", "if c.count() != 1 {"}},
		Tests: tableTests(),
	}, {
		Name: "command-fields", Guard: "a command with fields of a later version is not guessed at",
		Edits: []Edit{{command, "d.DisallowUnknownFields()", ""}},
		Tests: tableTests(),
	}}
}
