package system

import (
	"strings"
	"testing"
)

func TestFounderSettings(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		says string
		args []string
	}{
		{"needs its name: set --cluster-id", []string{"--founders", "a,b"}},
		{"choose one", []string{"--cluster-id", "c", "--bootstrap", "--founders", "a,b"}},
		{"only 1 in --founders", []string{"--cluster-id", "c", "--founders", "a"}},
		{`founder "a/b"`, []string{"--cluster-id", "c", "--founders", "a/b,c,d"}},
		{`founder "a" is named twice`, []string{"--cluster-id", "c", "--founders", "a,b,a"}},
		{"17 founders", []string{"--cluster-id", "c", "--founders", "a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q"}},
	} {
		refuses(t, exitUsage, tc.says, append([]string{"server"}, tc.args...)...)
	}
}

// The key of gossip is not among the settings that are shown.
func TestShowConfigKeepsTheKey(t *testing.T) {
	t.Parallel()
	p := start(t, env("KEYSTEAD_GOSSIP_KEY=c2VjcmV0"), "server", "--show-config")
	p.ends(t, 0)
	if out := p.out() + p.err(); strings.Contains(out, "c2VjcmV0") || !strings.Contains(out, "gossip-key") {
		t.Errorf("it shows\n%s", out)
	}
}
