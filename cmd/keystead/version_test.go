package main

import (
	"runtime/debug"
	"testing"
)

// Two builds of two commits do not have the same version: a rolling upgrade is watched by it.
func TestVersion(t *testing.T) {
	const commit = "3a35c1058f7c0b1d2e3f405162738495a6b7c8d9"
	set := func(key, value string) debug.BuildSetting { return debug.BuildSetting{Key: key, Value: value} }
	for _, tc := range []struct {
		name, module string
		settings     []debug.BuildSetting
		want         string
	}{
		{"without a repository", "(devel)", nil, "dev"},
		{"without a module", "", nil, "dev"},
		{"a clone", "v0.0.0-20261122205459-3a35c1058f7c", []debug.BuildSetting{set("vcs.revision", commit), set("vcs.modified", "false")}, "dev-3a35c1058f"},
		{"a clone with changes", "v0.0.0-20261122205459-3a35c1058f7c+dirty", []debug.BuildSetting{set("vcs.revision", commit), set("vcs.modified", "true")}, "dev-3a35c1058f-changed"},
		{"a clone, by an older Go", "(devel)", []debug.BuildSetting{set("vcs.revision", commit)}, "dev-3a35c1058f"},
		{"a tag", "v1.2.3", []debug.BuildSetting{set("vcs.revision", commit), set("vcs.modified", "false")}, "v1.2.3"},
		{"installed by version", "v1.2.3", nil, "v1.2.3"},
		{"a short commit", "", []debug.BuildSetting{set("vcs.revision", "abc")}, "dev-abc"},
	} {
		b := &debug.BuildInfo{Main: debug.Module{Version: tc.module}, Settings: tc.settings}
		if got := versionOf(b); got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.name, got, tc.want)
		}
	}
	if got := versionOf(nil); got != "dev" {
		t.Errorf("without any information: got %q", got)
	}
}
