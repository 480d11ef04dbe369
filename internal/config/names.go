package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// envPrefix starts the name of every environment variable that Load looks at.
const envPrefix = "KEYSTEAD_"

// Flags that ask for something instead of setting something. fileFlag also
// names the file.
const fileFlag = "config"

var actions = []string{fileFlag, "help", "version", "show-config"}

// secretAnnotation marks a flag whose value is never printed.
const secretAnnotation = "keystead_secret"

var (
	// flagName is the form of a setting's name. With it the three spellings
	// (flag, variable, file) determine each other; see TestNamesRoundTrip.
	flagName = regexp.MustCompile(`^[a-z][a-z0-9]*(-[a-z0-9]+)*$`)

	// Names below stand without envPrefix.

	// kubernetes matches what a Service called "keystead" brings.
	kubernetes = regexp.MustCompile(`^(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT|` + kubernetesPort + `)$`)
	// kubernetesOther matches what a Service called "keystead-…" brings, except
	// for *_PORT, which only its value tells apart.
	kubernetesOther = regexp.MustCompile(`^[A-Z0-9_]+_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|` + kubernetesPort + `)$`)
	kubernetesURL   = regexp.MustCompile(`^(tcp|udp|sctp)://`)
)

const kubernetesPort = `PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?`

// Variable returns the name of the environment variable of a setting:
// KEYSTEAD_GRPC_ADDR for grpc-addr.
func Variable(setting string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(setting, "-", "_"))
}

// settingOf returns the inverse of Variable. ok is false for a name that no setting
// has, such as one in lower case; the setting is then what was probably meant.
func settingOf(variable string) (setting string, ok bool) {
	setting = strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(variable, envPrefix)), "_", "-")
	return setting, flagName.MatchString(setting) && Variable(setting) == variable
}

// Program returns the names of all settings of a program, those of root and of
// every command below it: what [Input.Program] wants.
func Program(root *cobra.Command) []string {
	var names []string
	add := func(f *pflag.Flag) {
		if isSetting(f) {
			names = append(names, f.Name)
		}
	}
	root.PersistentFlags().VisitAll(add)
	root.LocalFlags().VisitAll(add)
	for _, c := range root.Commands() {
		names = append(names, Program(c)...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// MarkSecret keeps the values of these flags out of errors and out of [Sources].
// It panics when there is no such flag.
func MarkSecret(fs *pflag.FlagSet, names ...string) {
	for _, name := range names {
		if err := fs.SetAnnotation(name, secretAnnotation, []string{"true"}); err != nil {
			panic("config: " + err.Error())
		}
	}
}

func isSecret(f *pflag.Flag) bool { return f.Annotations[secretAnnotation] != nil }

func isSetting(f *pflag.Flag) bool { return !slices.Contains(actions, f.Name) }

// mustBeSettings panics when a flag has a name that the environment cannot
// carry: that is a mistake in the program, not in its input.
func mustBeSettings(flags []*pflag.Flag) {
	for _, f := range flags {
		if !flagName.MatchString(f.Name) {
			panic(fmt.Sprintf("config: flag --%s: a setting is lower-case words joined by single hyphens", f.Name))
		}
		if why := reserved(Variable(f.Name)); why != "" {
			panic(fmt.Sprintf("config: flag --%s: its variable %s is taken: %s", f.Name, Variable(f.Name), why))
		}
	}
}

// reserved is why a variable can never be a setting's, or "".
func reserved(variable string) string {
	switch name := strings.TrimPrefix(variable, envPrefix); {
	case name == "CONFIG":
		return "names the file"
	case name == "FENCING_TOKEN":
		return "set by `keystead lock`"
	case name == "ACTIVE_HELP", name == "COMPLETION_DESCRIPTIONS":
		return "steers shell completion"
	case kubernetes.MatchString(name):
		return "set by Kubernetes for a Service called keystead"
	}
	return ""
}

// tolerated is why a variable that belongs to no setting is no mistake, or "".
func tolerated(variable, value string) string {
	name := strings.TrimPrefix(variable, envPrefix)
	switch {
	case strings.HasPrefix(name, "LOCK_"):
		return "set by `keystead lock`"
	case kubernetesOther.MatchString(name),
		strings.HasSuffix(name, "_PORT") && kubernetesURL.MatchString(value):
		return "set by Kubernetes for a Service called keystead-…"
	}
	return ""
}

// Limits of the search for a suggestion.
const (
	// maxNameLen bounds the cost of comparing a name from outside, and how much
	// of it an error repeats.
	maxNameLen = 64
	// maxTypos is the largest distance at which a name still counts as a slip.
	maxTypos = 3
)

// Nearest returns the known name with the smallest edit distance to name, or ""
// when none is near. Among equals the first in order wins.
func Nearest(name string, known []string) string {
	if len(name) > maxNameLen {
		return ""
	}
	best, bestDistance := "", min(maxTypos, max(1, len(name)/3))+1
	for _, k := range known {
		if d := distance(name, k); d < bestDistance {
			best, bestDistance = k, d
		}
	}
	return best
}

// distance returns the optimal string alignment distance: insertions, deletions,
// substitutions and swaps of neighbours, each 1.
func distance(a, b string) int {
	before, prev, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(prev[j]+1, row[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, prev, row = prev, row, before
	}
	return prev[len(b)]
}
