//go:build system

package system

import (
	"strings"
	"syscall"
	"testing"
)

// What is left of a cluster says that no more may die as soon as it hears no majority,
// though gossip still takes the dead to be alive; and when gossip knows better, or they
// have left in order, that it has stopped.
func TestStatusWithoutMajority(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, n *testNode){
		"killed":  func(_ *testing.T, n *testNode) { n.kill() },
		"stopped": func(t *testing.T, n *testNode) { n.signal(t, syscall.SIGTERM) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 3, false, "--drain-timeout", "0")
			eventually(t, "all three vote", func() bool {
				st, _, err := c.nodes[0].status()
				return err == nil && len(st.Voters) == 3
			})
			for _, n := range c.nodes[1:] {
				end(t, n)
			}
			eventually(t, "it has stopped", func() bool {
				r := keystead(t, "status", "--exit-code", "--addr", c.nodes[0].grpc)
				if !strings.Contains(r.out, "knows no leader") {
					return false
				}
				if r.code != exitUnhealthy || !strings.Contains(r.out, "Voters   n1, n2, n3; none may die") || strings.Contains(r.out, "one more death") && strings.Contains(r.out, "are gone") {
					t.Errorf("%d %s", r.code, r.out)
				}
				return strings.Contains(r.out, "the cluster has stopped: of 3 voters, n2, n3 are gone; bring back 1 of them: 2 of 3 voters have to run")
			})
		})
	}
}
