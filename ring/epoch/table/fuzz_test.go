package table

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

// FuzzDecode feeds bytes to Decode. What it takes, a table applies or refuses,
// and it can be written again.
func FuzzDecode(f *testing.F) {
	for _, c := range everyKind() {
		f.Add(c.Encode())
	}
	f.Add([]byte(`{"v":1,"id":"","begin":null,"tidy":{}}`))
	f.Add([]byte(`{"v":2,"id":"","tidy":{}}`))
	f.Add([]byte(`{"v":1,"id":"","tidy":{"new":1}}`))
	f.Add([]byte(`{"v":1,"id":"","flip":{"ends":[18446744073709551615,0,-1]}}`))
	f.Add([]byte(`{"v":1,"id":"","begin_split":{"split":{"id":105,"kind":"limit","key":"\xff","parts":[{"s":0,"w":65536},{"s":0,"w":1}]}}}`))
	f.Add([]byte(`{"v":1,"id":"","weigh":{"id":9,"home":{"node":"n1","inc":1},"expect":9,"weights":[0,65537]}}`))
	tables := []*Table{{}, made(), cluster(f, 2)}
	for phase := Opening; phase <= Closing; phase++ {
		tab, _ := splitTo(f, cluster(f, 2), phase)
		tables = append(tables, tab)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := Decode(b)
		if err != nil {
			if !errors.Is(err, ErrUnknown) {
				t.Fatalf("the error is %v", err)
			}
			return
		}
		again, err := Decode(c.Encode())
		if err != nil || !bytes.Equal(again.Encode(), c.Encode()) {
			t.Fatalf("%s, written again: %v", c.Kind(), err)
		}
		for _, tab := range tables {
			next, err := tab.Apply(c)
			if err == nil {
				err = next.Check()
			} else if errors.As(err, new(*Refused)) && next == tab {
				err = nil
			}
			if err != nil {
				t.Fatalf("%s: %v", c.Kind(), err)
			}
		}
	})
}

// FuzzRestore feeds bytes to Restore. What it takes passes Check, and can be
// used and written again.
func FuzzRestore(f *testing.F) {
	f.Add(small().Encode())
	f.Add(smallSplit().Encode())
	f.Add(smallCold().Encode())
	f.Add([]byte(`{"v":1,"epoch":9,"members":[],"splits":[{"id":9,"kind":"limit","key":"k","name":"","phase":1,"since":9,"weighed":9,"parts":[{"s":0,"w":1},{"s":0,"w":1}]}],"rows":[]}`))
	f.Add((&Table{}).Encode())
	f.Add(made().Encode())
	f.Add([]byte(`{"v":1,"cluster":"c","uid":"u","epoch":9,"members":[{"node":"n","inc":1,"hash_key":"` + strings.Repeat("k", 513) + `","phase":2,"since":1}],"rows":[]}`))
	f.Add([]byte(`{"v":1,"epoch":9,"members":[{"node":"n","inc":1,"hash_key":"k","phase":2,"since":1}],"rows":[{"e":1,"o":1,"b":1,"s":1,"h":1}]}`))
	f.Add([]byte(`{"v":1,"epoch":9,"members":[],"rows":[{"e":1,"o":-1,"s":1,"h":1}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		tab, err := Restore(b)
		if err != nil {
			return
		}
		if err := tab.Check(); err != nil {
			t.Fatal(err)
		}
		for _, h := range []uint64{0, 1 << 63, 1<<64 - 1} {
			tab.Owner(h)
			tab.Next(h)
			tab.WantedOwner(h)
			tab.MaySplit(h)
		}
		again, err := Restore(tab.Encode())
		if err != nil || !equal(again, tab) {
			t.Fatalf("written and read again: %v", err)
		}
		for _, c := range everyKind() {
			if next, err := tab.Apply(c); err == nil {
				if err := next.Check(); err != nil {
					t.Fatalf("%s: %v", c.Kind(), err)
				}
			}
		}
	})
}

// everyKind is a command of each kind, with all its fields set.
func everyKind() []Command {
	return []Command{
		{ID: "i1", Init: &Init{Cluster: "test", UID: "0123456789abcdef", Epoch: 23337811611, LeaseTTL: 2_000_000_000, LeaseMargin: 50_000_000, LockTTL: 600_000_000_000}},
		{ID: "i1b", Init: &Init{Cluster: "test", UID: "0123456789abcdef", Epoch: 23337811611, LeaseTTL: 2_000_000_000, Level: WindowLevel, IDWindow: 300_000_000_000}},
		{ID: "i2", Admit: &Admit{Member: Member{Node: "n1", Incarnation: 1 << 62, HashKey: "10.0.0.1:7400", GRPCAddr: "10.0.0.1:7400", RaftAddr: "10.0.0.1:7410", RaftID: "n1/0123456789abcdef", Version: "v1.2.3"}}},
		{ID: "i3", Begin: &Begin{[]Holder{{"n1", 3}, {"n2", 5}}}},
		{ID: "i4", Flip: &Flip{Transition: 7, WantSince: 6, From: Holder{"n1", 3}, To: Holder{"n2", 5}, Standby: Holder{"n1", 3}, Ends: []uint64{0, 1<<64 - 1}}},
		{ID: "i5", End: &End{7}},
		{ID: "i6", Remove: &Remove{Members: []Holder{{"n1", 3}}, Reason: "its lease is over"}},
		{ID: "i7", Compact: &Compact{}},
		{ID: "i8", Raise: &Raise{Above: 9}},
		{ID: "i8a", Raise: &Raise{Above: 9, To: 90}},
		{ID: "i9", Sync: &Sync{WantSince: 7, Owner: Holder{"n1", 3}, Standby: Holder{"n2", 5}, Rows: []Stamp{{After: 1<<64 - 1, End: 7, Since: 8}}}},
		{ID: "i10", Unsync: &Unsync{Owner: Holder{"n1", 3}, Standby: Holder{"n2", 5}, Ends: []uint64{7, 9}}},
		{ID: "i11", Drain: &Drain{Member: Holder{"n1", 3}, Undo: true}},
		{ID: "i11a", Drain: &Drain{Member: Holder{"n1", 3}, Stop: true}},
		{ID: "i12", Resume: &Resume{Old: 3, Member: Member{Node: "n1", Incarnation: 5, HashKey: "10.0.0.1:7400", GRPCAddr: "10.0.0.1:7400", RaftAddr: "10.0.0.1:7410", RaftID: "n1/0123456789abcdef", Version: "v2", Level: 2}}},
		{ID: "i13", EndGrace: &EndGrace{Owner: Holder{"n1", 3}, Rows: []Loss{{End: 1<<64 - 1, Lost: 7}}}},
		{ID: "i14", BeginSplit: &BeginSplit{Split{ID: 23337811612, Kind: "limit", Key: "k", Name: "logins", Manual: true, Reason: "by hand", Parts: []Part{{1<<32 - 1, FullWeight - 1}, {0, 1}}}}},
		{ID: "i15", OpenSplit: &OpenSplit{ID: 23337811612, Home: Holder{"n1", 3}, Base: -1 << 63}},
		{ID: "i16", Weigh: &Weigh{ID: 23337811612, Home: Holder{"n1", 3}, Expect: 23337811612, Weights: []uint32{1, FullWeight - 1}}},
		{ID: "i17", CloseSplit: &CloseSplit{ID: 23337811612, Reason: "it is not hot any more"}},
		{ID: "i18", EndSplit: &EndSplit{ID: 23337811612, Home: Holder{"n1", 3}, Since: 23337811613}},
		{ID: "i19", Adopt: &Adopt{Level: 3}},
		{ID: "i19b", Adopt: &Adopt{Level: WindowLevel, IDWindow: 300_000_000_000}},
		{ID: "i20", EndWait: &EndWait{}},
		{ID: "i21", Recover: &Recover{To: Holder{"n1", 5}, Of: Holder{"n1", 3}, Rows: []Stamp{{After: 1<<64 - 1, End: 7, Since: 8}}, Whole: true}},
		{ID: "i22", Forgo: &Forgo{Holders: []Holder{{"n1", 3}}, Reason: "by hand"}},
		{ID: "i23", Adopt: &Adopt{Level: DiskLevel, Durable: Entire}},
		{ID: "i24", Sync: &Sync{WantSince: 7, Owner: Holder{"n1", 3}, Standby: Holder{"n2", 5}, Rows: []Stamp{{After: 1<<64 - 1, End: 7, Since: 8}}, Kept: true}},
		{ID: "i25", Flip: &Flip{Transition: 7, WantSince: 6, From: Holder{"n1", 3}, To: Holder{"n2", 5}, Ends: []uint64{7}, Kept: true}},
	}
}

// small is a table with few rows, in which every field is set somewhere.
func small() *Table {
	a, b := member("n1", 1<<62), member("n2", 5)
	a.Phase, a.Since, b.Phase, b.Since = Active, 2, Joining, 4
	t := &Table{Cluster: "test", UID: "u", LockTTL: 600_000_000_000, Epoch: 9, WantSince: 5, Members: []Member{a, b}, Transition: &Transition{5, []string{"n1", "n2"}}, Rows: []Row{
		{End: 7, Owner: a.Holder(), Standby: b.Holder(), Synced: true, Since: 9, Held: 3, Lost: 3, Gone: 3},
		{End: 1 << 63, Owner: b.Holder(), Since: 8, Held: 8},
		{End: 1<<64 - 1, Since: 6, Held: 6, Lost: 6, Gone: 6, Grace: true},
	}}
	return t.finish()
}

// smallCold is small where disks count, in which every field of cold rows is set somewhere.
func smallCold() *Table {
	t := small()
	t.Level, t.Durable = DiskLevel, Always
	t.Rows[1] = Row{End: 1 << 63, Since: 8, Held: 8, Lost: 6, Gone: 2, Was: Holder{"n1", 1}, Stood: Holder{"n3", 5}, Grace: true}
	t.Rows[2] = Row{End: 1<<64 - 1, Since: 6, Held: 6, Was: Holder{"n3", 5}}
	return t.finish()
}

// smallSplit is small with splits, in which every field of one is set somewhere.
func smallSplit() *Table {
	t := small()
	t.Level = 2
	t.Splits = []Split{
		{ID: 3, Kind: "counter", Key: "k", Name: "hits", Phase: Closing, Since: 9, Weighed: 7, Base: -5, Manual: true, Reason: "by hand", Parts: []Part{{Salt: 7, Weight: 1}, {Salt: 0, Weight: FullWeight - 1}}},
		{ID: 8, Kind: "limit", Key: "k", Name: "hits", Phase: Opening, Since: 8, Weighed: 8, Parts: []Part{{Salt: 1, Weight: 1}, {Salt: 1<<32 - 1, Weight: 1}, {Salt: 9, Weight: 1}}},
	}
	t.divide()
	return t
}
