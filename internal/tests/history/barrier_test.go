package history

import "testing"

// TestBarrierModel: what no barrier can tell is found, and what one can is not.
func TestBarrierModel(t *testing.T) {
	arrive := func(p uint8) BarrierInput { return BarrierInput{Op: BarrierArrive, Party: p, Parties: 2} }
	await := func(phase uint64) BarrierInput { return BarrierInput{Op: BarrierAwait, Phase: phase} }
	first := BarrierOutput{OK: true, Phase: 5, Fate: PhaseUnderWay, Current: 5, Here: 1}
	last := BarrierOutput{OK: true, Phase: 5, Last: true, Fate: PhasePassed, Current: 6}
	passed, underWay := BarrierOutput{Fate: PhasePassed, Current: 6}, BarrierOutput{Fate: PhaseUnderWay, Current: 5, Here: 1}
	leave, broken := BarrierInput{Op: BarrierLeave, Party: 1, Phase: 5}, BarrierOutput{Fate: PhaseBroken, Current: 6}
	reset, inspect, yes := BarrierInput{Op: BarrierBreak}, BarrierInput{Op: BarrierInspect}, BarrierOutput{OK: true}
	again := last
	again.Replayed, again.Age = true, 2
	histories{
		"passed by two":                {true, []Call{done(0, 1, arrive(1), first), done(2, 3, arrive(2), last), done(4, 5, await(5), passed)}},
		"passed by one":                {false, []Call{done(0, 1, arrive(1), last)}},
		"passed early":                 {false, []Call{done(0, 1, arrive(1), first), done(2, 3, await(5), passed)}},
		"counted twice":                {false, []Call{done(0, 1, arrive(1), first), done(2, 3, arrive(1), last)}},
		"arrived again":                {true, []Call{done(0, 1, arrive(1), first), done(2, 3, arrive(1), first)}},
		"not counted":                  {false, []Call{done(0, 1, arrive(1), first), done(2, 3, arrive(2), first)}},
		"lost, perhaps there":          {true, []Call{lost(0, arrive(1)), done(2, 3, arrive(2), last)}},
		"lost, perhaps not":            {true, []Call{lost(0, arrive(1)), done(2, 3, arrive(2), first), done(4, 5, await(5), underWay)}},
		"counted in the next phase":    {false, []Call{done(0, 1, arrive(1), first), done(2, 3, arrive(2), last), done(4, 5, inspect, BarrierOutput{Current: 6, Here: 1})}},
		"an arrival that is lost":      {false, []Call{done(0, 1, arrive(1), first), done(2, 3, inspect, BarrierOutput{Current: 5})}},
		"taken back":                   {true, []Call{done(0, 1, arrive(1), first), done(2, 3, leave, yes), done(4, 5, arrive(2), first)}},
		"taken back, and counted":      {false, []Call{done(0, 1, arrive(1), first), done(2, 3, leave, yes), done(4, 5, arrive(2), last)}},
		"taken back when it was over":  {false, []Call{done(0, 1, arrive(1), first), done(2, 3, arrive(2), last), done(4, 5, leave, yes)}},
		"broken":                       {true, []Call{done(0, 1, arrive(1), first), done(2, 3, reset, yes), done(4, 5, await(5), broken)}},
		"broken, and passed":           {false, []Call{done(0, 1, arrive(1), first), done(2, 3, reset, yes), done(4, 5, await(5), passed)}},
		"passed, and broken":           {false, []Call{done(0, 1, arrive(1), first), done(2, 3, arrive(2), last), done(4, 5, await(5), broken)}},
		"forgotten":                    {false, []Call{done(0, 1, arrive(1), first), done(2, 3, arrive(2), last), done(4, 5, await(5), BarrierOutput{Current: 6})}},
		"a phase that goes back":       {false, []Call{done(0, 1, arrive(1), first), done(2, 3, arrive(2), last), done(4, 5, inspect, BarrierOutput{Current: 5})}},
		"a retry over the phase's end": {true, []Call{done(0, 1, arrive(1), first), as("r", done(2, 3, arrive(2), last)), as("r", done(4, 5, arrive(2), again))}},
	}.check(t, Barrier(0))
}
