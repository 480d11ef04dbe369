package cli

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/keystead/keystead/internal/health"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
)

// statusOf is a healthy cluster of n nodes as the first of them sees it, of
// which at most three vote.
func statusOf(n int) (*clusterpb.GetStatusResponse, []*clusterpb.MemberStatus) {
	ids := names(n)
	st := &clusterpb.GetStatusResponse{
		Id: "n01", Incarnation: 1882445566738848251, Version: "1.0", Cluster: "prod", Epoch: 23340234121, LeaseLeftNs: int64(1500 * time.Millisecond),
		Leader: "n01", Rows: uint32(256 * n), Members: uint32(n), UptimeNs: int64(time.Hour), Serving: true,
		GrpcAddr: "10.0.0.1:7400", RaftAddr: "10.0.0.1:7401", GossipAddr: "10.0.0.1:7402",
		Phase: clusterpb.Phase_PHASE_ACTIVE, RowsOwned: 256, RowsStandby: 250,
	}
	var members []*clusterpb.MemberStatus
	for i, id := range ids {
		m := &clusterpb.MemberStatus{Id: id, Gossip: clusterpb.Gossip_GOSSIP_ALIVE, GossipAddr: id + ":7402", Raft: clusterpb.Raft_RAFT_VOTER, OwnedShare: 1 / float64(n), RowsOwned: 256, RowsStandby: 250,
			Member: &clusterpb.Member{Id: id, Incarnation: 1882445566738848251, HashKey: hashKey(id), GrpcAddr: hashKey(id), RaftAddr: id + ":7401", Phase: clusterpb.Phase_PHASE_ACTIVE, Version: "1.0"}}
		switch {
		case i == 0:
			m.Raft = clusterpb.Raft_RAFT_LEADER
		case i > 2 || n == 2:
			m.Raft = clusterpb.Raft_RAFT_NONVOTER
		}
		if m.Raft != clusterpb.Raft_RAFT_NONVOTER {
			st.Voters = append(st.Voters, id)
		}
		members = append(members, m)
	}
	return st, members
}

func TestHealth(t *testing.T) {
	type (
		answer  = *clusterpb.GetStatusResponse
		members = []*clusterpb.MemberStatus
	)
	for _, tc := range []struct {
		name   string
		nodes  int
		want   int // active members
		change func(st answer, m members)
		says   string // all problems, each followed by ";"
		warns  string
		alarms bool // a warning is told by the exit code
	}{
		{name: "healthy", nodes: 3, want: 3},
		{name: "five", nodes: 5},
		{name: "one", nodes: 1, warns: "the death of one node stops the cluster;"},
		{name: "two", nodes: 2, warns: "the death of one node stops the cluster;"},
		{name: "alone", nodes: 1, want: 1, change: func(st answer, m members) {
			st.Cluster, st.Leader, st.Voters, st.LeaseLeftNs, m[0].Gossip, m[0].Raft = "", "", nil, 0, 0, 0
		}},
		{name: "too few", nodes: 3, want: 4, says: "3 active members, not 4;"},
		{name: "too many", nodes: 3, want: 2, says: "3 active members, not 2;"},
		{name: "no leader", nodes: 3, change: func(st answer, m members) { st.Leader, m[0].Raft = "", clusterpb.Raft_RAFT_VOTER }, says: "n01 knows no leader;"},
		{name: "no lease", nodes: 3, change: func(st answer, _ members) { st.LeaseLeftNs, st.Serving = 0, false }, says: "n01 does not serve: it has no lease;"},
		{name: "cut off", nodes: 3, change: func(st answer, _ members) { st.LeaseLeftNs, st.Serving, st.Leader = 0, false, "" },
			says: "n01 knows no leader;n01 does not serve: it has no lease;"},
		{name: "not admitted", nodes: 3, change: func(st answer, _ members) { st.Serving, st.Incarnation = false, 1 }, says: "n01 does not serve: it is no member of the table;"},
		{name: "no ring", nodes: 3, change: func(st answer, _ members) { st.Rows = 0 }, says: "there is no ring yet: nobody owns anything;"},
		{name: "unowned", nodes: 3, change: func(st answer, _ members) { st.RowsUnowned = 12 }, says: "12 of 768 rows have no owner;"},
		{name: "changing", nodes: 3, change: func(st answer, m members) {
			st.Changing, st.RowsToMove, m[2].Member.Phase = true, 212, clusterpb.Phase_PHASE_JOINING
		}, says: "the ring changes: 212 of 768 rows left to move;"},
		{name: "changed", nodes: 3, change: func(st answer, _ members) { st.Changing = true }, says: "the ring changes: all rows have moved;"},
		{name: "elsewhere", nodes: 3, change: func(st answer, _ members) { st.RowsToMove = 2 }, says: "2 of 768 rows are not where the ring wants them;"},
		{name: "joining", nodes: 4, want: 3, change: func(_ answer, m members) { m[3].Member.Phase = clusterpb.Phase_PHASE_JOINING }, says: "n04 joins, and owns nothing yet;"},
		{name: "leaving", nodes: 4, change: func(_ answer, m members) { m[3].Member.Phase = clusterpb.Phase_PHASE_LEAVING }, says: "n04 is to be drained;"},
		{name: "drained", nodes: 4, want: 3, change: func(_ answer, m members) { m[3].Member.Phase = clusterpb.Phase_PHASE_DRAINED }, warns: "n04 is drained, and is given nothing;"},
		{name: "no copies", nodes: 3, change: func(st answer, _ members) { st.RowsUnprotected = 12 }, warns: "12 of 768 rows have no copy yet where the ring wants it: the death of their owner would lose them;"},
		{name: "unknown to gossip", nodes: 4, change: func(_ answer, m members) { m[3].Gossip = 0 }, says: "n04 is a member, and gossip does not know it;"},
		{name: "failed nonvoter", nodes: 4, change: func(_ answer, m members) { m[3].Gossip = clusterpb.Gossip_GOSSIP_FAILED }, says: "n04 is gone (gossip: failed);"},
		{name: "failed voter", nodes: 3, change: func(_ answer, m members) { m[2].Gossip = clusterpb.Gossip_GOSSIP_FAILED },
			says: "n03 is gone (gossip: failed);one more death stops the cluster: of 3 voters, n03 is gone;"},
		{name: "removed before gossip knows", nodes: 3, change: func(_ answer, m members) { m[2].Member = nil },
			says: "one more death stops the cluster: of 3 voters, n03 is gone;"},
		{name: "one of five voters", nodes: 5, change: func(st answer, m members) {
			st.Voters, m[4].Gossip, m[4].Member = names(5), clusterpb.Gossip_GOSSIP_FAILED, nil
			m[4].Raft = clusterpb.Raft_RAFT_VOTER
		}, warns: "n05 may vote and is gone;"},
		{name: "replaced", nodes: 4, change: func(_ answer, m members) {
			m[3].Gossip, m[3].Member, m[3].Raft = clusterpb.Gossip_GOSSIP_FAILED, nil, 0
		},
			warns: "n04 has failed; others own what it owned;"},
		{name: "one voter left", nodes: 3, change: func(st answer, m members) {
			st.Voters, m[1].Raft = names(1), clusterpb.Raft_RAFT_NONVOTER
			m[2].Gossip, m[2].Member, m[2].Raft = clusterpb.Gossip_GOSSIP_FAILED, nil, 0
		}, says: "one more death stops the cluster: it has 1 voter left;", warns: "n03 has failed; others own what it owned;"},
		{name: "no votes yet", nodes: 3, change: func(st answer, m members) {
			st.Voters, m[1].Raft, m[2].Raft = names(1), clusterpb.Raft_RAFT_NONVOTER, clusterpb.Raft_RAFT_NONVOTER
		}, says: "one death stops the cluster: it has only 1 voter;"},
		{name: "a majority gone", nodes: 3, change: func(st answer, m members) {
			st.Leader, m[0].Raft, m[1].Gossip, m[1].Member, m[2].Gossip, m[2].Member = "", clusterpb.Raft_RAFT_VOTER, clusterpb.Gossip_GOSSIP_LEFT, nil, clusterpb.Gossip_GOSSIP_FAILED, nil
		}, says: "n01 knows no leader;the cluster has stopped: of 3 voters, n02, n03 are gone;"},
		{name: "waiting", nodes: 1, change: func(st answer, m members) {
			st.Waiting, st.Leader, st.Voters, st.Rows, st.Serving, m[0].Member = "waiting for founders n02, n03", "", nil, 0, false, nil
		}, says: `n01 is no member of the cluster "prod" yet: waiting for founders n02, n03;`},
		{name: "cold", nodes: 3, change: func(st answer, m members) {
			st.RowsUnowned, st.RowsCold, m[2].Gossip = 200, 200, clusterpb.Gossip_GOSSIP_FAILED
			m[2].Member = nil
			st.Awaited = []*clusterpb.AwaitedDisk{{Node: "n03", Incarnation: 7, Rows: 150, RowsAlone: 100, WaitingNs: 61e9}, {Node: "n02", Incarnation: 9, Rows: 50, RowsAlone: 50}}
		}, says: "150 of 768 rows wait for the disk of n03 (its process 7), which this node has known for 1m1s; 50 of them would do with another one;" +
			"50 of 768 rows wait for the disk of n02 (its process 9), which this node has known for 0s;one more death stops the cluster: of 3 voters, n03 is gone;"},
		{name: "cold, and more without an owner", nodes: 3, change: func(st answer, _ members) {
			st.RowsUnowned, st.RowsCold = 210, 200
		}, says: "10 of 768 rows have no owner;200 of 768 rows wait for a disk;"},
		{name: "in grace", nodes: 3, change: func(st answer, _ members) { st.RowsInGrace = 244 },
			warns: "the state of 244 of 768 rows was lost, and no locks of them are granted yet;", alarms: true},
		{name: "in grace after a loss of a part", nodes: 3, change: func(st answer, _ members) { st.RowsInGrace, st.RowsInGraceInPart = 244, 240 },
			warns: "the state of 4 of 768 rows was lost, and no locks of them are granted yet;240 of 768 rows went on from a disk, what was answered last may be lost, and no locks of them are granted yet;", alarms: true},
		{name: "warned by the node", nodes: 3, change: func(st answer, _ members) {
			st.Warnings = []*clusterpb.Warning{{Problem: "the disk is full", Hint: "make room"}}
		}, warns: "the disk is full;", alarms: true},
		{name: "a stranger that gossips", nodes: 3, change: func(_ answer, m members) {}, says: ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			st, members := statusOf(tc.nodes)
			if tc.change != nil {
				tc.change(st, members)
			}
			if tc.name == "a stranger that gossips" {
				members = append(members, &clusterpb.MemberStatus{Id: "agent", Gossip: clusterpb.Gossip_GOSSIP_ALIVE})
			}
			o := newOverview(st, members, tc.want)
			if got := problems(t, o.Problems); got != tc.says {
				t.Errorf("problems %q, want %q", got, tc.says)
			}
			if got := problems(t, o.Warnings); got != tc.warns {
				t.Errorf("warnings %q, want %q", got, tc.warns)
			}
			if o.alarmed != tc.alarms {
				t.Errorf("alarmed: %v", o.alarmed)
			}
			if o.Healthy != (tc.says == "") {
				t.Errorf("healthy: %v", o.Healthy)
			}
		})
	}
}

func problems(t *testing.T, list []health.Finding) string {
	text := ""
	for _, f := range list {
		text += f.Problem + ";"
		if f.Hint == "" {
			t.Errorf("no hint: %s", f.Problem)
		}
	}
	return text
}

func TestStatusText(t *testing.T) {
	text := func(n int, change func(*clusterpb.GetStatusResponse, []*clusterpb.MemberStatus)) string {
		st, members := statusOf(n)
		change(st, members)
		var out strings.Builder
		if err := newOverview(st, members, 0).print(&out, "127.0.0.1:7400", canvas{width: plainWidth}); err != nil {
			t.Error(err)
		}
		return out.String()
	}
	for _, tc := range []struct{ name, got, want string }{
		{"healthy", text(4, func(*clusterpb.GetStatusResponse, []*clusterpb.MemberStatus) {}), `
Cluster  prod, as n01 sees it
Health   healthy
Epoch    23340234121
Rows     1024, all where the ring wants them
Leader   n01
Voters   n01, n02, n03; 1 may die
Node     n01: serves, lease for 1.5s, owns 256 rows and stands by for 250, up 1h0m0s, version 1.0
API      10.0.0.1:7400
Raft     10.0.0.1:7401
Gossip   10.0.0.1:7402

MEMBER  PHASE   SHARE  ROWS  STANDBY  RAFT      GOSSIP
n01     active  25.0%  256   250      leader    alive
n02     active  25.0%  256   250      voter     alive
n03     active  25.0%  256   250      voter     alive
n04     active  25.0%  256   250      nonvoter  alive
`},
		{"without a majority", strings.Join(strings.Split(text(3, func(st *clusterpb.GetStatusResponse, m []*clusterpb.MemberStatus) {
			st.Leader, m[0].Raft = "", clusterpb.Raft_RAFT_VOTER
		}), "\n")[5:6], ""), "\nVoters   n01, n02, n03; none may die"},
		{"draining", text(3, func(st *clusterpb.GetStatusResponse, m []*clusterpb.MemberStatus) {
			st.Phase, st.RowsOwned, st.RowsStandby, st.RowsUnprotected = clusterpb.Phase_PHASE_LEAVING, 1, 7, 20
			m[0].Member.Phase, m[0].RowsOwned, m[0].RowsStandby, m[0].OwnedShare = clusterpb.Phase_PHASE_LEAVING, 1, 7, 0.001
			m[1].Member.Phase, m[1].RowsOwned, m[1].RowsStandby, m[1].OwnedShare = clusterpb.Phase_PHASE_DRAINED, 0, 0, 0
			st.Changing, st.RowsToMove = true, 1
		}), `
Cluster  prod, as n01 sees it
Health   the ring changes: 1 of 768 rows left to move; wait, or see ` + "`keystead ring --watch`" + `
Epoch    23340234121
Rows     768, 1 to move, 0 without owner, 20 without their copy
Leader   n01
Voters   n01, n02, n03; 1 may die
Node     n01: serves, lease for 1.5s, leaving, owns 1 row and stands by for 7, up 1h0m0s, version 1.0
API      10.0.0.1:7400
Raft     10.0.0.1:7401
Gossip   10.0.0.1:7402

MEMBER  PHASE    SHARE  ROWS  STANDBY  RAFT    GOSSIP
n01     leaving  0.1%   1     7        leader  alive
n02     drained  0.0%   0     0        voter   alive
n03     active   33.3%  256   250      voter   alive
`},
		{"copying", text(3, func(st *clusterpb.GetStatusResponse, _ []*clusterpb.MemberStatus) {
			st.RowsUnprotected = 120
			st.Copies = []*clusterpb.Copy{
				{To: "n02", Rows: 120, Objects: 34_000, ObjectsExpected: 81_234, Bytes: 3_410_000, AgeNs: int64(1500 * time.Millisecond)},
				{To: "n03", Rows: 1, Objects: 12, ObjectsExpected: 11, Bytes: 900, AgeNs: int64(time.Minute), CaughtUp: true},
			}
		}), `
Cluster  prod, as n01 sees it
Health   healthy, but 120 of 768 rows have no copy yet where the ring wants it: the death of their owner would lose them; wait: it is being copied
Epoch    23340234121
Rows     768, all where the ring wants them, 120 without their copy
Leader   n01
Voters   n01, n02, n03; 1 may die
Node     n01: serves, lease for 1.5s, owns 256 rows and stands by for 250, up 1h0m0s, version 1.0
Copies   to n02: 120 rows, 34,000 of about 81,234 objects, 3.4 MB, begun 1.5s ago
         to n03: 1 row, all 12 objects, 0.0 MB, begun 1m0s ago
API      10.0.0.1:7400
Raft     10.0.0.1:7401
Gossip   10.0.0.1:7402

MEMBER  PHASE   SHARE  ROWS  STANDBY  RAFT    GOSSIP
n01     active  33.3%  256   250      leader  alive
n02     active  33.3%  256   250      voter   alive
n03     active  33.3%  256   250      voter   alive
`},
		{"cut off", text(3, func(st *clusterpb.GetStatusResponse, m []*clusterpb.MemberStatus) {
			st.Leader, st.Serving, st.LeaseLeftNs, st.RowsUnowned, st.RowsToMove = "", false, 0, 3, 3
			m[0].Raft, m[2].Member, m[2].Gossip, m[2].OwnedShare = clusterpb.Raft_RAFT_VOTER, nil, clusterpb.Gossip_GOSSIP_FAILED, 0
		}), `
Cluster  prod, as n01 sees it
Health   n01 knows no leader; a majority of the voters (n01, n02, n03) has to run, and reach each other's raft port
         n01 does not serve: it has no lease; it renews it by itself, once there is a leader
         3 of 768 rows have no owner; the leader gives them to members that can act; calls for their keys are refused until then
         one more death stops the cluster: of 3 voters, n03 is gone; bring it back, or start another node with --join
Epoch    23340234121
Rows     768, 3 to move, 3 without owner
Leader   -
Voters   n01, n02, n03; none may die
Node     n01: does not serve, no lease, owns 256 rows and stands by for 250, up 1h0m0s, version 1.0
API      10.0.0.1:7400
Raft     10.0.0.1:7401
Gossip   10.0.0.1:7402

MEMBER  PHASE   SHARE  ROWS  STANDBY  RAFT   GOSSIP
n01     active  33.3%  256   250      voter  alive
n02     active  33.3%  256   250      voter  alive
n03     -       0.0%   -     -        voter  failed
`},
		{"alone", text(1, func(st *clusterpb.GetStatusResponse, m []*clusterpb.MemberStatus) {
			*st = clusterpb.GetStatusResponse{Id: "n01", Rows: 256, Epoch: 4, Serving: true}
			m[0].Gossip, m[0].Raft = 0, 0
		}), `
Cluster  none: n01 runs alone
Health   healthy
Epoch    4
Rows     256, all where the ring wants them
Node     n01: serves, up 0s
API      127.0.0.1:7400

MEMBER  PHASE   SHARE   ROWS  STANDBY  RAFT  GOSSIP
n01     active  100.0%  256   250      -     -
`},
	} {
		if tc.got != tc.want[1:] {
			t.Errorf("%s:\n%s\nwant\n%s", tc.name, tc.got, tc.want[1:])
		}
	}
}

// On a terminal no word is broken, and labels stand alone.
func TestStatusIsNarrow(t *testing.T) {
	st, members := statusOf(3)
	st.RowsInGrace = 244
	var out strings.Builder
	if err := newOverview(st, members, 0).print(&out, "127.0.0.1:7400", canvas{width: 80, cut: true}); err != nil {
		t.Fatal(err)
	}
	const want = `Cluster  prod, as n01 sees it
Health   healthy, but the state of 244 of 768 rows was lost, and no locks of
         them are granted yet; wait for the end of the grace period
         (--max-lock-ttl); holders keep the locks that they renew
Epoch`
	if !strings.HasPrefix(out.String(), want) {
		t.Errorf("%s\nwant\n%s", out.String(), want)
	}
	for line := range strings.Lines(out.String()) {
		if len(line) > 81 {
			t.Errorf("a line of %d: %s", len(line)-1, line)
		}
	}
}

func TestWrapped(t *testing.T) {
	for _, tc := range []struct {
		text  string
		width int
		want  string
	}{
		{"one two three", 0, "one two three"},
		{"one two three", 13, "one two three"},
		{"one two three", 12, "one two|three"},
		{"one two three", 7, "one two|three"},
		{"one two three", 6, "one|two|three"},
		{"a-long-word b", 4, "a-long-word|b"},
		{"ä ö ü", 3, "ä ö|ü"},
		{"", 3, ""},
	} {
		if got := strings.Join(wrapped(tc.text, tc.width), "|"); got != tc.want {
			t.Errorf("%q in %d: %q, want %q", tc.text, tc.width, got, tc.want)
		}
	}
}

// Without a leader nobody is given what a dead node owns: the hint does not promise it.
func TestHintsWithoutALeader(t *testing.T) {
	for leader, promised := range map[string]bool{"n01": true, "": false} {
		st, members := statusOf(3)
		st.Leader, members[2].Gossip = leader, clusterpb.Gossip_GOSSIP_FAILED
		for _, p := range newOverview(st, members, 0).Problems {
			if strings.HasPrefix(p.Problem, "n03 is gone") && strings.Contains(p.Hint, "others own its keys") != promised {
				t.Errorf("with the leader %q: %s", leader, p.Hint)
			}
		}
	}
}

func TestMembersText(t *testing.T) {
	_, members := statusOf(3)
	members[1].Member.Phase = clusterpb.Phase_PHASE_LEAVING
	members = append(members, &clusterpb.MemberStatus{Id: "agent", Gossip: clusterpb.Gossip_GOSSIP_ALIVE})
	var out strings.Builder
	if err := printMembers(&out, membersJSON(members), canvas{}); err != nil {
		t.Error(err)
	}
	const want = `
ID     PHASE    GOSSIP  RAFT    SHARE  ROWS  STANDBY  API               VERSION
n01    active   alive   leader  33.3%  256   250      n01.example:7400  1.0
n02    leaving  alive   voter   33.3%  256   250      n02.example:7400  1.0
n03    active   alive   voter   33.3%  256   250      n03.example:7400  1.0
agent  -        alive   -       0.0%   -     -        -                 -
`
	if out.String() != want[1:] {
		t.Errorf("%s\nwant\n%s", out.String(), want[1:])
	}
	members[2].AppAddr = "10.0.0.3:80"
	out.Reset()
	if err := printMembers(&out, membersJSON(members[2:]), canvas{}); err != nil {
		t.Error(err)
	}
	const withApp = `
ID     PHASE   GOSSIP  RAFT   SHARE  ROWS  STANDBY  API               VERSION  APP
n03    active  alive   voter  33.3%  256   250      n03.example:7400  1.0      10.0.0.3:80
agent  -       alive   -      0.0%   -     -        -                 -        -
`
	if out.String() != withApp[1:] {
		t.Errorf("%s\nwant\n%s", out.String(), withApp[1:])
	}
	text, err := json.Marshal(membersJSON(members[2:]))
	const wantJSON = `[{"id":"n03","phase":"active","gossip":"alive","gossip_addr":"n03:7402","raft":"voter","owned_share":0.3333333333333333,"rows_owned":256,"rows_standby":250,` +
		`"hash_key":"n03.example:7400","grpc_addr":"n03.example:7400","raft_addr":"n03:7401","incarnation":"1882445566738848251","version":"1.0","app_addr":"10.0.0.3:80"},` +
		`{"id":"agent","phase":"","gossip":"alive","gossip_addr":"","raft":"","owned_share":0,"rows_owned":0,"rows_standby":0,"hash_key":"","grpc_addr":"","raft_addr":"","incarnation":"","version":"","app_addr":""}]`
	if err != nil || string(text) != wantJSON {
		t.Errorf("%v %s", err, text)
	}
	if text, _ := json.Marshal(membersJSON(nil)); string(text) != "[]" {
		t.Errorf("nobody: %s", text)
	}
}

// TestStatusDisk: a node that keeps a store on disk says so, and one that keeps none does not.
func TestStatusDisk(t *testing.T) {
	for _, tc := range []struct {
		disk *clusterpb.Disk
		want string
	}{
		{&clusterpb.Disk{Durability: "interval,counter=always", IntervalNs: 1e9, BehindNs: 52e7, Bytes: 3 << 20, Taking: true}, "Disk     interval,counter=always, 3 MiB, at most 520ms behind\n"},
		{&clusterpb.Disk{Durability: "always", IntervalNs: 1e9, BehindNs: 9e9, Bytes: 999}, "Disk     always, 999 B, at most 9s behind: it takes nothing\n"},
		{nil, ""},
	} {
		var b strings.Builder
		if err := newOverview(&clusterpb.GetStatusResponse{Id: "n1", Disk: tc.disk}, nil, 0).print(&b, "a", canvas{}); err != nil {
			t.Fatal(err)
		}
		if is := strings.Contains(b.String(), "Disk "); is != (tc.want != "") || !strings.Contains(b.String(), tc.want) {
			t.Errorf("%s", b.String())
		}
	}
}
