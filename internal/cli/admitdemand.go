package cli

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/keystead/keystead/client"
)

// reworded is an error in other words.
type reworded struct {
	error
	text string
}

func (r reworded) Error() string { return r.text }
func (r reworded) Unwrap() error { return r.error }

var demandField = regexp.MustCompile(`^demands\[(\d+)\](?:\.limit)?(?:\.(\w+))?: `)

// inDemands has an error about a demand say which one, as it was typed.
func (f *admitFlags) inDemands(err error) error {
	msg, hint := explain(err)
	at := demandField.FindStringSubmatch(msg)
	if at == nil || f.policy != "" {
		return err
	}
	i, _ := strconv.Atoi(at[1])
	rest := msg[len(at[0]):]
	for _, of := range []struct {
		flag  string
		texts []string
	}{{"limit", f.limits}, {"anywhere", f.anywhere}, {"counter", f.counters}, {"slots", f.slots}} {
		if i >= len(of.texts) {
			i -= len(of.texts)
			continue
		}
		what := strings.TrimSuffix(at[2], "_ns")
		if typed, ok := typedAs[at[2]]; ok && at[2] != "cost" && at[2] != "name" && at[2] != "max" && typed != "--"+of.flag {
			what = typed
		}
		if what != "" && what != of.flag {
			rest = what + " " + rest
		}
		return hinted{reworded{err, "--" + of.flag + " " + printable(of.texts[i]) + ": " + rest}, hint}
	}
	return err
}

func unknownHold(std Process) error {
	fmt.Fprintln(std.Err, "keystead: the hold was settled, never was, or is forgotten; nothing happened")
	return exitCode(exitDenied)
}

func parseCosts(args []string) (costs []client.Cost, err error) {
	for _, text := range args {
		name, cost, ok := strings.Cut(text, "=")
		n, err := strconv.ParseUint(cost, 10, 64)
		if !ok || err != nil {
			return nil, usageError{fmt.Errorf("%q: say NAME=COST", text)}
		}
		key, name := under(name)
		costs = append(costs, client.Cost{Key: key, Name: name, Cost: n})
	}
	return costs, nil
}
