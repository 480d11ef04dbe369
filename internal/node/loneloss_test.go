package node

import (
	"os"
	"testing"

	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
)

// TestLossOfALoneNode: answers and status of a node name the loss of what the process
// before had, if there was one and it kept nothing; locks are granted all the same.
func TestLossOfALoneNode(t *testing.T) {
	for name, tc := range map[string]struct {
		end  func(t *testing.T, n *Node, dir string)
		lost bool
	}{
		"first start":    {end: func(t *testing.T, n *Node, dir string) { n.Stop(); remove(t, epochPath(dir), stateFile(dir)) }},
		"orderly stop":   {end: func(_ *testing.T, n *Node, _ string) { n.Stop() }},
		"death":          {end: func(_ *testing.T, n *Node, _ string) { n.Kill() }, lost: true},
		"state is gone":  {end: func(t *testing.T, n *Node, dir string) { n.Stop(); remove(t, stateFile(dir)) }, lost: true},
		"state was torn": {end: func(t *testing.T, n *Node, dir string) { n.Stop(); truncate(t, stateFile(dir)) }, lost: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			tc.end(t, startStandalone(t, dir, nil), dir)
			n := startStandalone(t, dir, nil)
			conn := dial(t, n)
			get, err := counterpb.NewCounterServiceClient(conn).Get(bounded(t), &counterpb.GetRequest{Key: "k"})
			if err != nil {
				t.Fatal(err)
			}
			st, err := clusterpb.NewClusterServiceClient(conn).GetStatus(bounded(t), &clusterpb.GetStatusRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if (get.LostEpoch != 0) != tc.lost || (len(st.Warnings) == 1) != tc.lost || (n.lostRows > 0) != tc.lost {
				t.Errorf("the answer names %d, %d rows are lost, and it is warned of %v", get.LostEpoch, n.lostRows, st.Warnings)
			}
			if st.RowsInGrace != 0 || st.Epoch != get.Epoch {
				t.Errorf("%d rows are in grace; epoch %d in the status and %d in the answer", st.RowsInGrace, st.Epoch, get.Epoch)
			}
			if token, _ := given(t, n, "k"); token == 0 {
				t.Error("no lock is granted")
			}
		})
	}
}

func remove(t *testing.T, paths ...string) {
	t.Helper()
	for _, p := range paths {
		if err := os.Remove(p); err != nil {
			t.Fatal(err)
		}
	}
}

func truncate(t *testing.T, path string) {
	t.Helper()
	if err := os.Truncate(path, 40); err != nil {
		t.Fatal(err)
	}
}
