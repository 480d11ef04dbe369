package node

import (
	"slices"
	"testing"

	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/ring/epoch/serving"
	"github.com/keystead/keystead/ring/epoch/table"
)

// TestNextEpochIsAgreedOnInTime: before the tokens of an epoch are used up, the next one is agreed
// on, once; a node whose table is ahead has it already.
func TestNextEpochIsAgreedOnInTime(t *testing.T) {
	tab, err := (&table.Table{}).Apply(table.Command{Init: &table.Init{Cluster: "c", Epoch: 7}})
	if err != nil {
		t.Fatal(err)
	}
	r := serving.New(table.Holder{Node: "n1", Incarnation: 1})
	r.Learn(tab)
	var raised []uint64
	var rule owner.Foresight = &inCluster{rule: r, raise: func(above uint64) { raised = append(raised, above) }}
	for _, epoch := range []uint64{6, 7, owner.MaxEpoch} {
		rule.Ending(epoch)
	}
	if !slices.Equal(raised, []uint64{7}) {
		t.Errorf("raised above %d", raised)
	}
}
