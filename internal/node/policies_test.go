package node

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/keystead/keystead/internal/failure"
)

// A node that runs alone replaces what its operator has seen, keeps it on disk, and never gives
// a version again.
func TestStandalonePolicies(t *testing.T) {
	dir := t.TempDir()
	open := func(epoch uint64) (*standalonePolicies, error) {
		p := &standalonePolicies{epoch: func() uint64 { return epoch }}
		return p, p.open(dir, slog.New(slog.DiscardHandler))
	}
	p, err := open(70)
	if err != nil {
		t.Fatal(err)
	}
	set := func(expect uint64, text string) (uint64, failure.Reason) {
		a, err := p.Set(t.Context(), []byte(text), expect)
		if err != nil {
			return 0, failure.ReasonOf(err)
		}
		return a.Version, 0
	}
	for _, c := range []struct {
		expect uint64
		text   string
		gets   uint64
		why    failure.Reason
	}{
		{7, "policies: {}", 0, failure.PolicyConflict},
		{0, "policies: {a: {limit: 1/s}}", 70, 0},
		{0, "policies: {a: {limit: 2/s}}", 0, failure.PolicyConflict},
		{3, "policies: {a: {limit: 1/s}}", 70, 0}, // it is in force
		{70, "policies: {a: {limit: 3/s}}", 71, 0},
		{71, strings.Repeat("#", 2<<20), 0, failure.Invalid},
	} {
		if got, why := set(c.expect, c.text); got != c.gets || why != c.why {
			t.Errorf("expecting %d: version %d, %v", c.expect, got, why)
		}
	}
	if p, err = open(20); err != nil {
		t.Fatal(err)
	}
	if a := p.InForce().Load(); a.Version != 71 || a.Lookup("a").Limit != 3 {
		t.Errorf("it comes back with %+v", a)
	}
	if got, why := set(71, "policies: {}"); got != 72 || why != 0 {
		t.Errorf("version %d, %v", got, why)
	}
	file := filepath.Join(dir, policiesFile)
	for _, bad := range []string{"", "{", "{}", `{"version":0}`} {
		if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := open(1); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	// What cannot be kept is not in force.
	if err := errors.Join(os.Remove(file), os.Mkdir(file+".tmp", 0o700)); err != nil {
		t.Fatal(err)
	}
	if p, err = open(90); err != nil {
		t.Fatal(err)
	}
	if _, why := set(0, "policies: {a: {limit: 1/s}}"); why != failure.OutcomeUnknown || p.InForce().Load().Version != 0 {
		t.Errorf("%v, version %d", why, p.InForce().Load().Version)
	}
}
