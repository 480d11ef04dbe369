package rpc

import (
	"github.com/keystead/keystead/ring/epoch/table"

	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
)

// wireSplit is a split as it travels.
func wireSplit(t *table.Table, s *table.Split) *clusterpb.Split {
	w := &clusterpb.Split{Id: s.ID, Kind: wireKind(s.Kind), Key: s.Key, Name: s.Name, Phase: splitPhases[s.Phase], Since: s.Since, Manual: s.Manual, Reason: s.Reason,
		Parts: make([]*clusterpb.SplitPart, len(s.Parts))}
	for i, p := range s.Parts {
		w.Parts[i] = &clusterpb.SplitPart{Hash: s.PartHash(i), Share: float64(p.Weight) / table.FullWeight, Owner: partOwner(t, s, i)}
	}
	return w
}

// partOwner returns the node that owns a part; "" if none does.
func partOwner(t *table.Table, s *table.Split, i int) string {
	m, _, _ := t.Owner(s.PartHash(i))
	return m.Node
}

// wireSplitChange returns what turns the splits of a table into those of a later one.
func wireSplitChange(from, to *table.Table) (changed []*clusterpb.Split, merged []uint64) {
	for i := range from.Splits {
		if _, ok := to.SplitOf(from.Splits[i].ID); !ok {
			merged = append(merged, from.Splits[i].ID)
		}
	}
	for i := range to.Splits {
		s := &to.Splits[i]
		if was, ok := from.SplitOf(s.ID); !ok || splitDiffers(from, was, to, s) {
			changed = append(changed, wireSplit(to, s))
		}
	}
	return changed, merged
}

// splitDiffers reports whether two splits of one id differ in what travels of them.
func splitDiffers(from *table.Table, was *table.Split, to *table.Table, s *table.Split) bool {
	if was.Phase != s.Phase || was.Since != s.Since || was.Manual != s.Manual || was.Reason != s.Reason || len(was.Parts) != len(s.Parts) {
		return true
	}
	for i, p := range s.Parts {
		if was.Parts[i] != p ||
			partOwner(from, was, i) != partOwner(to, s, i) { //guard:split-told-owner
			return true
		}
	}
	return false
}

// wireSplits returns all splits of a table.
func wireSplits(t *table.Table) []*clusterpb.Split {
	if len(t.Splits) == 0 {
		return nil
	}
	w := make([]*clusterpb.Split, len(t.Splits))
	for i := range t.Splits {
		w[i] = wireSplit(t, &t.Splits[i])
	}
	return w
}

// splitPhases are the phases of a split as the API has them.
var splitPhases = map[table.SplitPhase]clusterpb.SplitPhase{
	table.Opening: clusterpb.SplitPhase_SPLIT_PHASE_OPENING, table.Open: clusterpb.SplitPhase_SPLIT_PHASE_OPEN,
	table.Closing: clusterpb.SplitPhase_SPLIT_PHASE_CLOSING,
}
