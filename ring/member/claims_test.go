package member

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/hashicorp/serf/serf"
)

func TestClaims(t *testing.T) {
	word := func(name, ip string, s serf.MemberStatus) *serf.Member {
		return &serf.Member{Name: name, Addr: net.ParseIP(ip), Port: 1, Status: s}
	}
	for _, tt := range []struct {
		name  string
		words []*serf.Member
		want  string // who claims "a", which is alive at 10.0.0.1:1
	}{
		{name: "its own word", words: []*serf.Member{word("a", "10.0.0.1", serf.StatusNone)}},
		{name: "another", words: []*serf.Member{word("a", "10.0.0.2", serf.StatusNone)}, want: "10.0.0.2:1"},
		{name: "a stranger", words: []*serf.Member{word("b", "10.0.0.2", serf.StatusNone)}},
		{name: "one that left", words: []*serf.Member{word("a", "10.0.0.2", serf.StatusLeft)}},
		{name: "a whole state, where the dead are too", words: []*serf.Member{word("a", "10.0.0.2", serf.StatusNone), word("b", "10.0.0.2", serf.StatusNone)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			noted := 0
			c := newClaims(func() { noted++ })
			c.known.Store(&map[string]string{"a": "10.0.0.1:1"})
			if err := c.NotifyMerge(tt.words); err != nil {
				t.Errorf("refused: %v", err)
			}
			got, ok := c.of(time.Now(), "a", "10.0.0.1:1")
			if got.addr != tt.want || ok != (tt.want != "") || noted != len(tt.want)/10 {
				t.Errorf("claimed at %q, noted %d times; want %q", got.addr, noted, tt.want)
			}
			if _, ok := c.of(time.Now().Add(claimShown+time.Second), "a", "10.0.0.1:1"); ok {
				t.Error("the claim does not end")
			}
			if _, ok := c.of(time.Now(), "a", tt.want); ok && tt.want != "" {
				t.Error("the claim goes on when the address is had")
			}
		})
	}
}

// TestClaimsAreBounded notes more than there is room for; old ones make room.
func TestClaimsAreBounded(t *testing.T) {
	c := newClaims(func() {})
	now := time.Unix(0, 0)
	for i := range maxClaims + 5 {
		c.note(now, fmt.Sprint(i), "x")
	}
	if len(c.byName) != maxClaims {
		t.Errorf("%d claims", len(c.byName))
	}
	c.note(now.Add(claimShown+1), "late", "x")
	if _, ok := c.of(now.Add(claimShown+1), "late", "y"); !ok || len(c.byName) != 1 {
		t.Errorf("%d claims after the old ones ended", len(c.byName))
	}
}
