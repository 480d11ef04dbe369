package main

import (
	"runtime/debug"
	"strings"
)

// revisionShown is how many digits of a commit tell builds apart.
const revisionShown = 10

// versionOf returns the version of a program that the linker gave none: that of the module,
// where it was installed by version, otherwise the commit that it was built from, so that
// the nodes of a rolling upgrade can be told apart; "dev" where neither is known.
func versionOf(b *debug.BuildInfo) string {
	const unknown = "dev"
	if b == nil {
		return unknown
	}
	commit, changed := "", ""
	for _, s := range b.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			changed = "-changed"
		}
	}
	commit = commit[:min(len(commit), revisionShown)]
	v := b.Main.Version
	switch {
	case v != "" && v != "(devel)" && (commit == "" || !strings.Contains(v, commit)): // a version that names a commit is made up from it
		return v
	case commit != "":
		return unknown + "-" + commit + changed
	}
	return unknown
}
