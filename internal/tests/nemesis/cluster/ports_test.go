package cluster

import (
	"sync"
	"testing"
)

// Many that pick ports at one moment do not choose the same ones; what one gives up, others
// may have.
func TestPorts(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	taken := map[string]bool{} // guarded by mu
	var wg sync.WaitGroup
	var all [8]Ports
	for i := range all {
		wg.Go(func() {
			for range blockSize + 1 {
				port, err := all[i].Next()
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if taken[port] {
					t.Errorf("port %s is picked twice", port)
				}
				taken[port] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	p := &all[0]
	if n := len(p.claims); n != 2 {
		t.Errorf("%d blocks are claimed", n)
	}
	first := p.claims[0].Addr().String()
	p.Close()
	for i := range all {
		all[i].Close()
	}
	if port, err := p.Next(); err != nil || len(p.claims) != 1 {
		t.Errorf("after %s was given up: %s, %v, %d claims", first, port, err, len(p.claims))
	}
	p.Close()
}
