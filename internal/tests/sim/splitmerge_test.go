package sim

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/keystead/keystead/internal/node"
	"github.com/keystead/keystead/ring/epoch/table"
)

// TestMergeOfWhatIsPlacedAnew: somebody has an object made whole while its home closes it
// to place its parts anew. It is whole when that is said to be done, and stays so.
func TestMergeOfWhatIsPlacedAnew(t *testing.T) {
	t.Parallel()
	tune := func(_ int, cfg *node.Config) { cfg.Hot.Stay = int64(2 * time.Second) }
	play(t, setting{nodes: 4, config: func(c *Config) { c.Tune = tune }}, func(s *scene) {
		sp := &splitScene{scene: s, load: newSplitLoad(s), watch: newSplitWatch(s.Cluster)}
		d := sp.newDivider(1)
		defer d.close()
		rnd := rand.New(rand.NewPCG(s.seed, 1))
		i := s.follower()
		s.Crash(i)
		s.Wipe(i)
		s.until(stableTime, "it is out", func() bool { _, in := latest(s.Cluster).Member(s.hosts[i].name); return !in })
		for _, key := range splitKeys() { // the new node may get some parts by itself
			s.until(stableTime, key+" is split", func() bool {
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				return d.splitBy(ctx, sp.home(key), key, 4) == nil
			})
		}
		sp.start(i)
		s.until(stableTime, "all is well again", s.stable)
		s.Net.SetFaults("", "", Faults{Min: 2 * time.Millisecond, Max: 4 * time.Millisecond})
		var of table.Split
		for over := time.Now().Add(stableTime); of.Key == ""; s.sleep(100 * time.Microsecond) {
			for _, is := range latest(s.Cluster).Splits {
				if is.Phase == table.Closing && strings.Contains(is.Reason, "belongs on node") {
					of = is
				}
			}
			if time.Now().After(over) {
				s.t.Fatal("no parts are placed anew")
			}
		}
		if err := d.merge(rnd, of.Key); err != nil {
			s.t.Fatalf("the order to make %s whole: %v", of.Key, err)
		}
		for over := time.Now().Add(15 * time.Second); time.Now().Before(over); s.sleep(splitPoll) {
			if is, ok := latest(s.Cluster).Split(of.Kind, of.Key, of.Name); ok {
				s.t.Fatalf("%s was made whole by hand, and is %s again at %s: %s", of.Key, is.Phase, stamp(time.Now()), is.Reason)
			}
		}
	})
}
