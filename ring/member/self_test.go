package member

import (
	"io"
	"maps"
	"strings"
	"testing"

	"github.com/hashicorp/memberlist"
	"github.com/hashicorp/serf/serf"
)

func TestTagsRoundTrip(t *testing.T) {
	for _, s := range []Self{self("n1"), {
		Node: "x", Incarnation: 1<<64 - 1, Cluster: "test", UID: "u", HashKey: "ключ", GRPCAddr: "host:1", AppAddr: "[::1]:80", RaftAddr: "[::1]:65535", RaftID: "r", Hot: true, Level: 5,
	}} {
		got, err := parse("test", s.Node, s.tags())
		if err != nil || got != s {
			t.Errorf("parsed %+v, %v; want %+v", got, err, s)
		}
	}
}

// A wish that is not understood keeps nobody out.
// TestParseLevel: a node that tells no level, or what is none, is one of before nodes told.
func TestParseLevel(t *testing.T) {
	for text, want := range map[string]uint32{"": 0, "5": 5, "4294967295": 1<<32 - 1, "4294967296": 0, "-1": 0, "five": 0} {
		tags := Self{Node: "n1", Incarnation: 1, Cluster: "test", HashKey: "h", GRPCAddr: "h:1", RaftAddr: "h:2", RaftID: "r", Level: want}.tags()
		if text != "" {
			tags[tagLevel] = text
		} else if _, ok := tags[tagLevel]; ok {
			t.Error("level 0 is told")
		}
		if got, err := parse("test", "n1", tags); err != nil || got.Level != want {
			t.Errorf("%q: %d, %v", text, got.Level, err)
		}
	}
}

func TestParseHot(t *testing.T) {
	for value, want := range map[string]bool{"true": true, "": false, "false": false, "TRUE": false, "2": false} {
		tags := self("n1").tags()
		if _, ok := tags[tagHot]; ok {
			t.Error("a node that says nothing has the tag")
		}
		tags["hot"] = value
		if got, err := parse("test", "n1", tags); err != nil || got.Hot != want {
			t.Errorf("%q: %+v, %v", value, got, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change map[string]string // "-" removes the tag
		node   string
		why    string
	}{
		{name: "foreign", change: map[string]string{tagKind: "-"}, why: "no keystead node"},
		{name: "later version", change: map[string]string{tagKind: "2"}, why: `version "2"`},
		{name: "other cluster", change: map[string]string{tagCluster: "prod"}, why: `of cluster "prod", not "test"`},
		{name: "no cluster", change: map[string]string{tagCluster: "-"}, why: "of cluster"},
		{name: "no incarnation", change: map[string]string{tagIncarnation: "-"}, why: "incarnation"},
		{name: "incarnation 0", change: map[string]string{tagIncarnation: "0"}, why: "incarnation is 0"},
		{name: "negative incarnation", change: map[string]string{tagIncarnation: "-1"}, why: "not a number"},
		{name: "incarnation of another form", change: map[string]string{tagIncarnation: "007"}, why: "not a number"},
		{name: "too great an incarnation", change: map[string]string{tagIncarnation: "18446744073709551616"}, why: "not a number"},
		{name: "no API address", change: map[string]string{tagGRPC: "-"}, why: "gRPC address: missing"},
		{name: "API address without host", change: map[string]string{tagGRPC: ":7400"}, why: "gRPC address"},
		{name: "raft address without port", change: map[string]string{tagRaft: "10.0.0.1"}, why: "raft address"},
		{name: "raft port 0", change: map[string]string{tagRaft: "10.0.0.1:0"}, why: "raft address"},
		{name: "application without port", change: map[string]string{tagApp: "10.0.0.1"}, why: "address of the application"},
		{name: "no raft id", change: map[string]string{tagRaftID: "-"}, why: "raft id"},
		{name: "no hash key", change: map[string]string{tagHashKey: "-"}, why: "hash key"},
		{name: "control character", change: map[string]string{tagVersion: "1\x1b[2J"}, why: "not printable"},
		{name: "broken text", change: map[string]string{tagUID: "\xff"}, why: "not printable"},
		{name: "name with a slash", node: "a/b", why: "node id"},
		{name: "long quote", change: map[string]string{tagCluster: strings.Repeat("c", 400)}, why: "…"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			node := "n1"
			if tt.node != "" {
				node = tt.node
			}
			tags := self("n1").tags()
			maps.Copy(tags, tt.change)
			maps.DeleteFunc(tags, func(_, v string) bool { return v == "-" })
			got, err := parse("test", node, tags)
			if err == nil || !strings.Contains(err.Error(), tt.why) || got != (Self{}) {
				t.Errorf("parsed %+v, %v; want an error with %q", got, err, tt.why)
			}
			if err != nil && len(err.Error()) > 300 {
				t.Errorf("%d bytes of error", len(err.Error()))
			}
		})
	}
}

// TestTagsSize finds the longest hash key that passes, and asks serf whether it
// takes it and refuses one byte more.
func TestTagsSize(t *testing.T) {
	s := self("n1")
	for n := 1; s.Validate() == nil; n++ {
		s.HashKey = strings.Repeat("k", n)
	}
	if err := s.Validate(); !strings.Contains(err.Error(), "takes 513 bytes") {
		t.Fatal(err)
	}
	takes := func(s Self) error {
		conf := serf.DefaultConfig()
		conf.NodeName, conf.Tags, conf.LogOutput = s.Node, s.tags(), io.Discard
		conf.MemberlistConfig = memberlist.DefaultLocalConfig()
		conf.MemberlistConfig.BindAddr, conf.MemberlistConfig.BindPort, conf.MemberlistConfig.LogOutput = "127.0.0.1", 0, io.Discard
		agent, err := serf.Create(conf)
		if err == nil {
			_ = agent.Shutdown()
		}
		return err
	}
	if err := takes(s); err == nil || !strings.Contains(err.Error(), "512") {
		t.Errorf("serf on 513 bytes: %v", err)
	}
	s.HashKey = s.HashKey[1:]
	if err := takes(s); err != nil {
		t.Errorf("serf on 512 bytes: %v", err)
	}
}

// FuzzParse gives the parser any tags: what it accepts is valid, and is what a
// node would have sent.
func FuzzParse(f *testing.F) {
	s := self("n1")
	f.Add(s.Node, kind, "1", s.Cluster, "uid", s.HashKey, s.GRPCAddr, s.RaftAddr, s.RaftID, s.Version)
	f.Add("n1", "1", "01", "test", "", "", ":1", "[::1]:1", "", "")
	f.Add("a/b", "2", "", "", "", "", "", "", "", "")
	f.Fuzz(func(t *testing.T, node, kind, inc, cluster, uid, hash, grpc, raft, id, version string) {
		tags := map[string]string{
			tagKind: kind, tagIncarnation: inc, tagCluster: cluster, tagUID: uid, tagHashKey: hash,
			tagGRPC: grpc, tagRaft: raft, tagRaftID: id, tagVersion: version,
		}
		s, err := parse("test", node, tags)
		if err != nil {
			if s != (Self{}) {
				t.Errorf("an error and %+v", s)
			}
			return
		}
		maps.DeleteFunc(tags, func(_, v string) bool { return v == "" })
		if err := s.Validate(); err != nil || s.Node != node || !maps.Equal(s.tags(), tags) {
			t.Errorf("%+v from %v: %v", s, tags, err)
		}
	})
}
