package epoch

import (
	"testing"
	"time"
)

// drag makes each write take a while.
func (p *platter) drag(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slow = d
}

// TestSlowDisksElectNobody: a leader does not step aside for others whose disks are as slow
// as its own: they could not write down their votes in time, and elections would follow one
// another. That they have nothing to write just then does not mean that they could.
func TestSlowDisksElectNobody(t *testing.T) {
	t.Parallel()
	groups, disks := onPlatters(t, 3)
	leader, others := leading(t, groups...)
	eventually(t, "the others could elect one of them", func() bool { return leader.couldElect(t.Context()) })
	for _, g := range others {
		disks[g.cfg.Node].drag(2 * voteTime)
	}
	if leader.couldElect(t.Context()) {
		t.Error("nodes whose disks take longer than an election could elect one of them")
	}
	for _, g := range others {
		disks[g.cfg.Node].thaw()
	}
	eventually(t, "they could again", func() bool { return leader.couldElect(t.Context()) })
}
