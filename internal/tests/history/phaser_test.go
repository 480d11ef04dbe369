package history

import "testing"

// TestPhaserModel: what no phaser can tell is found, and what one can is not.
func TestPhaserModel(t *testing.T) {
	of := func(op PhaserOp, party uint8, phase uint64) PhaserInput {
		return PhaserInput{Op: op, Party: party, TTL: 100, Phase: phase}
	}
	child := func(in PhaserInput) PhaserInput {
		in.Child = true
		return in
	}
	register := func(party uint8) PhaserInput { return of(PhaserRegister, party, 0) }
	arrive := func(party uint8) PhaserInput { return of(PhaserArrive, party, 5) }
	in, next := PhaserOutput{OK: true, Current: 5}, PhaserOutput{OK: true, Current: 6}
	here := PhaserOutput{OK: true, Fate: PhaseUnderWay, Current: 5, Here: 1, Parties: 2, Counted: true}
	last := PhaserOutput{OK: true, Last: true, Fate: PhasePassed, Current: 6, Parties: 2, Counted: true}
	passed, broken := PhaserOutput{Fate: PhasePassed, Current: 6}, PhaserOutput{Fate: PhaseBroken, Current: 6}
	underWay := PhaserOutput{Fate: PhaseUnderWay, Current: 5}
	yes, over, notThere := PhaserOutput{OK: true}, PhaserOutput{Over: true, Fate: PhasePassed, Current: 6}, PhaserOutput{Current: 5}
	await, inspect := of(PhaserAwait, 0, 5), of(PhaserInspect, 0, 0)
	two := []Call{done(0, 1, register(1), in), done(2, 3, register(2), in)}
	after := func(calls ...Call) []Call { return append(append([]Call{}, two...), calls...) }
	tree := func(calls ...Call) []Call {
		return append([]Call{done(0, 1, register(1), in), done(2, 3, child(register(2)), PhaserOutput{OK: true, Current: 4})}, calls...)
	}
	// A party of the child takes part from the phase on that follows the one of its Register.
	gathered := []Call{done(4, 5, child(of(PhaserRenew, 2, 0)), in), done(6, 7, child(arrive(2)), here)}
	histories{
		"passed by all":               {true, after(done(4, 5, arrive(1), here), done(6, 7, arrive(2), last), done(8, 9, await, passed))},
		"passed without one":          {false, after(done(4, 5, arrive(1), last))},
		"told without one":            {false, after(done(4, 5, arrive(1), here), done(6, 7, await, passed))},
		"over without one":            {false, after(done(4, 5, arrive(1), here), done(6, 7, register(3), next), done(8, 9, await, passed))},
		"its lease was over":          {true, after(done(4, 5, arrive(1), here), done(104, 105, await, passed))},
		"… and was renewed":           {false, after(done(4, 5, arrive(1), here), done(90, 91, of(PhaserRenew, 2, 0), in), done(104, 105, await, passed))},
		"… perhaps for less":          {true, after(done(4, 5, arrive(1), here), lost(6, PhaserInput{Op: PhaserRenew, Party: 2, TTL: 10}), done(20, 21, await, passed))},
		"it has left":                 {true, after(done(4, 5, arrive(1), here), done(6, 7, of(PhaserLeave, 2, 0), yes), done(8, 9, await, passed))},
		"all have left":               {true, after(done(4, 5, arrive(1), here), done(6, 7, of(PhaserLeave, 2, 0), yes), done(8, 9, of(PhaserLeave, 1, 0), yes), done(10, 11, await, passed))},
		"it may have left":            {true, after(done(4, 5, arrive(1), here), lost(6, of(PhaserLeave, 2, 0)), done(8, 9, await, passed))},
		"it may have arrived":         {true, after(done(4, 5, arrive(1), here), lost(6, arrive(2)), done(8, 9, await, passed))},
		"left, and came again":        {false, after(done(4, 5, arrive(1), here), done(6, 7, of(PhaserLeave, 1, 0), yes), done(8, 9, register(1), in), done(10, 11, arrive(2), last))},
		"came later":                  {true, after(done(4, 5, arrive(1), here), done(6, 7, arrive(2), last), done(8, 9, register(3), next), done(10, 11, await, passed))},
		"passed, and broken":          {false, after(done(4, 5, arrive(1), here), done(6, 7, arrive(2), last), done(8, 9, await, passed), done(10, 11, await, broken), done(12, 13, await, passed))},
		"broken":                      {true, after(done(4, 5, arrive(1), here), done(6, 7, of(PhaserBreak, 0, 0), yes), done(8, 9, await, broken))},
		"broken, and passed":          {false, after(done(4, 5, arrive(1), here), done(6, 7, of(PhaserBreak, 0, 0), yes), done(8, 9, await, passed))},
		"under way":                   {true, after(done(4, 5, arrive(1), here), done(6, 7, await, underWay))},
		"under way again":             {false, after(done(4, 5, arrive(1), here), done(6, 7, arrive(2), last), done(8, 9, await, underWay))},
		"late":                        {true, after(done(4, 5, arrive(1), here), done(6, 7, arrive(2), last), done(8, 9, arrive(1), over))},
		"late, and counted":           {false, after(done(4, 5, arrive(1), here), done(6, 7, arrive(2), last), done(8, 9, arrive(1), here))},
		"an arrival that is lost":     {false, after(done(4, 5, arrive(1), here), done(6, 7, inspect, PhaserOutput{Current: 5, Parties: 2, Counted: true}))},
		"a party that is lost":        {false, after(done(4, 5, inspect, PhaserOutput{Current: 5, Parties: 1, Counted: true}))},
		"a phaser that is lost":       {false, after(done(4, 5, inspect, PhaserOutput{}))},
		"counted twice":               {false, after(done(4, 5, arrive(1), here), done(6, 7, inspect, PhaserOutput{Current: 5, Here: 3, Parties: 3, Counted: true}))},
		"not there under its lease":   {false, after(done(4, 5, arrive(1), notThere))},
		"not there after its lease":   {true, after(done(104, 105, arrive(1), notThere))},
		"the parent's have arrived":   {true, tree(append(gathered, done(8, 9, arrive(1), here), done(10, 11, child(await), passed))...)},
		"the parent's have not":       {false, tree(append(gathered, done(10, 11, child(await), passed))...)},
		"… but their lease was over":  {true, tree(append(gathered, done(110, 111, child(await), passed))...)},
		"it has arrived, and left":    {true, tree(append(gathered, done(8, 9, child(of(PhaserLeave, 2, 0)), yes), done(10, 11, arrive(1), here), done(12, 13, child(await), passed))...)},
		"the child alone has arrived": {true, after(done(4, 5, arrive(1), here), done(6, 7, of(PhaserLeave, 1, 0), yes), done(8, 9, of(PhaserLeave, 2, 0), yes), done(10, 11, await, passed))},
		"one of the child's has not":  {false, tree(gathered[0], done(6, 7, child(of(PhaserRegister, 3, 0)), PhaserOutput{OK: true, Current: 5}), done(8, 9, child(of(PhaserArrive, 3, 5)), here), done(10, 11, arrive(1), here), done(12, 13, child(of(PhaserAwait, 2, 5)), passed))},
	}.check(t, Phaser(0))
}
