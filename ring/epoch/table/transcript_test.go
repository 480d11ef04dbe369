package table

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestFormats compares what is written to logs and snapshots with
// testdata/formats: both are read by other versions of the program.
//
//	command <kind>    a command of this kind, as the log has it
//	snapshot          a table, as a snapshot has it; with "splits", one that has some; with
//	                  "cold", one of which rows wait for disks
func TestFormats(t *testing.T) {
	datadriven.Walk(t, "testdata/formats", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "snapshot" {
				want := small()
				if d.HasArg("splits") {
					want = smallSplit()
				}
				if d.HasArg("cold") {
					want = smallCold()
				}
				if tab, err := Restore([]byte(d.Expected)); !d.Rewrite && (err != nil || !equal(tab, want)) {
					d.Fatalf(t, "the snapshot is not read as it was: %v", err)
				}
				return string(want.Encode())
			}
			i := slices.IndexFunc(everyKind(), func(c Command) bool { return c.Kind() == d.CmdArgs[0].Key })
			c := everyKind()[i]
			if read, err := Decode([]byte(d.Expected)); !d.Rewrite && (err != nil || string(read.Encode()) != string(c.Encode())) {
				d.Fatalf(t, "the command is not read as it was: %v", err)
			}
			return string(c.Encode())
		})
	})
}

// TestTranscripts runs testdata/transcripts: each file tells one story.
//
//	init [locks]                  made; it has agreed on how long locks last
//	admit n1/1 [level=2] [cold] | begin n1/1 n2/1 | end | compact | raise above=
//	resume n1/2 old=1 [cold] | endwait
//	adopt level=3                 a level, committed
//	flip n1/1 to n2/1 [standby n1/1] [most]  all rows that have to move; all but one
//	sync n1/1 n2/1                n2 stands by for all rows of n1 that it may hold
//	unsync n1/1 n2/1              n2 does not for any, be it that it did or not
//	drain n1/1 | undrain n1/1
//	endgrace n1/1                   the grace of all its rows is over
//	remove n1/1 n2/1
//	split k n1/1 n2/1             parts of the counter k, on these nodes
//	open n1/1 [base=5] | weigh n1/1 weights=(1,2) | close | whole n1/1
//	                              the split that began last, by this process as its home
//	again                         the last command, once more
//	late                          the last one that was written with the word later,
//	                              which is made at that place and not applied
//
// A node is written with its incarnation. What a table looks like comes after
// each; rows are summed up by owner. Rows without the standby that they should
// have are unprotected.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/transcripts", func(t *testing.T, path string) {
		s := &story{tab: &Table{}}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return s.run(t, d) })
	})
}

type story struct {
	tab        *Table
	last, kept Command
	split      uint64 // that began last
}

func (s *story) run(t *testing.T, d *datadriven.TestData) string {
	var named []Holder
	for _, a := range d.CmdArgs {
		node, inc, ok := strings.Cut(a.Key, "/")
		if ok {
			h := Holder{Node: node}
			if _, err := fmt.Sscan(inc, &h.Incarnation); err != nil {
				d.Fatalf(t, "%v", err)
			}
			named = append(named, h)
		}
	}
	switch {
	case d.Cmd == "late":
		s.last = s.kept
	case d.HasArg("later"):
		s.kept = s.command(t, d, named)
		return ""
	case d.Cmd != "again":
		s.last = s.command(t, d, named)
	}
	next, err := s.tab.Apply(s.last)
	if err != nil {
		return "refused: " + err.Error() + "\n"
	}
	if err := next.Check(); err != nil {
		d.Fatalf(t, "%v", err)
	}
	was := s.tab
	s.tab = next
	if c := s.last.BeginSplit; c != nil {
		s.split = c.Split.ID
	}
	return describe(was, next)
}

func (s *story) command(t *testing.T, d *datadriven.TestData, named []Holder) Command {
	id := uint64(0)
	if s.tab.Transition != nil {
		id = s.tab.Transition.ID
	}
	switch d.Cmd {
	case "init":
		c := &Init{Cluster: "test", UID: "u", Epoch: 100, LeaseTTL: 2e9, LeaseMargin: 5e7}
		if d.HasArg("locks") {
			c.LockTTL = 60e9
		}
		return Command{Init: c}
	case "admit":
		c := admit(named[0].Node, named[0].Incarnation)
		if d.HasArg("level") {
			d.ScanArgs(t, "level", &c.Admit.Member.Level)
		}
		c.Admit.Cold = d.HasArg("cold")
		return c
	case "begin":
		return Command{Begin: &Begin{named}}
	case "resume":
		c := &Resume{Member: member(named[0].Node, named[0].Incarnation), Cold: d.HasArg("cold")}
		c.Member.Level = Level
		d.ScanArgs(t, "old", &c.Old)
		return Command{Resume: c}
	case "endwait":
		return Command{EndWait: &EndWait{}}
	case "flip":
		f := &Flip{Transition: id, WantSince: s.tab.WantSince, From: named[0], To: named[1]}
		if len(named) > 2 {
			f.Standby = named[2]
		}
		for _, m := range s.tab.Moves() {
			if m.To == f.To && m.From == f.From {
				f.Ends = append(f.Ends, m.End)
			}
		}
		if d.HasArg("most") {
			f.Ends = f.Ends[1:]
		}
		return Command{Flip: f}
	case "sync":
		c := &Sync{WantSince: s.tab.WantSince, Owner: named[0], Standby: named[1]}
		for i, r := range s.tab.Rows {
			if after, upTo := s.tab.Segment(i); r.Owner == c.Owner && s.tab.MayHold(i, c.Standby) {
				c.Rows = append(c.Rows, Stamp{After: after, End: upTo, Since: r.Since})
			}
		}
		return Command{Sync: c}
	case "unsync":
		c := &Unsync{Owner: named[0], Standby: named[1]}
		for _, r := range s.tab.Rows {
			if r.Owner == c.Owner {
				c.Ends = append(c.Ends, r.End)
			}
		}
		return Command{Unsync: c}
	case "drain", "undrain":
		return Command{Drain: &Drain{Member: named[0], Undo: d.Cmd == "undrain"}}
	case "end":
		return Command{End: &End{id}}
	case "endgrace":
		return settling(s.tab, named[0])
	case "remove":
		return Command{Remove: &Remove{Members: named}}
	case "compact":
		return Command{Compact: &Compact{}}
	case "raise":
		var above uint64
		d.ScanArgs(t, "above", &above)
		return Command{Raise: &Raise{Above: above}}
	case "adopt":
		c := &Adopt{}
		d.ScanArgs(t, "level", &c.Level)
		return Command{Adopt: c}
	case "split", "open", "weigh", "close", "whole":
		return s.ofSplit(t, d, named)
	}
	d.Fatalf(t, "unknown command %s", d.Cmd)
	return Command{}
}

// describe tells what a table is, and who lost what to whom since another.
func describe(was, is *Table) string {
	var b strings.Builder
	fmt.Fprintf(&b, "epoch %d, %d rows", is.Epoch, len(is.Rows))
	if is.Transition != nil {
		fmt.Fprintf(&b, ", transition %d to %s, %d rows to move", is.Transition.ID, strings.Join(is.Transition.Want, " "), len(is.Moves()))
	}
	if n := is.Unprotected(); n > 0 {
		fmt.Fprintf(&b, ", %d unprotected", n)
	}
	if n := is.InGrace(); n > 0 {
		fmt.Fprintf(&b, ", %d in grace", n)
	}
	b.WriteString("\n")
	for _, m := range is.Members {
		fmt.Fprintf(&b, "  %s/%d %-7s owns %5.1f%%%s%s\n", m.Node, m.Incarnation, m.Phase, 100*is.Share(m.Node), standbys(is, m.Holder()), map[bool]string{true: ", has returned"}[m.Returned])
	}
	if share := is.Share(""); share > 0 {
		fmt.Fprintf(&b, "  nobody owns %.1f%%\n", 100*share)
	}
	describeSplits(&b, is)
	if len(was.Rows) == 0 {
		return b.String()
	}
	moved := map[string]float64{}
	for i, r := range is.Rows {
		if old := was.Rows[was.Find(r.End)]; old.Owner != r.Owner {
			how := ", state kept"
			if r.Lost == is.Epoch {
				how = ", state lost"
			} else if old.Owner.None() {
				how = ""
			}
			moved[fmt.Sprintf("%s → %s%s", cmp.Or(old.Owner.Node, "nobody"), cmp.Or(r.Owner.Node, "nobody"), how)] += is.width(i)
		}
	}
	for _, m := range slices.Sorted(maps.Keys(moved)) {
		fmt.Fprintf(&b, "  %.1f%%: %s\n", 100*moved[m], m)
	}
	return b.String()
}

// standbys returns for whom a member stands by.
func standbys(t *Table, h Holder) string {
	sum := 0.0
	for i, r := range t.Rows {
		if r.Standby == h && r.Synced {
			sum += t.width(i)
		}
	}
	if sum == 0 {
		return ""
	}
	return fmt.Sprintf(", stands by for %.1f%%", 100*sum)
}
