package history

// AcrossOp is what an admission of several keys does to the counter of one of them.
type AcrossOp uint8

const (
	AcrossCharge AcrossOp = iota + 1 // of an Admit that was admitted
	AcrossRefuse                     // of one that this counter has refused
	AcrossBrief                      // of one that another counter has refused: its hold begins here
	AcrossGone                       // … and ends
	AcrossChange                     // the end of a hold, or its settlement
	AcrossLoose                      // nobody was told: from now on it may be charged or not
	AcrossForget                     // a hold is unknown that was admitted, and that nobody has settled
	AcrossRead
)

func (op AcrossOp) String() string {
	return [...]string{"", "charge", "refuse", "hold briefly", "give back", "change by", "may be charged", "forget", "read"}[op]
}

const (
	// AcrossMax is the bound of each counter.
	AcrossMax = 50
	// AcrossSlots is how many holds of one counter can be brief at a time.
	AcrossSlots = 64
	// maxLoose is how many charges of one counter may be uncertain. With more, anything is possible.
	maxLoose = 24
)

// AcrossInput is one of the things that happen to one counter. An Admit is one for each of its counters, within the
// call: it takes place at all of them or at none, and not at one moment.
type AcrossInput struct {
	Op   AcrossOp
	Cost int64
	Slot uint8 // of AcrossBrief and AcrossGone: the same of both
	// Maybe says of these two that there may have been no hold.
	Maybe bool
}

// AcrossOutput is the answer to it.
type AcrossOutput struct {
	Value int64 // of AcrossRead
	Replay
}

func (o AcrossOutput) first() any { return o }

func (o AcrossOutput) bare() any { return o }

func (o AcrossOutput) reads(any) (readIn, readOut any) { return nil, nil }

// acrossState is the counter of a key.
type acrossState struct {
	charged int64 // what is held and what is owed, too
	open    uint64
	loose   [maxLoose]int64
	unsure  bool
}

// sums returns the least and the most that is charged.
func (s *acrossState) sums() (least, most int64) {
	least, most = s.charged, s.charged
	for _, cost := range s.loose {
		least, most = least+min(cost, 0), most+max(cost, 0)
	}
	return least, most
}

// is reports whether a value may be what is charged.
func (s *acrossState) is(value int64) bool {
	can := map[int64]bool{s.charged: true}
	for _, cost := range s.loose {
		if cost == 0 {
			break
		}
		next := map[int64]bool{}
		for sum := range can {
			next[sum], next[sum+cost] = true, true
		}
		can = next
	}
	return can[value]
}

// loosen makes a charge uncertain.
func (s acrossState) loosen(cost int64) acrossState {
	for i := range s.loose {
		if s.loose[i] == 0 {
			s.loose[i] = cost
			return s
		}
	}
	return acrossState{unsure: true}
}

// brief is the state after the beginning or the end of a hold that is not admitted.
func (s acrossState) brief(in AcrossInput) (all []acrossState) {
	bit := uint64(1) << in.Slot
	next := s
	switch least, _ := s.sums(); {
	case in.Op == AcrossBrief && least+in.Cost <= AcrossMax:
		next.open, next.charged = s.open|bit, s.charged+in.Cost
		all = append(all, next)
	case in.Op == AcrossGone && s.open&bit != 0:
		next.open, next.charged = s.open&^bit, s.charged-in.Cost
		return append(all, next)
	}
	if in.Maybe {
		all = append(all, s)
	}
	return all
}

// Across is the model of a counter that is demanded together with those of other keys.
//
// What breaks it: a charge above the bound, or a refusal below it; a value that is not all that was admitted and is held,
// or was settled, or is owed: half of an Admit; a hold that ends before its time, twice, or not at all.
func Across(delay int64) Model {
	m := newModel(acrossState{}, func(s acrossState, at step, out any) []acrossState {
		in := at.in.(AcrossInput)
		o, told := out.(AcrossOutput)
		if s.unsure || !told { // what is uncertain has operations of its own
			return []acrossState{s}
		}
		least, most := s.sums()
		fits := true
		switch in.Op {
		case AcrossCharge:
			fits = least+in.Cost <= AcrossMax
			s.charged += in.Cost
		case AcrossChange:
			s.charged += in.Cost
		case AcrossRefuse:
			fits = most+in.Cost > AcrossMax
		case AcrossRead:
			fits = s.is(o.Value)
		case AcrossLoose:
			s = s.loosen(in.Cost)
		case AcrossForget:
			fits = false
		default:
			return s.brief(in)
		}
		if !fits {
			return nil
		}
		return []acrossState{s}
	})
	m.delay = delay
	return m
}
