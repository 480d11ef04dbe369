package history

import "testing"

func TestOverride(t *testing.T) {
	set := func(n uint64, existed bool) (OverrideInput, OverrideOutput) {
		return OverrideInput{Limit: n}, OverrideOutput{Existed: existed}
	}
	check := OverrideInput{Check: true}
	applied := func(n uint64) OverrideOutput { return OverrideOutput{Applied: n} }
	in5, new5 := set(5, false)
	in7, again7 := set(7, true)
	clear, cleared := set(0, true)
	histories{
		"set, replaced and cleared":     {true, []Call{done(0, 1, check, applied(0)), done(2, 3, in5, new5), done(4, 5, check, applied(5)), done(6, 7, in7, again7), done(8, 9, check, applied(7)), done(10, 11, clear, cleared), done(12, 13, check, applied(0))}},
		"a check by its caller's limit": {false, []Call{done(2, 3, in5, new5), done(4, 5, check, applied(0))}},
		"a check by that of before":     {false, []Call{done(2, 3, in5, new5), done(4, 5, in7, again7), done(6, 7, check, applied(5))}},
		"one that was cleared":          {false, []Call{done(2, 3, in5, new5), done(4, 5, clear, cleared), done(6, 7, check, applied(5))}},
		"concurrent":                    {true, []Call{done(0, 9, in5, new5), done(1, 8, check, applied(0)), done(1, 8, check, applied(5))}},
		"lost, and set":                 {true, []Call{lost(0, in5), done(2, 3, check, applied(5))}},
		"lost, and not set":             {true, []Call{lost(0, in5), done(2, 3, check, applied(0))}},
		"lost, and gone again":          {false, []Call{lost(0, in5), done(2, 3, check, applied(5)), done(4, 5, check, applied(0))}},
		"it takes the place of none":    {false, []Call{done(2, 3, in7, again7)}},
	}.check(t, Override())
}
