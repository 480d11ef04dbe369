package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/keystead/keystead/internal/cli/replay"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
)

const (
	// partsInLine is how many parts a line names, of the up to 64 that there may be.
	partsInLine = 6
	// reasonText is how many characters of the reason for a split are shown.
	reasonText = 200
)

const (
	kindLimit   = "limit"
	kindCounter = "counter"

	byHand = "by hand" // the reason of a split by command, as nodes write it
)

// splitJSON is a split, as `hot split --json` prints it.
type splitJSON struct {
	Key  string `json:"key"`
	Name string `json:"name"`
	Kind string `json:"kind"`
	hotSplitJSON
}

type hotSplitJSON struct {
	ID     string        `json:"id"`    // epoch in which it was split
	Phase  string        `json:"phase"` // opening, open or closing
	Since  string        `json:"since"` // epoch in which the phase began
	Manual bool          `json:"manual"`
	Reason string        `json:"reason"`
	Parts  []hotPartJSON `json:"parts"`
}

type hotPartJSON struct {
	Part       int      `json:"part"`
	Owner      string   `json:"owner"`
	LimitShare float64  `json:"limit_share"` // of what the limit has
	Rate       *float64 `json:"rate,omitempty"`
	Sure       *float64 `json:"sure,omitempty"`
	Share      *float64 `json:"share,omitempty"` // of what its owner does
}

func newSplitJSON(s *clusterpb.Split) hotSplitJSON {
	v := hotSplitJSON{
		ID: strconv.FormatUint(s.GetId(), 10), Phase: word(s.GetPhase(), "SPLIT_PHASE_"), Since: strconv.FormatUint(s.GetSince(), 10),
		Manual: s.GetManual(), Reason: s.GetReason(), Parts: []hotPartJSON{},
	}
	for i, p := range s.GetParts() {
		v.Parts = append(v.Parts, hotPartJSON{Part: i, Owner: p.GetOwner(), LimitShare: p.GetShare()})
	}
	return v
}

// hotObject names what is counted.
type hotObject struct{ kind, key, name string }

func (k *hotKeyJSON) object() hotObject { return hotObject{k.Kind, k.Key, k.Name} }

// unite merges the entries of a split object into one. Its rate is the sum of those of its
// parts, and of what is left of the time when the object was whole.
func (v *hotJSON) unite() {
	apart := map[hotObject]*hotUnited{}
	for _, s := range v.splits {
		split := newSplitJSON(s)
		kind := word(s.Kind, "KIND_")
		apart[hotObject{kind, s.Key, s.Name}] = &hotUnited{key: hotKeyJSON{Key: s.Key, Name: s.Name, Kind: kind, Split: &split}}
	}
	for _, k := range v.Keys { // parts of splits that the latest table does not have, or no longer has
		if o := k.object(); k.of > 0 && apart[o] == nil {
			apart[o] = &hotUnited{key: hotKeyJSON{Key: k.Key, Name: k.Name, Kind: k.Kind}}
		}
	}
	var keys []hotKeyJSON
	for _, k := range v.Keys {
		if u := apart[k.object()]; u != nil {
			u.add(k)
		} else {
			keys = append(keys, k)
		}
	}
	for _, u := range apart {
		keys = append(keys, u.sum(v.Nodes))
		v.again += max(u.hot-1, 0)
	}
	v.Keys = append([]hotKeyJSON{}, keys...)
}

// hotUnited gathers the entries of a split object.
type hotUnited struct {
	key   hotKeyJSON
	hot   int      // entries that are hot
	nodes []string // that sent an entry of it
}

// add merges an entry: of a part, or of the whole object.
func (u *hotUnited) add(k hotKeyJSON) {
	u.nodes = append(u.nodes, k.Owner)
	u.key.Rate, u.key.Sure = u.key.Rate+k.Rate, u.key.Sure+k.Sure
	if k.Hot {
		u.hot++
		u.key.Hot, u.key.HotFor = true, max(u.key.HotFor, k.HotFor)
	}
	if u.key.Split == nil || k.of != len(u.key.Split.Parts) || k.part >= k.of {
		return
	}
	if p := &u.key.Split.Parts[k.part]; p.Rate == nil || p.Owner == k.Owner { // the owner before may still count it
		p.Rate, p.Sure, p.Share = &k.Rate, &k.Sure, &k.Share
	}
}

// sum returns the entry of the object. Its share is of the total of all nodes with parts of it.
func (u *hotUnited) sum(nodes []hotNodeJSON) hotKeyJSON {
	if u.key.Split != nil {
		for _, p := range u.key.Split.Parts {
			u.nodes = append(u.nodes, p.Owner)
		}
	}
	all := 0.0
	for _, n := range nodes {
		if slices.Contains(u.nodes, n.ID) {
			all += n.Rate
		}
	}
	if all > 0 {
		u.key.Share = min(u.key.Rate/all, 1)
	}
	return u.key
}

// rows returns the lines of an object: one, and with parts one more for each of them.
func (k *hotKeyJSON) rows(parts bool) []hotRow {
	owner := k.Owner
	if k.Split != nil {
		owner = k.Split.owners()
	}
	rows := []hotRow{{
		replay.Printable(k.Key, hotText), orDash(replay.Printable(k.Name, hotText)), k.Kind, orDash(owner),
		perSecond(k.Rate), percent(k.Share), k.queue(), k.state(parts),
	}}
	if k.Split == nil || !parts {
		return rows
	}
	for _, p := range k.Split.Parts {
		r := hotRow{"  part " + strconv.Itoa(p.Part), "", "", p.owner(), "-", "-"}
		if p.Rate != nil {
			r[hotRate], r[hotRate+1] = perSecond(*p.Rate), percent(*p.Share)
		}
		if k.Kind == kindLimit {
			r[hotColumns-1] = percent(p.LimitShare) + " of the limit"
		}
		rows = append(rows, r)
	}
	return rows
}

// owners returns where the parts are: on which node, or on how many.
func (s *hotSplitJSON) owners() string {
	var owners []string
	for i := range s.Parts {
		owners = append(owners, s.Parts[i].owner())
	}
	slices.Sort(owners)
	if owners = slices.Compact(owners); len(owners) == 1 {
		return owners[0]
	}
	return plural(len(owners), "node")
}

func (p *hotPartJSON) owner() string {
	if p.Owner == "" {
		return "nobody"
	}
	return p.Owner
}

// text describes the split of an object: with its parts, or with the reason if these are
// shown elsewhere.
func (s *hotSplitJSON) text(kind string, elsewhere bool) string {
	text := plural(len(s.Parts), "part")
	if s.Phase != "open" {
		text = replay.Printable(s.Phase, hotText) + " " + text
	}
	if s.Manual {
		text += " " + byHand
	}
	switch {
	case !elsewhere:
		text += ": " + s.list(kind)
	case s.Reason != "" && (!s.Manual || s.Reason != byHand):
		text += ": " + replay.Printable(s.Reason, reasonText)
	}
	return text
}

// list names the owners of the parts, and what each may spend of a limit.
func (s *hotSplitJSON) list(kind string) string {
	var parts []string
	for i := range s.Parts {
		p := &s.Parts[i]
		if i == partsInLine && len(s.Parts) > partsInLine+1 {
			parts = append(parts, fmt.Sprintf("and %d more", len(s.Parts)-i))
			break
		}
		text := p.owner()
		if kind == kindLimit {
			text += " " + percent(p.LimitShare)
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}
