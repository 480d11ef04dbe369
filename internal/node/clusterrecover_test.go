package node

import (
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/keystead/keystead/owner"
	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
)

// TestDisksGivenUp: two of three disks are gone for good. What was on the third is there; the rest
// waits, the status says for what, and an operator gives it up.
func TestDisksGivenUp(t *testing.T) {
	m := newMachines(t, "always")
	m.start("n1", "n2", "n3")
	m.settled()
	m.count()
	has := map[string]bool{} // keys of which n1 has a copy
	for i := range manyKeys {
		t := m.nodes["n1"].cluster.Table()
		r := t.Rows[t.Find(owner.Hash(key(i)))]
		has[key(i)] = r.Owner.Node == "n1" || r.Standby.Node == "n1"
	}
	m.killAll()
	for _, id := range []string{"n2", "n3"} {
		if err := os.RemoveAll(filepath.Join(m.dir(id), diskDirectory)); err != nil {
			t.Fatal(err)
		}
	}
	m.start("n1", "n2", "n3")
	var st *clusterpb.GetStatusResponse
	eventually(t, "what n1 has is there, and the rest waits for the two others", func() bool {
		var err error
		st, err = clusterpb.NewClusterServiceClient(dial(t, m.nodes["n3"])).GetStatus(t.Context(), &clusterpb.GetStatusRequest{})
		return err == nil && st.RowsCold > 0 && !slices.ContainsFunc(st.Awaited, func(d *clusterpb.AwaitedDisk) bool { return d.Node == "n1" })
	})
	var all sync.WaitGroup
	for k, here := range has {
		all.Go(func() { // those that wait are waited for
			if r, err := m.get(m.any(), k); here != (err == nil) || here && r.Value < m.told[k] {
				t.Errorf("%s is at n1: %v; %v, %v", k, here, r, err)
			}
		})
	}
	all.Wait()
	admin := adminpb.NewAdminServiceClient(dial(t, m.nodes["n1"]))
	lost := uint32(0)
	for _, d := range st.Awaited {
		req := &adminpb.ForgoDiskRequest{Node: d.Node, Incarnations: []uint64{d.Incarnation}, DryRun: true}
		dry, err := admin.ForgoDisk(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		req.DryRun = false
		did, err := admin.ForgoDisk(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if dry.Rows != did.Rows || dry.RowsLost != did.RowsLost || did.RowsLost+did.RowsWaiting != did.Rows || did.Rows == 0 {
			t.Errorf("%v, and it said %v", did, dry)
		}
		lost += did.RowsLost
	}
	if lost != st.RowsCold {
		t.Errorf("%d rows are lost, and %d waited", lost, st.RowsCold)
	}
	m.served()
	for k, here := range has {
		if r, err := m.get(m.any(), k); err != nil || here && (r.Value < m.told[k] || r.LostEpoch != 0) || !here && (r.Value != 0 || r.LostEpoch == 0) {
			t.Errorf("%s is at n1: %v; %v, %v", k, here, r, err)
		}
	}
	for id, n := range m.nodes {
		if st, tab := n.cluster.status(), n.cluster.Table(); st.RowsLostInPart != 0 || tab.InGraceInPart() != 0 || tab.InGrace() == 0 {
			t.Errorf("%s: of %d lost rows %d are lost in part; in grace are %d, and %d in part", id, st.RowsLost, st.RowsLostInPart, tab.InGrace(), tab.InGraceInPart())
		}
	}
	m.settled()
	m.told, m.maybe = map[string]int64{}, map[string]int64{}
	m.count()
	m.killAll()
	m.start("n3", "n1", "n2")
	m.whole(false)
}
