package history

import "testing"

func TestPolicy(t *testing.T) {
	in := PolicyInput{}
	by := func(version, capacity uint64) PolicyOutput { return PolicyOutput{Version: version, Capacity: capacity} }
	histories{
		"versions that rise":            {true, []Call{done(0, 1, in, by(3, 5)), done(2, 3, in, by(3, 5)), done(4, 5, in, by(7, 6))}},
		"a version that falls":          {false, []Call{done(0, 1, in, by(7, 6)), done(2, 3, in, by(3, 5))}},
		"another limit of one version":  {false, []Call{done(0, 1, in, by(7, 6)), done(2, 3, in, by(7, 5))}},
		"concurrent":                    {true, []Call{done(0, 9, in, by(7, 6)), done(1, 8, in, by(3, 5))}},
		"no policies, before and after": {true, []Call{done(0, 1, in, by(0, 0)), done(2, 3, in, by(3, 5)), done(4, 5, in, by(0, 0))}},
		"lost":                          {true, []Call{lost(0, in), done(2, 3, in, by(3, 5))}},
	}.check(t, Policy())
}
