package ids

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/owner"
)

// TestLayout: ids and fencing tokens have the same epochs.
func TestLayout(t *testing.T) {
	if SeqBits != owner.SeqBits || MaxEpoch != uint64(owner.MaxEpoch) {
		t.Errorf("ids have %d bits and epochs up to %d, tokens %d and %d", SeqBits, uint64(MaxEpoch), owner.SeqBits, uint64(owner.MaxEpoch))
	}
}

// TestBlocks follows one process through the life of its blocks.
func TestBlocks(t *testing.T) {
	const ms = int64(1e6)
	var b blocks
	for i, step := range []struct {
		at    int64 // ms
		came  uint64
		asked int64  // ms
		used  uint64 // of the current block, from here on; 0 = as it is
		n     uint64 // 0 = none are taken
		first uint64 // 0 = there are none
		wants bool   // after it
		says  string
	}{
		{at: 0, n: 1, wants: true, says: "there is no block yet"},
		{at: 0, came: 7, asked: 0, says: "it came"},
		{at: 10, n: 3, first: 7 << SeqBits, says: "the first"},
		{at: 10, n: 1, first: 7<<SeqBits + 3, says: "the fourth"},
		{at: 10, used: early, n: 1, first: 7<<SeqBits + early, says: "early, but the interval is not over"},
		{at: 1000, n: 1, first: 7<<SeqBits + early + 1, wants: true, says: "the interval is over"},
		{at: 1001, came: 9, asked: 1000, says: "the next one came"},
		{at: 1002, n: 1, first: 7<<SeqBits + early + 2, says: "the old one is used up first"},
		{at: 1003, used: blockIDs - 2, n: 2, first: 7<<SeqBits + blockIDs - 2, says: "to the end"},
		{at: 1003, n: 1, first: 9 << SeqBits, says: "the next one"},
		{at: 1003, used: blockIDs - 1, n: 2, says: "two do not fit, and the interval is not over"},
		{at: 2000, n: 2, wants: true, says: "it is over"},
		{at: 2001, came: 10, asked: 2000, says: "another"},
		{at: 2002, n: 2, first: 10 << SeqBits, says: "it is the current one"},
		{at: 11_999, n: 1, first: 10<<SeqBits + 2, says: "still fresh"},
		{at: 12_000, n: 1, first: 10<<SeqBits + 3, wants: true, says: "stale, and still good"},
		{at: 61_999, n: 1, first: 10<<SeqBits + 4, wants: true, says: "to the last"},
		{at: 62_000, n: 1, wants: true, says: "too old"},
		{at: 62_000, came: 50, asked: 62_000, says: "after a pause"},
		{at: 72_500, n: 1, first: 50 << SeqBits, wants: true, says: "stale"},
		{at: 72_600, came: 51, asked: 72_500, says: "a fresh one"},
		{at: 72_601, n: 1, first: 51 << SeqBits, says: "which is taken at once"},
	} {
		now := step.at * ms
		if step.came != 0 {
			b.came(step.came, step.asked*ms)
		}
		if step.used != 0 {
			b.current.used = step.used
		}
		if step.n != 0 {
			if first, ok := b.next(now, step.n); first != step.first || ok != (step.first != 0) {
				t.Errorf("%d, %s: %x, %v, want %x", i, step.says, first, ok, step.first)
			}
		}
		if b.wanting(now) != step.wants {
			t.Errorf("%d, %s: wanting is %v", i, step.says, !step.wants)
		}
	}
}

func TestEpochsThatDoNotRise(t *testing.T) {
	for name, epoch := range map[string]uint64{"the same": 7, "an older one": 6, "too great a one": MaxEpoch + 1} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("it was taken")
				}
			}()
			b := blocks{current: block{epoch: 7}}
			b.came(epoch, 0)
		})
	}
}

// TestNoIDTwice: several processes, which die and come again, take blocks of one
// epoch that others raise as well, with answers that are late or lost. No id comes
// twice, those of a process rise, and one that was asked for more than Order after
// another one is greater.
func TestNoIDTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type process struct {
			blocks
			asked   int64
			pending uint64 // epoch that was committed for it; 0 = nothing is under way
			last    uint64
		}
		type run struct {
			first, n uint64
			at       int64
		}
		var given []run
		now, epoch := int64(0), uint64(1000)
		processes := []*process{{}, {}, {}}
		pick := func() *process { return processes[rapid.IntRange(0, len(processes)-1).Draw(t, "process")] }
		t.Repeat(map[string]func(*rapid.T){
			"time":             func(t *rapid.T) { now += rapid.Int64Range(0, int64(3*Fresh)).Draw(t, "ns") },
			"raised by others": func(*rapid.T) { epoch++ },
			"ask": func(*rapid.T) {
				if p := pick(); p.pending == 0 && p.wanting(now) {
					epoch++
					p.pending, p.asked = epoch, now
				}
			},
			"answered": func(*rapid.T) {
				if p := pick(); p.pending != 0 {
					p.came(p.pending, p.asked)
					p.pending = 0
				}
			},
			"lost": func(*rapid.T) { pick().pending = 0 },
			"dies": func(t *rapid.T) {
				processes[rapid.IntRange(0, len(processes)-1).Draw(t, "process")] = &process{}
			},
			"used": func(t *rapid.T) {
				if p := pick(); p.current.epoch != 0 { // many calls at once
					p.current.used = max(p.current.used, rapid.Uint64Range(0, blockIDs).Draw(t, "used"))
				}
			},
			"next": func(t *rapid.T) {
				p, n := pick(), rapid.Uint64Range(1, MaxCount).Draw(t, "n")
				first, ok := p.next(now, n)
				if !ok {
					return
				}
				if first <= p.last || (first+n-1)>>SeqBits != first>>SeqBits || first+n > 1<<63 {
					t.Fatalf("%x and %d more after %x", first, n, p.last)
				}
				p.last = first + n - 1
				for _, g := range given {
					if first < g.first+g.n && g.first < first+n {
						t.Fatalf("%x and %d more were given twice", first, n)
					}
					if now-g.at > int64(Order) && first < g.first {
						t.Fatalf("%x comes %d ns after %x", first, now-g.at, g.first)
					}
				}
				given = append(given, run{first, n, now})
			},
		})
	})
}
