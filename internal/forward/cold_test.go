package forward

import (
	"strings"
	"testing"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/tests/agreed"
	"github.com/keystead/keystead/ring/epoch/table"
)

// TestNobodyHasIt: a call about a key whose row waits for a disk is told for which one.
func TestNobodyHasIt(t *testing.T) {
	c := agreed.New(t, 100, agreed.Numbered(2, table.DiskLevel)...)
	c.Must(table.Command{Adopt: &table.Adopt{Level: table.DiskLevel, Durable: table.Always}})
	n1, n2 := agreed.Nth(1), agreed.Nth(2)
	row := &c.Table().Rows[0]
	owner, standby := row.Owner, n1
	if owner == n1 {
		standby = n2
	}
	after, upTo := c.Table().Segment(0)
	c.Must(table.Command{Sync: &table.Sync{WantSince: c.Table().WantSince, Owner: owner, Standby: standby, Kept: true, Rows: []table.Stamp{{After: after, End: upTo, Since: row.Since}}}})
	says := func(hash uint64, want string) {
		t.Helper()
		err := noOwner(c.Table(), hash)
		if failure.ReasonOf(err) != failure.Unavailable || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	says(upTo, "it is being handed over")
	c.Must(table.Command{Remove: &table.Remove{Members: []table.Holder{n1, n2}}})
	says(upTo, "on the disk of "+owner.Node+" or "+standby.Node+", which has died")
	says(c.Table().Rows[1].End, "on the disk of "+c.Table().Rows[1].Was.Node+", which has died")
	c.Must(table.Command{Forgo: &table.Forgo{Holders: []table.Holder{n1, n2}}})
	says(upTo, "it is being handed over")
}
