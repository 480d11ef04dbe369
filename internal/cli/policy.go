package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/internal/policy"
)

func newPolicy(std Process) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Name limits, so that callers need not know their numbers",
		Example: `  keystead policy check policies.yaml
  keystead policy explain --file policies.yaml
  keystead policy apply policies.yaml
  keystead policy show
  keystead limit check alice --policy per-user`,
	}
	onlySubcommands(cmd)
	cmd.AddCommand(newPolicyCheck(std), newPolicyExplain(std), newPolicyApply(std), newPolicyShow(std))
	return cmd
}

// readPolicies reads a file of policies, or what comes in for "-".
func readPolicies(std Process, path string) (text []byte, err error) {
	in := std.In
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	return io.ReadAll(io.LimitReader(in, policy.MaxFile+1))
}

// parsePolicies reads a file and what is in it. What is wrong with it is printed; the error is
// the exit code then.
func parsePolicies(std Process, path string, asJSON bool) (*policy.Set, []byte, error) {
	text, err := readPolicies(std, path)
	if err != nil {
		return nil, nil, err
	}
	set, err := policy.Parse(path, text)
	var broken policy.Problems
	if !errors.As(err, &broken) {
		return set, text, err
	}
	if asJSON {
		if err := printJSON(std.Out, struct {
			OK       bool            `json:"ok"`
			Problems policy.Problems `json:"problems"`
		}{false, broken}); err != nil {
			return nil, nil, err
		}
		return nil, nil, exitCode(exitError)
	}
	for _, p := range broken {
		fmt.Fprintln(std.Err, p)
	}
	return nil, nil, exitCode(exitError)
}

func newPolicyCheck(std Process) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Check a file of policies, and list them",
		Long: `Reads a file of policies as "policy apply" does, or what comes in if FILE is "-". It lists
them, or says what is wrong, where, and what to do. The exit code is 0 if they could be
applied, 1 if not, 2 for a wrong command line. It asks no node.

With --json: {"ok": true, "policies": [{"name", "about", "algorithm", "limit": tokens,
"period": seconds, "capacity": tokens at most, "line": number}]}, or {"ok": false,
"problems": [{"file", "line", "message", "hint"}]}. A leaky-bucket has "max_delay": seconds,
a calendar-window "carry_over": tokens and, in place of "period", "calendar": "day", "week",
"month" or "year", "time_zone", "first_day", "first_month", unless it goes by the clock.
"admissions", if there are any: [{"name", "about", "key", "fields": [names], "amounts": [names],
"demands": [texts], "line"}].`,
		Example: `  keystead policy check policies.yaml
  git show HEAD:policies.yaml | keystead policy check -`,
		Args: exactArgs("FILE"),
		RunE: func(_ *cobra.Command, args []string) error {
			set, _, err := parsePolicies(std, args[0], asJSON)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(std.Out, struct {
					OK         bool            `json:"ok"`
					Policies   []policyJSON    `json:"policies"`
					Admissions []admissionJSON `json:"admissions,omitempty"`
				}{true, policiesJSON(set.All(), false), admissionsJSON(set.Admissions())})
			}
			for _, p := range set.All() {
				fmt.Fprintf(std.Out, "%s: %s\n", p.Name, p.Short())
			}
			for _, a := range set.Admissions() {
				fmt.Fprint(std.Out, a)
			}
			_, err = fmt.Fprintf(std.Out, "%s: all is well\n", policiesOf(set.Len()))
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func policiesOf(n int) string {
	if n == 1 {
		return "1 policy"
	}
	return strconv.Itoa(n) + " policies"
}

// policyJSON is a policy as --json prints it.
type policyJSON struct {
	Name      string      `json:"name"`
	About     string      `json:"about,omitempty"`
	Algorithm string      `json:"algorithm"`
	Limit     uint64      `json:"limit"`
	Period    seconds     `json:"period,omitempty"`
	Capacity  uint64      `json:"capacity"`
	MaxDelay  seconds     `json:"max_delay,omitempty"`
	Calendar  string      `json:"calendar,omitempty"`
	TimeZone  string      `json:"time_zone,omitempty"`
	FirstDay  int         `json:"first_day,omitempty"`
	FirstMon  int         `json:"first_month,omitempty"`
	CarryOver uint64      `json:"carry_over,omitempty"`
	Fallback  string      `json:"fallback,omitempty"`
	Budget    seconds     `json:"budget,omitempty"`
	Line      int         `json:"line,omitempty"`
	Bounds    []boundJSON `json:"bounds,omitempty"`
}

type boundJSON struct {
	Within   seconds     `json:"shorter_than"`
	AtMost   json.Number `json:"at_most"`
	WithLoss json.Number `json:"at_most_with_loss"`
}

func policiesJSON(all []*policy.Policy, bounds bool) []policyJSON {
	list := []policyJSON{}
	for _, p := range all {
		x := policyJSON{Name: p.Name, About: p.About, Algorithm: p.AlgorithmName(), Limit: p.Limit, Capacity: p.Capacity(), MaxDelay: seconds(p.MaxDelay), CarryOver: p.CarryOver(), Line: p.Line}
		if x.Calendar = p.Unit(); x.Calendar == "" {
			x.Period = seconds(p.Length())
		} else {
			c, _ := p.Calendar()
			x.TimeZone = c.Zone().Name()
			x.FirstMon, x.FirstDay = c.First()
		}
		if p.WithoutOwner() != nil {
			x.Fallback, x.Budget = p.FallbackName(), seconds(p.Fallback.Total())
		}
		if bounds {
			for _, b := range p.Bounds() {
				x.Bounds = append(x.Bounds, boundJSON{seconds(b.Time), json.Number(b.AtMost.String()), json.Number(b.WithLoss.String())})
			}
		}
		list = append(list, x)
	}
	return list
}

func newPolicyExplain(std Process) *cobra.Command {
	var f remote
	var file string
	var request requestFlags
	cmd := &cobra.Command{
		Use:   "explain [NAME...]",
		Short: "Say what policies admit at most, normally and while nodes are gone",
		Long: `Says in words and numbers what each policy, or those of the names, admits at most for one
key: in any time that is shorter than so long, while nodes join, leave and die, and when
what is kept of the key is lost. It explains the policies in force, or with --file those of
a file; then it asks no node.

With --field and --amount, and the name of one admission policy, it says which key and which
demands that has for such a request.

With --json: what "policy check" says of each, and "bounds": [{"shorter_than": seconds,
"at_most": tokens, "at_most_with_loss": tokens}]: the second one if what is kept of the key
is lost once in that time, and --lost-limits is full. Of a request: {"key", "demands": [{"name",
"of", "cost", "clamp", "max", "limit": [as above], "line"}]}.`,
		Example: `  keystead policy explain
  keystead policy explain login
  keystead policy explain login --file policies.yaml
  keystead policy explain chat --file policies.yaml --field org=7 --field user=42 --amount tokens=4000`,
		Args: func(*cobra.Command, []string) error { return nil },
		RunE: func(cmd *cobra.Command, args []string) error {
			set, err := f.policies(cmd.Context(), std, file)
			if err != nil {
				return err
			}
			return explainPolicies(std.Out, set, args, &request, f.json)
		},
	}
	f.flags(cmd)
	request.flags(cmd)
	cmd.Flags().StringVar(&file, "file", "", "explain the policies of a `FILE` and ask no node")
	return cmd
}

// explainPolicies says what the policies of the names admit, or what an admission policy demands of a
// request.
func explainPolicies(out io.Writer, set *policy.Set, args []string, request *requestFlags, asJSON bool) (err error) {
	if request.given() {
		if len(args) != 1 || set.Admission(args[0]) == nil {
			return usageError{errors.New("--field and --amount go with the name of one admission policy")}
		}
		return explainRequest(out, set.Admission(args[0]), request, asJSON)
	}
	all, admissions := set.All(), set.Admissions()
	if len(args) > 0 {
		all, admissions = all[:0], admissions[:0]
	}
	for _, name := range args {
		p := set.Lookup(name)
		if a := set.Admission(name); a != nil {
			admissions = append(admissions, a)
			continue
		}
		if p == nil {
			return hinted{fmt.Errorf("there is no policy %q", name), "`keystead policy explain` without names explains all that there are"}
		}
		all = append(all, p)
	}
	if asJSON && len(all) == 0 && len(admissions) > 0 {
		return printJSON(out, admissionsJSON(admissions))
	}
	if asJSON {
		return printJSON(out, policiesJSON(all, true))
	}
	for i, p := range all {
		if i > 0 {
			fmt.Fprintln(out)
		}
		if err := p.Explain(out); err != nil {
			return err
		}
	}
	for i, a := range admissions {
		if i+len(all) > 0 {
			fmt.Fprintln(out)
		}
		fmt.Fprint(out, a)
	}
	if len(all)+len(admissions) == 0 {
		_, err = fmt.Fprintln(out, "there are no policies")
	}
	return err
}

// policies returns those of a file, or without one those in force.
func (r *remote) policies(ctx context.Context, std Process, file string) (*policy.Set, error) {
	if file != "" {
		set, _, err := parsePolicies(std, file, false)
		return set, err
	}
	node, err := r.client(ctx)
	if err != nil {
		return nil, err
	}
	defer node.Close()
	p, err := node.Admin().Policies(ctx)
	if err != nil {
		return nil, node.explain(err)
	}
	if p.Version == 0 {
		return new(policy.Set), nil
	}
	set, err := policy.Parse("", []byte(p.Text))
	if err != nil {
		err = hinted{fmt.Errorf("the policies in force (version %d) are of a later program: %w", p.Version, err), "upgrade this one"}
	}
	return set, err
}

func newPolicyApply(std Process) *cobra.Command {
	var f remote
	var expect uint64
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "apply FILE",
		Short: "Replace the policies of the cluster by those of a file",
		Long: `Replaces the policies of the cluster, all of them, by those of FILE, or by what comes in if
FILE is "-", and prints what has changed and their new version. Raft agrees on it; each
owner goes by the new ones when it has heard of them, within some 50 ms. What was spent of
a limit stays spent.

It replaces the version that --expect names, or the one in force when the command begins. If
others were applied meanwhile, it changes nothing, and the exit code is 3.

Checks that name a policy which is not there any more fail: take callers off it first.

With --json: {"version": number, "added": [names], "changed": [names], "removed": [names]}.`,
		Example: `  keystead policy apply policies.yaml --dry-run
  keystead policy apply policies.yaml
  keystead policy apply policies.yaml --expect 7521386112`,
		Args: exactArgs("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, text, err := parsePolicies(std, args[0], f.json)
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("expect") {
				return f.applyPolicies(cmd.Context(), std, string(text), &expect, dryRun)
			}
			return f.applyPolicies(cmd.Context(), std, string(text), nil, dryRun)
		},
	}
	f.flags(cmd)
	cmd.Flags().Uint64Var(&expect, "expect", 0, "version that is to be replaced; 0 = there are no policies yet (default: the one in force)")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "say what would change, and change nothing")
	return cmd
}

// applyPolicies replaces the policies of a version, or of the one in force if none is expected.
func (r *remote) applyPolicies(ctx context.Context, std Process, text string, expect *uint64, dryRun bool) error {
	node, err := r.client(ctx)
	if err != nil {
		return err
	}
	defer node.Close()
	if expect == nil {
		p, err := node.Admin().Policies(ctx)
		if err != nil {
			return node.explain(err)
		}
		expect = &p.Version
	}
	c, err := node.Admin().ApplyPolicies(ctx, text, *expect, dryRun)
	if conflict := (*client.Error)(nil); errors.As(err, &conflict) && conflict.Reason == client.ErrPolicyConflict {
		fmt.Fprintf(std.Err, "keystead: %s\n  hint: %s\n", conflict.Message, conflict.Hint)
		return exitCode(exitDenied)
	}
	if err != nil {
		return node.explain(err)
	}
	if r.json {
		return printJSON(std.Out, struct {
			Version uint64   `json:"version"`
			Added   []string `json:"added"`
			Changed []string `json:"changed"`
			Removed []string `json:"removed"`
		}{c.Version, orEmpty(c.Added), orEmpty(c.Changed), orEmpty(c.Removed)})
	}
	for _, x := range []struct {
		what  string
		names []string
	}{{"added", c.Added}, {"changed", c.Changed}, {"removed", c.Removed}} {
		if len(x.names) > 0 {
			fmt.Fprintf(std.Out, "%-8s %s\n", x.what, strings.Join(x.names, ", "))
		}
	}
	switch {
	case dryRun:
		_, err = fmt.Fprintf(std.Out, "version %d would be replaced\n", c.Version)
	case c.Version == *expect:
		_, err = fmt.Fprintf(std.Out, "version %d is in force already\n", c.Version)
	default:
		_, err = fmt.Fprintf(std.Out, "version %d is in force\n", c.Version)
	}
	return err
}

func orEmpty(names []string) []string { return append([]string{}, names...) }

func newPolicyShow(std Process) *cobra.Command {
	var f remote
	var version bool
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Print the policies in force, as they were applied",
		Long: `Prints the policies that the node at --addr goes by, as the file that was applied, or with
--version the number of their version alone, which is 0 if there are none.

With --json: {"version": number, "text": "…"}, and "problem": "…" if the node cannot go by
them because a later program wrote them.`,
		Example: `  keystead policy show
  keystead policy show | diff - policies.yaml
  keystead policy apply policies.yaml --expect "$(keystead policy show --version)"`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			node, err := f.client(cmd.Context())
			if err != nil {
				return err
			}
			defer node.Close()
			p, err := node.Admin().Policies(cmd.Context())
			if err != nil {
				return node.explain(err)
			}
			switch {
			case f.json:
				return printJSON(std.Out, struct {
					Version uint64 `json:"version"`
					Text    string `json:"text"`
					Problem string `json:"problem,omitempty"`
				}{p.Version, p.Text, p.Problem})
			case version:
				_, err = fmt.Fprintln(std.Out, p.Version)
				return err
			case p.Version == 0:
				fmt.Fprintln(std.Err, "there are no policies")
				return nil
			case p.Problem != "":
				fmt.Fprintf(std.Err, "the node cannot go by them: %s\n", p.Problem)
			}
			_, err = io.WriteString(std.Out, p.Text)
			return err
		},
	}
	f.flags(cmd)
	cmd.Flags().BoolVar(&version, "version", false, "print the number of their version alone")
	return cmd
}
