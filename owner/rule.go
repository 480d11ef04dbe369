package owner

// Rule is the serving rule: whether this process may act for a key now.
//
// It is asked twice. Admit is called under the shard lock, for every operation,
// and must be quick; Confirm is called just before an answer leaves and is the
// check that counts: only what it lets through was promised to anybody.
type Rule interface {
	// Admit lets an operation on a key of this hash in, or says why not with
	// an *Error of reason NotOwner or Unavailable.
	Admit(hash uint64, now int64) (Permit, error)
	// Confirm reports whether what Admit found still holds, or fails with an
	// *Error of reason OutcomeUnknown.
	Confirm(p Permit, now int64) error
	// Exhausted says that the tokens of an epoch are used up. The rule raises
	// the epoch if it can and returns the new one.
	Exhausted(epoch uint64) (uint64, error)
	// Terms are what was agreed on about locks. They do not change once there is
	// a row to act for.
	Terms() Terms
}

// Terms are what all processes that may own a key have agreed on about locks.
type Terms struct {
	// LockTTL is the longest TTL of a lock, ns; 0 = nothing is agreed on, and each
	// goes by its own Config.MaxLockTTL.
	LockTTL int64
	// Grace is how long, in ns from Permit.LostAt, what was held before a loss may
	// still be held.
	Grace int64
}

// Foresight is a Rule that takes time to raise the epoch.
type Foresight interface {
	// Ending says that the tokens of an epoch are about to be used up. It is called under the
	// shard lock, for each operation that needs a token from then on, and must be quick.
	Ending(epoch uint64)
}

// Permit is what Admit found: under which right the operation acts.
type Permit struct {
	// Epoch is stamped on answers and begins the fencing tokens.
	Epoch uint64
	// Seen is the epoch of the table that let the operation in, and Hash the
	// position of its key: by them Confirm sees whether the row was changed
	// since.
	Seen, Hash uint64
	// Since is the moment before which the request ids of the row are unknown, by
	// the clock of this process: when the row, or the process, began with
	// nothing. math.MinInt64 says that everything is known that was done in the
	// window of request ids: the row came with all its ids.
	Since int64
	// Lost is the epoch of the loss of the row's state while the row is in grace,
	// 0 otherwise: what was lost may still be held, so that locks are granted to
	// nobody, and a caller that shows that it holds one keeps it (see Store.Reclaim).
	Lost uint64
	// LostAt is, in grace, a moment at which this process had got the row already,
	// by its clock: the grace runs from it.
	LostAt int64
	// NamedLoss is the epoch of a loss that answers name although there is no grace, as
	// those of a standalone node do; 0 if there is none.
	NamedLoss uint64
	// Loss is the epoch by which the row's state was last lost, whether or not it is in grace, and LossAt
	// a moment by which this process had learned of that, by its clock; 0 = it never was.
	Loss   uint64
	LossAt int64
}

// LostEpoch returns the epoch of the loss that answers name, 0 if there is none.
func (p *Permit) LostEpoch() uint64 { return max(p.Lost, p.NamedLoss) }

// SeqBits is the width of the sequence in a fencing token, below the epoch.
const SeqBits = 24

// endingAt is the sequence from which on an epoch is about to be used up: a shard that is as busy
// as it can be has half a second left then.
const endingAt = 1<<SeqBits - 1<<19

// MaxEpoch is the greatest epoch: 39 bits, so that tokens stay below 2^63.
const MaxEpoch = 1<<39 - 1

// nextToken returns the fencing token that the next grant in this shard gets.
// It does not use it up: tokenUsedLocked does.
//
// Invariant: what it returns is greater than every token used in the shard, and
// lies in the epoch of the permit or a later one that the rule has raised to.
func (sh *shard) nextTokenLocked(rule Rule, p Permit) (uint64, error) {
	//guard:token-epoch p.Epoch<<SeqBits | 1 -> uint64(1)
	first := p.Epoch<<SeqBits | 1
	if sh.lastToken < first {
		return first, nil
	}
	next := sh.lastToken + 1
	//guard:token-exhausted true
	if next>>SeqBits == sh.lastToken>>SeqBits {
		if next&(1<<SeqBits-1) >= endingAt {
			if f, ok := rule.(Foresight); ok {
				f.Ending(next >> SeqBits)
			}
		}
		return next, nil
	}
	epoch, err := rule.Exhausted(sh.lastToken >> SeqBits)
	if err != nil {
		return 0, err
	}
	if epoch <= sh.lastToken>>SeqBits || epoch > MaxEpoch {
		panic("owner: the serving rule did not raise the epoch")
	}
	return epoch<<SeqBits | 1, nil
}

func (sh *shard) tokenUsedLocked(token uint64) {
	if token <= sh.lastToken {
		panic("owner: a fencing token went backwards")
	}
	sh.lastToken = token
}
