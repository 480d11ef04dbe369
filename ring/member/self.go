package member

import (
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"unicode"
	"unicode/utf8"

	"github.com/hashicorp/memberlist"
)

// Self is what a node says of itself; it travels as serf tags.
type Self struct {
	Node        string // id: letters, digits, '.', '_' and '-', at most 64
	Incarnation uint64 // of the process, from 1
	Cluster     string // name of the cluster, of the same form as Node
	UID         string // drawn when the cluster was made; "" until the node knows it
	HashKey     string // what the ring hashes
	GRPCAddr    string // host:port of the API
	AppAddr     string // host:port of the application beside the node; "" = there is none
	RaftAddr    string // host:port of raft
	RaftID      string // identity of the raft server
	Version     string // of the program; may be ""
	Hot         bool   // parts of split objects are to come to this node first
	Level       uint32 // of what the program knows (table.Level); 0 = it is of before nodes told
}

// The tags. They are short because all of them together have 512 bytes.
const (
	tagKind        = "ks" // version of the tags; no other program sets it
	tagIncarnation = "n"
	tagCluster     = "c"
	tagUID         = "u"
	tagHashKey     = "h"
	tagGRPC        = "g"
	tagRaft        = "r"
	tagRaftID      = "i"
	tagVersion     = "v"
	tagApp         = "a"
	tagHot         = "hot" // hotValue, or not there
	tagLevel       = "l"   // a number, or not there

	kind = "1" // of the tags that this package writes and understands

	hotValue = "true" // any other means what no tag does: it is no more than a wish
)

// maxTags is what the encoded tags of a member may take, in bytes.
const maxTags = memberlist.MetaMaxSize

// idPattern is the form of names of nodes and clusters. In particular there is
// no slash: serf puts one between name and address when it connects.
var idPattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// Validate says what is wrong with s, as a sentence for people.
func (s Self) Validate() error {
	switch {
	case !idPattern.MatchString(s.Node):
		return fmt.Errorf("node id %q: use 1 to 64 letters, digits, '.', '_' and '-'", s.Node)
	case !idPattern.MatchString(s.Cluster):
		return fmt.Errorf("cluster name %q: use 1 to 64 letters, digits, '.', '_' and '-'", s.Cluster)
	case s.Incarnation == 0:
		return errors.New("the incarnation is 0; the first is 1")
	case s.HashKey == "":
		return errors.New("no hash key")
	case s.RaftID == "":
		return errors.New("no raft id")
	}
	if err := checkAddr(s.GRPCAddr); err != nil {
		return fmt.Errorf("gRPC address: %w", err)
	}
	if err := checkAddr(s.RaftAddr); err != nil {
		return fmt.Errorf("raft address: %w", err)
	}
	if s.AppAddr != "" {
		if err := checkAddr(s.AppAddr); err != nil {
			return fmt.Errorf("address of the application: %w", err)
		}
	}
	for _, text := range []string{s.UID, s.HashKey, s.GRPCAddr, s.AppAddr, s.RaftAddr, s.RaftID, s.Version} {
		if !printable(text) {
			return fmt.Errorf("%q is not printable", text)
		}
	}
	if n := tagsSize(s.tags()); n > maxTags {
		return fmt.Errorf("what the node says of itself takes %d bytes as serf tags, and at most %d fit: shorten the hash key, the addresses or the version", n, maxTags)
	}
	return nil
}

// checkAddr accepts host:port with a host and a port from 1.
func checkAddr(addr string) error {
	if addr == "" {
		return errors.New("missing")
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	if n, err := strconv.ParseUint(port, 10, 16); host == "" || err != nil || n == 0 {
		return fmt.Errorf("%q is not HOST:PORT", addr)
	}
	return nil
}

func printable(s string) bool {
	for _, r := range s {
		if !unicode.IsGraphic(r) {
			return false
		}
	}
	return utf8.ValidString(s)
}

// tags is s in the form in which it travels. The name of the node is serf's.
func (s Self) tags() map[string]string {
	tags := map[string]string{
		tagKind: kind, tagIncarnation: strconv.FormatUint(s.Incarnation, 10), tagCluster: s.Cluster,
		tagHashKey: s.HashKey, tagGRPC: s.GRPCAddr, tagRaft: s.RaftAddr, tagRaftID: s.RaftID,
	}
	if s.UID != "" {
		tags[tagUID] = s.UID
	}
	if s.Version != "" {
		tags[tagVersion] = s.Version
	}
	if s.AppAddr != "" {
		tags[tagApp] = s.AppAddr
	}
	if s.Hot {
		tags[tagHot] = hotValue
	}
	if s.Level != 0 {
		tags[tagLevel] = strconv.FormatUint(uint64(s.Level), 10)
	}
	return tags
}

// tagsSize returns the number of bytes that serf encodes tags to: a magic byte, and
// msgpack in its old form. A test compares it with serf.
func tagsSize(tags map[string]string) int {
	head := func(small, n int) int {
		if n < small {
			return 1
		}
		return 3
	}
	n := 1 + head(16, len(tags))
	for k, v := range tags {
		n += head(32, len(k)) + len(k) + head(32, len(v)) + len(v)
	}
	return n
}

// parse reads what a member says of itself. Any error means that it is not one
// of ours, and says why.
func parse(cluster, name string, tags map[string]string) (Self, error) {
	switch v, ok := tags[tagKind]; {
	case !ok:
		return Self{}, errors.New("it is no keystead node: it has no tag " + tagKind)
	case v != kind:
		return Self{}, fmt.Errorf("its tags are of version %q, and this node understands %q", clip(v), kind)
	}
	n, err := strconv.ParseUint(tags[tagIncarnation], 10, 64)
	if err != nil || strconv.FormatUint(n, 10) != tags[tagIncarnation] {
		return Self{}, fmt.Errorf("its incarnation %q is not a number", clip(tags[tagIncarnation]))
	}
	if c := tags[tagCluster]; c != cluster {
		return Self{}, fmt.Errorf("it is of cluster %q, not %q", clip(c), cluster)
	}
	s := Self{
		Node: name, Incarnation: n, Cluster: cluster, UID: tags[tagUID], HashKey: tags[tagHashKey],
		GRPCAddr: tags[tagGRPC], AppAddr: tags[tagApp], RaftAddr: tags[tagRaft], RaftID: tags[tagRaftID], Version: tags[tagVersion],
		Hot: tags[tagHot] == hotValue,
	}
	// What is no number is as if it told nothing: the level is no more than a hint.
	if level, err := strconv.ParseUint(tags[tagLevel], 10, 32); err == nil {
		s.Level = uint32(level)
	}
	if err := s.Validate(); err != nil {
		return Self{}, fmt.Errorf("its tags are damaged: %w", err)
	}
	return s, nil
}

// maxQuoted bounds what is quoted from others, in bytes.
const maxQuoted = 64

func clip(s string) string {
	if len(s) > maxQuoted {
		return s[:maxQuoted] + "…"
	}
	return s
}
