package owner

import (
	"testing"

	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/lock"
	"github.com/keystead/keystead/owner/once"
	"github.com/keystead/keystead/owner/value"
)

// TestTokensRiseAboveCopies: tokens are above all that a lock had where it came
// from, also when these were above the epoch of the row, and when the lock is held
// by nobody any more.
func TestTokensRiseAboveCopies(t *testing.T) {
	const before = 105<<SeqBits | 7
	rule := &testRule{epoch: 100}
	s := newStore(t, func(c *Config) { c.Rule = rule })
	r := &Record{
		Hash: Hash(door.Key), Key: []byte(door.Key), Name: []byte(door.Name), Version: 1,
	}
	r.SetLock(hold.State{Holders: []hold.Holder{{Name: "a", Token: before, Weight: lock.All, Expires: second}}, LastToken: before})
	if err := s.Install(0, r, always); err != nil {
		t.Fatal(err)
	}
	if a, _ := acquire(t, s, 2*second, noID, asks("b", second, 0)); a.Token != before+1 {
		t.Errorf("token %x after %x", a.Token, uint64(before))
	}
}

// TestTokensRiseAboveRegisters: so are versions of registers, though the epoch of the row is lower.
func TestTokensRiseAboveRegisters(t *testing.T) {
	const before = 105<<SeqBits | 7
	s := newStore(t, nil)
	r := &Record{Hash: Hash(config.Key), Key: []byte(config.Key), Name: []byte(config.Name), Version: 1}
	if err := s.Install(0, r.SetRegister(value.State{Exists: true, Version: before}), always); err != nil {
		t.Fatal(err)
	}
	if a := must(s.SetRegister(0, config, noID, puts("v"))); a.Version != before+1 {
		t.Errorf("version %x after %x", a.Version, uint64(before))
	}
}

// TestTokensRiseAboveTurns: so are those of turns.
func TestTokensRiseAboveTurns(t *testing.T) {
	const before = 105<<SeqBits | 7
	s := newStore(t, nil)
	r := &Record{Hash: Hash(order.Key), Key: []byte(order.Key), Name: []byte(order.Name), Version: 1}
	if err := s.Install(0, r.SetOnce(once.State{Phase: once.UnderWay, Token: before, Attempt: 1, Until: second}), always); err != nil {
		t.Fatal(err)
	}
	if a := firstTurn(t, s, second, noID, begins("a", "")); a.Token != before+1 || a.Attempt != 2 {
		t.Errorf("token %x after %x", a.Token, uint64(before))
	}
}

// foresees is a rule that hears of epochs that end.
type foresees struct {
	testRule
	ending []uint64
}

func (r *foresees) Ending(epoch uint64) { r.ending = append(r.ending, epoch) }

// TestEpochsEndWithNotice: the rule hears that the tokens of an epoch will be used up before they
// are, and for the last time when they are.
func TestEpochsEndWithNotice(t *testing.T) {
	rule := &foresees{testRule: testRule{epoch: 100}}
	s := newStore(t, func(c *Config) { c.Rule = rule })
	sh := s.shard(Hash(config.Key))
	put := func() uint64 { return must(s.SetRegister(0, config, noID, puts("v"))).Version }
	put()
	if sh.lastToken = 100<<SeqBits | (endingAt - 2); put() != 100<<SeqBits|(endingAt-1) || len(rule.ending) != 0 {
		t.Errorf("heard of %d before it is near", rule.ending)
	}
	for range 2 {
		put()
	}
	if len(rule.ending) != 2 || rule.ending[0] != 100 || rule.exhausted != 0 {
		t.Errorf("heard of %d, exhausted %d times", rule.ending, rule.exhausted)
	}
	sh.lastToken = 101<<SeqBits - 1
	if v := put(); v != 101<<SeqBits|1 || len(rule.ending) != 2 || rule.exhausted != 1 {
		t.Errorf("version %x, heard of %d", v, rule.ending)
	}
}
