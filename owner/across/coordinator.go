package across

// Coordinator is one admission at the node that has the request. It may be forgotten at any
// time, and there may be several for one request.
type Coordinator struct {
	ID
	Terms
	Epoch    uint64
	Deadline int64 // when the caller is told what is known by then

	refusals [MaxKeys]Refusal
	held     Set
	denied   Set
	unsure   Set // by whose answer nothing is known
	known    Set // participants that know the outcome
	answered Phase
}

// Outcome is what the caller is told.
type Outcome struct {
	Phase Phase // Admitted, Refused, or Unknown: the caller has to ask again
	Refusal
}

// NewCoordinator begins an admission that the caller first sent some time ago, 0 on the first
// attempt. epoch is that of the table, which is not 0. The Holds are to be sent.
func NewCoordinator(id ID, t Terms, epoch uint64, age, deadline int64) *Coordinator {
	//guard:across-retry-epoch
	if age > 0 { // the first attempt may have gone by an older one
		epoch = 0
	}
	return &Coordinator{ID: id, Terms: t, Epoch: epoch, Deadline: deadline}
}

// Holds returns what the participants are asked, in their order.
func (c *Coordinator) Holds(age int64) []Hold {
	holds := make([]Hold, len(c.Keys))
	for i := range holds {
		holds[i] = Hold{ID: c.ID, Terms: c.Terms, Self: uint8(i), Epoch: c.Epoch, Age: age}
	}
	return holds
}

// Answered is told the answer of a participant to a Hold or to a Word. done is what the caller is to be told
// now, if it is anything. The words are to be sent, behind that.
func (c *Coordinator) Answered(from uint8, a Answer) (done *Outcome, words []Word) {
	one, all := One(from), All(len(c.Keys))
	switch {
	case a.Phase.Denies():
		c.denied |= one
		c.refusals[from] = a.Refusal
	case a.Phase.Holds():
		c.held |= one
	default:
		c.unsure |= one
	}
	if a.Phase.ends() || a.Phase == Forgotten || a.Phase.Denies() || a.Phase == Admitted {
		c.known |= one
	}
	switch {
	case c.answered == Unknown && c.held == all:
		return c.answer(Admitted), c.tell(Admitted, all, false)
	case c.answered == Unknown && c.denied != 0 && c.denied|c.held|c.unsure == all:
		return c.answer(Refused), c.tell(Cancelled, all&^c.denied, false)
	case c.answered == Unknown && c.unsure != 0 && c.denied == 0 && c.held|c.unsure == all:
		//guard:across-unsure nil -> c.tell(Cancelled, all, false)
		return c.answer(Unknown), nil
	//guard:across-late-denial false
	case c.answered == Forgotten && c.held != all && a.Phase.Denies(): // of one that had not said what it does
		return nil, c.tell(Cancelled, c.held&^c.denied, false)
	case c.denied != 0 && a.Phase == Held: // also one that was late
		return nil, c.tell(Cancelled, one, false)
	case c.answered == Admitted && c.known == all:
		c.answered = Forgotten
		return nil, c.tell(Admitted, all, true)
	}
	return nil, nil
}

// Expire is told that time has passed. After the deadline nothing is admitted any more, and
// nothing is cancelled that nobody has refused.
func (c *Coordinator) Expire(now int64) (done *Outcome, words []Word) {
	if c.answered != Unknown || now < c.Deadline {
		return nil, nil
	}
	//guard:across-reason
	if c.denied == 0 {
		return c.answer(Unknown), nil
	}
	return c.answer(Refused), c.tell(Cancelled, All(len(c.Keys))&^c.denied, false)
}

// Over reports whether nothing is left to do.
func (c *Coordinator) Over() bool { return c.answered == Forgotten || c.known == All(len(c.Keys)) }

func (c *Coordinator) answer(p Phase) *Outcome {
	o := &Outcome{Phase: p}
	if c.answered = p; p == Unknown {
		c.answered = Forgotten
	}
	if p != Refused {
		return o
	}
	for i := range c.Keys {
		if r := &c.refusals[i]; c.denied.Has(uint8(i)) {
			o.Demands |= r.Demands
			o.RetryAt = max(o.RetryAt, r.RetryAt)
			o.Contended = o.Contended || r.Contended
		}
	}
	return o
}

func (c *Coordinator) tell(p Phase, to Set, known bool) []Word {
	words := make([]Word, 0, to.Len())
	for i := range c.Keys {
		if to.Has(uint8(i)) {
			words = append(words, Word{ID: c.ID, To: uint8(i), Key: c.Keys[i], Epoch: c.Epoch, Phase: p, All: known, Print: c.Print})
		}
	}
	return words
}
