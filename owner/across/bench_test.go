package across

import (
	"testing"
	"time"
)

// BenchmarkVotes is what becomes of an admission of four keys that is spent at once, at one participant and at its standby, of
// 512 objects that remember 1,000 each: more than a processor's caches.
func BenchmarkVotes(b *testing.B) {
	const objects, each = 512, 1000
	owners, standbys := make([]*State, objects), make([]*State, objects)
	for i := range owners {
		owners[i], standbys[i] = NewState(Config{Window: int64(5 * time.Minute)}), NewState(Config{Window: int64(5 * time.Minute)})
	}
	terms, own := termsOf(1), make([]byte, 24)
	terms.Hold = 0
	now, next := int64(1), uint64(0)
	step := func() {
		next++
		now += 1000
		owner, standby := owners[next%objects], standbys[next%objects]
		id := ID{Sequence: next}
		owner.Vote(&Hold{ID: id, Terms: terms, Own: own, Epoch: 1}, now, nil)
		standby.Install(*owner.Find(id))
		owner.Told(&Word{ID: id, Phase: Admitted, Print: 1}, now)
		standby.Install(*owner.Find(id))
		owner.Told(&Word{ID: id, Phase: Admitted, All: true, Print: 1}, now)
		owner.Next()
		if old := next - objects*each; next > objects*each {
			owner.Forget(ID{Sequence: old})
			standby.Forget(ID{Sequence: old})
		}
	}
	for range objects * each {
		step()
	}
	b.ReportAllocs()
	for b.Loop() {
		step()
	}
}
