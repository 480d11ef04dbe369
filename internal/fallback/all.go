package fallback

// Part is one of several limits of a key that are decided together.
type Part struct {
	Name string // another one than all others have
	Rule *Rule  // valid, with a Source
	Cost uint64 // 1 or more
}

// DecideAll decides several limits of a key in one step, each by its own Rule. It spends all costs if all of
// the limits allow theirs, and otherwise none. If one of them cannot be decided, none is, and there are no answers. With
// peek it spends nothing. What is allowed and was not spent is not part of Remaining.
func (t *Table) DecideAll(key string, parts []Part, peek bool, now int64) ([]Answer, Why) {
	sh := t.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	cells := make([]*cell, len(parts))
	for i, p := range parts {
		var why Why
		if cells[i], why = sh.ruledLocked(key, p.Name, p.Rule, now); why != Decided {
			return nil, why
		}
	}
	for i, c := range cells {
		// The cell that was made for one may have given way to that of another.
		//guard:fallback-all-have-room
		if sh.cells[address{key, parts[i].Name}] != c {
			return nil, Full
		}
	}
	answers, all := make([]Answer, len(parts)), true
	for i, c := range cells {
		a, why := c.decide(parts[i].Rule, parts[i].Cost, true, now)
		if why != Decided {
			return nil, why
		}
		if a.Allowed {
			a.Remaining -= parts[i].Cost
		}
		//guard:fallback-all-or-none
		all = all && a.Allowed
		answers[i] = a
	}
	if all && !peek {
		for i, c := range cells {
			answers[i], _ = c.decide(parts[i].Rule, parts[i].Cost, false, now)
		}
	}
	return answers, Decided
}
