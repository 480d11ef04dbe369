package member

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestValidate(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*Config)
		want   string // "" is no error
	}{
		{name: "plain", change: func(*Config) {}},
		{name: "bound to a name", change: func(c *Config) { c.Bind = "localhost:0" }},
		{name: "bound to all", change: func(c *Config) { c.Bind = ":7402" }},
		{name: "keys", change: func(c *Config) { c.Key = make([]byte, 24) }},
		{name: "bad key", change: func(c *Config) { c.Key = make([]byte, 20) }, want: "the gossip key has 20 bytes; give 16, 24 or 32"},
		{name: "no name", change: func(c *Config) { c.Self.Node = "" }, want: `node id ""`},
		{name: "bad cluster", change: func(c *Config) { c.Self.Cluster = "a b" }, want: `cluster name "a b"`},
		{name: "long version", change: func(c *Config) { c.Self.Version = strings.Repeat("1", 500) }, want: "at most 512 fit"},
		{name: "no address", change: func(c *Config) { c.Bind = "" }, want: "gossip address"},
		{name: "bad port", change: func(c *Config) { c.Bind = "127.0.0.1:x" }, want: "the port is not a number"},
		{name: "bad advertised", change: func(c *Config) { c.Advertise = ":7402" }, want: "advertised"},
		{name: "bad join", change: func(c *Config) { c.Join = []string{"10.0.0.1"} }, want: "address to join"},
		{name: "join port 0", change: func(c *Config) { c.Join = []string{"10.0.0.1:0"} }, want: "address to join"},
		{name: "many to join", change: func(c *Config) { c.Join = make([]string, maxJoin+1) }, want: "257 addresses"},
		{name: "profile", change: func(c *Config) { c.Profile = "moon" }, want: "give local, lan or wan"},
		{name: "settle", change: func(c *Config) { c.Settle = -1 }, want: "settle time"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := Config{Self: self("n1"), Bind: "127.0.0.1:0"}
			tt.change(&c)
			err := c.Validate()
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%v, want %q", err, tt.want)
			}
			if tt.want != "" {
				if p, err := Start(c); err == nil {
					p.Stop()
					t.Error("it started")
				}
			}
		})
	}
}

// TestProfiles keeps the table at Profile true in the settings that it names.
func TestProfiles(t *testing.T) {
	for _, tt := range []struct {
		profile                          Profile
		probe, exchange, retried, forgot time.Duration
		left                             time.Duration
	}{
		{profile: Local, probe: time.Second, exchange: 15 * time.Second, retried: 2 * time.Second, forgot: time.Hour, left: time.Hour},
		{profile: LAN, probe: time.Second, exchange: 30 * time.Second, retried: 10 * time.Second, forgot: 24 * time.Hour, left: 24 * time.Hour},
		{profile: WAN, probe: 5 * time.Second, exchange: time.Minute, retried: 30 * time.Second, forgot: 72 * time.Hour, left: 24 * time.Hour},
	} {
		c := Config{Self: self("n1"), Profile: tt.profile}.serfConfig()
		m := c.MemberlistConfig
		if m.ProbeInterval != tt.probe || m.PushPullInterval != tt.exchange || c.ReconnectInterval != tt.retried || c.ReconnectTimeout != tt.forgot || c.TombstoneTimeout != tt.left {
			t.Errorf("%s: %v %v %v %v %v", tt.profile, m.ProbeInterval, m.PushPullInterval, c.ReconnectInterval, c.ReconnectTimeout, c.TombstoneTimeout)
		}
	}
}

func TestParseLine(t *testing.T) {
	for _, tt := range []struct {
		line, from, text string
		level            slog.Level
	}{
		{line: "[ERR] memberlist: Decrypt packet failed: x\n", level: slog.LevelWarn, from: "memberlist", text: "Decrypt packet failed: x"},
		{line: "[WARN] serf: Intent queue depth: 200\n", level: slog.LevelWarn, from: "serf", text: "Intent queue depth: 200"},
		{line: "[WARN] serf: Shutdown without a Leave\n", level: slog.LevelDebug, from: "serf", text: "Shutdown without a Leave"},
		{line: "[WARN] memberlist: Refuting a suspect message (from: b)\n", level: slog.LevelDebug, from: "memberlist", text: "Refuting a suspect message (from: b)"},
		{line: "[INFO] serf: EventMemberJoin: a\n", level: slog.LevelDebug, from: "serf", text: "EventMemberJoin: a"},
		{line: "[ERR] Failed to shutdown\n", level: slog.LevelWarn, from: "serf", text: "Failed to shutdown"},
		{line: "no level\n", level: slog.LevelDebug, from: "serf", text: "no level"},
		{line: "", level: slog.LevelDebug, from: "serf", text: ""},
	} {
		level, from, text := parseLine(tt.line)
		if level != tt.level || from != tt.from || text != tt.text {
			t.Errorf("%q is %v %q %q", tt.line, level, from, text)
		}
	}
}

// TestLoudness writes warnings for three minutes: ten a minute are loud, and a
// line says how many were not.
func TestLoudness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorded
		l, _ := newLogger(r.logger())
		for range 180 {
			l.Print("[ERR] memberlist: Push/Pull with b failed")
			l.Print("[DEBUG] memberlist: chatter")
			time.Sleep(time.Second)
		}
		if got := r.count("level=WARN msg=\"Push/Pull"); got != 30 || r.count("chatter") != 0 {
			t.Errorf("%d loud lines; %v", got, &r)
		}
		if got := r.count("lines=50"); got != 2 {
			t.Errorf("%d lines tell of 50 that are not shown; %v", got, &r)
		}
	})
}
