package table

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/keystead/keystead/ring"
)

// snapshot is how a table is written down. Rows name members by their place, so
// that a row takes about 60 bytes.
type snapshot struct {
	Version    int           `json:"v"`
	Cluster    string        `json:"cluster"`
	UID        string        `json:"uid"`
	TTL        int64         `json:"lease_ttl"`
	Margin     int64         `json:"lease_margin"`
	LockTTL    int64         `json:"lock_ttl,omitempty"`
	IDWindow   int64         `json:"id_window,omitempty"`
	Durable    Durability    `json:"durable,omitempty"` // DiskLevel
	Epoch      uint64        `json:"epoch"`
	WantSince  uint64        `json:"want_since"`
	Level      uint32        `json:"level,omitempty"`
	Members    []Member      `json:"members"`
	Transition *Transition   `json:"transition,omitempty"`
	Splits     []Split       `json:"splits,omitempty"`
	Dead       []Holder      `json:"dead,omitempty"` // that cold rows name. DiskLevel
	Rows       []snapshotRow `json:"rows"`
	Policies   *Policies     `json:"policies,omitempty"` // PoliciesLevel
}

type snapshotRow struct {
	End     uint64 `json:"e"`
	Owner   int    `json:"o,omitempty"` // place among the members, from 1; 0 = nobody
	Standby int    `json:"b,omitempty"`
	Synced  bool   `json:"y,omitempty"`
	Since   uint64 `json:"s"`
	Held    uint64 `json:"h"`
	Lost    uint64 `json:"l,omitempty"`
	Grace   bool   `json:"g,omitempty"`
	Unsure  bool   `json:"i,omitempty"`
	Partly  uint64 `json:"p,omitempty"` // by how many epochs Gone is before Lost; this and those that follow: DiskLevel
	Was     int    `json:"w,omitempty"` // place among the dead, from 1; 0 = nobody
	Stood   int    `json:"d,omitempty"`
}

// Encode writes the table down.
func (t *Table) Encode() []byte { return t.EncodeWith(nil) }

// EncodeWith writes the table down, and policies unless they are nil.
func (t *Table) EncodeWith(p *Policies) []byte {
	s := snapshot{Policies: p, Version: Version, Cluster: t.Cluster, UID: t.UID, TTL: t.LeaseTTL, Margin: t.LeaseMargin, LockTTL: t.LockTTL, IDWindow: t.IDWindow, Durable: t.Durable, Epoch: t.Epoch, WantSince: t.WantSince, Level: t.Level, Members: t.Members, Transition: t.Transition, Splits: t.Splits}
	place := func(h Holder) int {
		if h.None() {
			return 0
		}
		i, _ := t.member(h.Node)
		return i + 1
	}
	dead := map[Holder]int{}
	deadPlace := func(h Holder) int {
		if h.None() {
			return 0
		}
		if dead[h] == 0 {
			s.Dead = append(s.Dead, h)
			dead[h] = len(s.Dead)
		}
		return dead[h]
	}
	for _, r := range t.Rows {
		s.Rows = append(s.Rows, snapshotRow{r.End, place(r.Owner), place(r.Standby), r.Synced, r.Since, r.Held, r.Lost, r.Grace, r.Unsure, r.Lost - r.Gone, deadPlace(r.Was), deadPlace(r.Stood)})
	}
	b, err := json.Marshal(s)
	if err != nil {
		panic("table: " + err.Error()) // nothing in it can fail
	}
	return b
}

// Restore reads a table that was written down.
func Restore(b []byte) (*Table, error) {
	t, _, err := RestoreWith(b)
	return t, err
}

// RestoreWith reads a table that was written down, and the policies with it, nil if there
// were none.
func RestoreWith(b []byte) (*Table, *Policies, error) {
	var s snapshot
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return nil, nil, fmt.Errorf("a snapshot of the table is damaged: %w", err)
	}
	if s.Version != Version {
		return nil, nil, fmt.Errorf("a snapshot of the table has version %d, and this program knows %d: upgrade it", s.Version, Version)
	}
	t := &Table{Cluster: s.Cluster, UID: s.UID, LeaseTTL: s.TTL, LeaseMargin: s.Margin, LockTTL: s.LockTTL, IDWindow: s.IDWindow, Durable: s.Durable, Epoch: s.Epoch, WantSince: s.WantSince, Level: s.Level, Members: s.Members, Transition: s.Transition, Splits: s.Splits}
	for _, r := range s.Rows {
		if max(r.Owner, r.Standby) > len(t.Members) || min(r.Owner, r.Standby) < 0 {
			return nil, nil, fmt.Errorf("a snapshot of the table is damaged: the segment that ends at %d belongs to member %d of %d", r.End, r.Owner, len(t.Members))
		}
		if max(r.Was, r.Stood) > len(s.Dead) || min(r.Was, r.Stood) < 0 || r.Partly > r.Lost {
			return nil, nil, fmt.Errorf("a snapshot of the table is damaged: the segment that ends at %d waits for process %d or %d of %d", r.End, r.Was, r.Stood, len(s.Dead))
		}
		row := Row{End: r.End, Synced: r.Synced, Since: r.Since, Held: r.Held, Lost: r.Lost, Gone: r.Lost - r.Partly, Grace: r.Grace, Unsure: r.Unsure}
		if r.Was > 0 {
			row.Was = s.Dead[r.Was-1]
		}
		if r.Stood > 0 {
			row.Stood = s.Dead[r.Stood-1]
		}
		if r.Owner > 0 {
			row.Owner = t.Members[r.Owner-1].Holder()
		}
		if r.Standby > 0 {
			row.Standby = t.Members[r.Standby-1].Holder()
		}
		t.Rows = append(t.Rows, row)
	}
	if err := t.Check(); err != nil {
		return nil, nil, fmt.Errorf("a snapshot of the table is damaged: %w", err)
	}
	if s.Policies != nil && (s.Policies.Version == 0 || len(s.Policies.Packed) > MaxPacked) {
		return nil, nil, fmt.Errorf("a snapshot of the table is damaged: policies of version %d with %d bytes", s.Policies.Version, len(s.Policies.Packed))
	}
	t.divide()
	return t.finish(), s.Policies, nil
}

// Check says what is wrong with a table; every table that Apply makes is right.
func (t *Table) Check() error {
	if t.LeaseTTL < 0 || t.LeaseMargin < 0 || t.LockTTL < 0 {
		return fmt.Errorf("a lease of %d ns with a margin of %d ns, and locks of %d ns at most", t.LeaseTTL, t.LeaseMargin, t.LockTTL)
	}
	if why := windowFor(t.IDWindow, t.Level); why != nil {
		return why
	}
	if t.Durable > Entire || t.Durable != Undurable && !t.Uses(DiskLevel) {
		return fmt.Errorf("durability %d at level %d", t.Durable, t.Level)
	}
	if !slices.IsSortedFunc(t.Members, func(a, b Member) int { return cmp.Or(cmp.Compare(a.Node, b.Node), -1) }) {
		return fmt.Errorf("the members are not in order")
	}
	keys := map[string]bool{}
	for _, m := range t.Members {
		if m.Node == "" || m.Incarnation == 0 || m.HashKey == "" || len(m.HashKey) > ring.MaxHashKey || keys[m.HashKey] || m.Phase < Joining || m.Phase > Drained || m.Since > t.Epoch {
			return fmt.Errorf("the member %q is not whole", m.Node)
		}
		keys[m.HashKey] = true
	}
	for i, r := range t.Rows {
		switch {
		case i > 0 && r.End <= t.Rows[i-1].End:
			return fmt.Errorf("the rows are not in order at %d", i)
		case !r.Owner.None() && !t.Holds(r.Owner), !r.Standby.None() && !t.Holds(r.Standby):
			return fmt.Errorf("row %d names a process that is not a member", i)
		case !r.Standby.None() && (r.Owner == r.Standby || r.Owner.None()), r.Synced && r.Standby.None():
			return fmt.Errorf("row %d has no proper standby", i)
		case r.Since > t.Epoch, r.Lost > t.Epoch, t.WantSince > t.Epoch, r.Held > r.Since, r.Lost > r.Held:
			return fmt.Errorf("row %d is of a later epoch than %d", i, t.Epoch)
		case r.Gone > r.Lost, t.Durable == Undurable && r.Gone != r.Lost:
			return fmt.Errorf("row %d was lost in epoch %d, and as a whole in %d", i, r.Lost, r.Gone)
		case t.checkCold(&r) != nil:
			return fmt.Errorf("row %d: %w", i, t.checkCold(&r))
		case r.Grace && (r.Lost == 0 || t.LockTTL == 0):
			return fmt.Errorf("row %d is in grace, and nothing of it can be held elsewhere", i)
		case r.Unsure && (r.Lost == 0 || t.IDWindow == 0):
			return fmt.Errorf("ids of row %d are unsure, and none were lost", i)
		}
	}
	//guard:split-restored t.checkSplits() -> error(nil)
	if err := t.checkSplits(); err != nil || t.Transition == nil {
		return err
	}
	if len(t.Transition.Want) == 0 || t.Transition.ID > t.Epoch || !slices.IsSorted(t.Transition.Want) {
		return fmt.Errorf("the transition is not whole")
	}
	for _, n := range t.Transition.Want {
		if _, ok := t.Member(n); !ok {
			return fmt.Errorf("the transition wants %q, which is not a member", n)
		}
	}
	return nil
}
