package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/keystead/keystead/envoy/rls"
)

// rlsFlags are the settings of Envoy's rate limit service.
func (f *nodeFlags) rlsFlags(fl *pflag.FlagSet) {
	fl.StringVar(&f.RLS.Path, "rls-config", "", "`PATH` of a configuration of Envoy's rate limit service, a YAML file or a directory of them; empty = no such service")
	fl.BoolVar(&f.RLS.MergeDomains, "rls-merge-domains", false, "let several files of --rls-config add to one domain")
	f.RLS.Headers = rls.NoHeaders
	fl.StringVar((*string)(&f.RLS.Headers), "rls-headers", string(rls.NoHeaders), "headers that clients of Envoy get: none, x-ratelimit, ratelimit or ietf")
	fl.BoolVar(&f.RLS.Metadata, "rls-metadata", false, "put requests, and metadata of descriptors that are not over their limit, into the dynamic metadata of answers")
	fl.BoolVar(&f.RLS.Shadow, "rls-shadow", false, "let all requests of Envoy through, and count what would have been refused")
}

// rlsSetting makes an error about the files of --rls-config one about a setting.
func rlsSetting(err error) error {
	if broken := (rls.Problems)(nil); errors.As(err, &broken) {
		return usageError{fmt.Errorf("--rls-config: %s", broken)}
	}
	return err
}

func newRLS(std Process) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rls",
		Short: "Look at the configuration of Envoy's rate limit service",
		Example: `  keystead rls validate /etc/ratelimit
  keystead rls match /etc/ratelimit web remote_address=10.0.0.1
  keystead rls status`,
	}
	onlySubcommands(cmd)
	cmd.AddCommand(newRLSValidate(std), newRLSMatch(std), newRLSStatus(std))
	return cmd
}

func newRLSValidate(std Process) *cobra.Command {
	var opts rls.LoadOptions
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "validate FILE|DIR...",
		Short: "Check configuration files, and list their limits",
		Long: `Reads configuration files as a node with --rls-config does: of a directory those
that end in .yaml or .yml. It lists the limits, or says what is wrong, where, and what
to do. The exit code is 0 if a node would take the files, 1 if not, 2 for a wrong
command line. It asks no node.

With --json: {"ok": bool, "files": […], "domains": […], "limits": [{"domain",
"descriptor", "limit", "name", "replaces": […], "algorithm", "burst",
"all_or_nothing", "overdraft", "over_limit", "on_failure", "shadow_mode", "quota_mode", "file",
"line", "metadata": {…}}]}, or {"ok": false, "problems": [{"file", "line",
"message", "hint"}]}.`,
		Example: `  keystead rls validate ratelimit.yaml
  keystead rls validate /etc/ratelimit --merge-domains --json`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return wrongUse(cmd, "`"+cmd.CommandPath()+"` takes files or directories", "")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			rules, err := rls.Load(args, opts)
			if err != nil {
				return showProblems(std, err, asJSON)
			}
			if asJSON {
				return printJSON(std.Out, rulesJSON(rules))
			}
			return printRules(std.Out, rules)
		},
	}
	cmd.Flags().BoolVar(&opts.MergeDomains, "merge-domains", false, "let several files add to one domain, as --rls-merge-domains of a node")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// showProblems prints what is wrong with files. Its error is the exit code.
func showProblems(std Process, err error, asJSON bool) error {
	var broken rls.Problems
	if !errors.As(err, &broken) {
		return err
	}
	if asJSON {
		if err := printJSON(std.Out, struct {
			OK       bool         `json:"ok"`
			Problems rls.Problems `json:"problems"`
		}{false, broken}); err != nil {
			return err
		}
		return exitCode(exitError)
	}
	for _, p := range broken {
		fmt.Fprintln(std.Err, p)
	}
	return exitCode(exitError)
}

// limitJSON is a limit as `rls validate --json` prints it.
type limitJSON struct {
	Domain       string   `json:"domain"`
	Descriptor   string   `json:"descriptor"`
	Limit        string   `json:"limit"`
	Name         string   `json:"name,omitempty"`
	Replaces     []string `json:"replaces,omitempty"`
	Algorithm    string   `json:"algorithm,omitempty"`
	Aligned      bool     `json:"aligned,omitempty"`
	Burst        uint64   `json:"burst,omitempty"`
	AllOrNothing bool     `json:"all_or_nothing"`
	Overdraft    bool     `json:"overdraft,omitempty"`
	OverLimit    string   `json:"over_limit,omitempty"`
	OnFailure    string   `json:"on_failure,omitempty"`
	ShadowMode   bool     `json:"shadow_mode"`
	QuotaMode    bool     `json:"quota_mode"`
	File         string   `json:"file"`
	Line         int      `json:"line"`

	Metadata map[string]any `json:"metadata,omitempty"`
}

func toLimitJSON(l *rls.Limit) limitJSON {
	x := limitJSON{Domain: l.Domain, Descriptor: l.Path, Limit: l.Rate(), Name: l.Name, Replaces: l.Replaces, Aligned: l.Aligned, Burst: l.Burst,
		AllOrNothing: l.AllOrNothing, Overdraft: l.Overdraft, ShadowMode: l.Shadow, QuotaMode: l.Quota, File: l.File, Line: l.Line}
	if l.Metadata != nil {
		x.Metadata = l.Metadata.AsMap()
	}
	if !l.Unlimited {
		x.Algorithm, x.OnFailure, x.OverLimit = l.How(), l.OnFailure.String(), "spend_nothing"
		if l.SpendRest {
			x.OverLimit = "spend_rest"
		}
	}
	return x
}

func rulesJSON(r *rls.Rules) any {
	list := []limitJSON{}
	for _, l := range r.Limits() {
		list = append(list, toLimitJSON(l))
	}
	return struct {
		OK      bool        `json:"ok"`
		Files   []string    `json:"files"`
		Domains []string    `json:"domains"`
		Limits  []limitJSON `json:"limits"`
	}{true, r.Files(), r.Domains(), list}
}

func printRules(out io.Writer, r *rls.Rules) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "DOMAIN\tDESCRIPTOR\tLIMIT\tALGORITHM\tNOTES\tAT")
	for _, l := range r.Limits() {
		algorithm := "-"
		if !l.Unlimited {
			algorithm = l.How()
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s:%d\n", l.Domain, l.Path, l.Rate(), algorithm, orDash(strings.Join(notes(l), ", ")), l.File, l.Line)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "%d limits in %d domains of %d files: all is well\n", len(r.Limits()), len(r.Domains()), len(r.Files()))
	return err
}

// notes returns what is unusual about a limit.
func notes(l *rls.Limit) []string {
	var all []string
	note := func(yes bool, text string) {
		if yes {
			all = append(all, text)
		}
	}
	note(l.Aligned, "aligned")
	note(l.Name != "", "name "+l.Name)
	note(len(l.Replaces) > 0, "replaces "+strings.Join(l.Replaces, " "))
	note(l.Burst > 0, fmt.Sprintf("burst %d", l.Burst))
	note(l.AllOrNothing, "all or nothing")
	note(l.Overdraft, "overdraft")
	note(!l.SpendRest && !l.AllOrNothing && !l.Unlimited && l.Hold == 0 && l.Policy == "", "spends nothing over the limit")
	note(l.OnFailure != rls.FailError, "on failure "+l.OnFailure.String())
	note(l.Shadow, "shadow")
	note(l.Quota, "quota")
	note(l.Metadata != nil, "metadata")
	return slices.Clip(all)
}

func newRLSMatch(std Process) *cobra.Command {
	var opts rls.LoadOptions
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "match FILE|DIR DOMAIN KEY=VALUE...",
		Short: "Say which limit counts for a descriptor",
		Long: `Says which limit of configuration files counts for a descriptor of these entries, in
their order, and which object of the limit service counts it. The exit code is 0 also
if there is no limit. It asks no node.

With --json: {"limited": bool, "limit": as "keystead rls validate --json", "key",
"name": of the object}.`,
		Example: `  keystead rls match ratelimit.yaml web remote_address=10.0.0.1
  keystead rls match /etc/ratelimit web path=/files/a user=u1 --json`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 3 {
				return wrongUse(cmd, "`"+cmd.CommandPath()+"` takes a file or directory, a domain, and one KEY=VALUE or more", "")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			rules, err := rls.Load(args[:1], opts)
			if err != nil {
				return showProblems(std, err, asJSON)
			}
			if !slices.Contains(rules.Domains(), args[1]) {
				return hinted{fmt.Errorf("there is no domain %q", args[1]), "there are " + strings.Join(rules.Domains(), ", ")}
			}
			entries := make([][2]string, 0, len(args)-2)
			for _, a := range args[2:] {
				key, value, ok := strings.Cut(a, "=")
				if !ok {
					return usageError{fmt.Errorf("%q: write KEY=VALUE", a)}
				}
				entries = append(entries, [2]string{key, value})
			}
			l, key, name := rules.Match(args[1], entries)
			return showMatch(std.Out, l, key, name, asJSON)
		},
	}
	cmd.Flags().BoolVar(&opts.MergeDomains, "merge-domains", false, "let several files add to one domain, as --rls-merge-domains of a node")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func showMatch(out io.Writer, l *rls.Limit, key, name string, asJSON bool) error {
	if asJSON {
		m := struct {
			Limited bool       `json:"limited"`
			Limit   *limitJSON `json:"limit,omitempty"`
			Key     string     `json:"key,omitempty"`
			Name    string     `json:"name,omitempty"`
		}{Key: key, Name: name}
		if m.Limited = l != nil && !l.Unlimited; l != nil {
			x := toLimitJSON(l)
			m.Limit = &x
		}
		return printJSON(out, m)
	}
	if l == nil {
		_, err := fmt.Fprintln(out, "no limit")
		return err
	}
	fmt.Fprintf(out, "%s  %s (%s:%d)\n", l.Rate(), l.Path, l.File, l.Line)
	for _, n := range notes(l) {
		fmt.Fprintln(out, "  "+n)
	}
	if l.Unlimited {
		return nil
	}
	_, err := fmt.Fprintf(out, "counted by %s as key %s, name %s\n", l.Algorithm, key, name)
	return err
}

func newRLSStatus(std Process) *cobra.Command {
	var addr string
	var timeout time.Duration
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Say which configuration a node has in force",
		Long: `Asks the admin port of a node which configuration of the rate limit service is in
force. The exit code is 3 if the files have changed and are broken, so that those from
before are in force; what is wrong is said, too.

With --json: {"path", "files", "domains", "limits": numbers, "read": when, "broken":
[{"file", "line", "message", "hint"}]}.`,
		Example: `  keystead rls status
  keystead rls status --admin-addr 10.0.0.2:7480 --json`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			st, err := askRLS(ctx, addr)
			if err != nil {
				return err
			}
			return showRLS(std.Out, st, asJSON)
		},
	}
	cmd.Flags().StringVar(&addr, "admin-addr", defaultAdminAddr, "`HOST:PORT` of the node's admin endpoints")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Second, "how long to wait for the answer")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// maxStatus bounds what is read of a node's status, in bytes.
const maxStatus = 1 << 20

// askRLS gets the part of a node's status that is about the rate limit service.
func askRLS(ctx context.Context, addr string) (*rls.Status, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/status", nil)
	if err != nil {
		return nil, usageError{fmt.Errorf("--admin-addr %q: write HOST:PORT, like %s", addr, defaultAdminAddr)}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, hinted{fmt.Errorf("asking the node at %s: %w", addr, err), "is it running, and is that its --admin-addr?"}
	}
	defer resp.Body.Close()
	var st struct {
		RLS *rls.Status `json:"rls"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxStatus)).Decode(&st); err != nil || resp.StatusCode != http.StatusOK {
		return nil, hinted{fmt.Errorf("what is at %s does not answer as a node does (%s)", addr, resp.Status), "give its --admin-addr"}
	}
	if st.RLS == nil {
		return nil, hinted{fmt.Errorf("the node at %s has no rate limit service", addr), "start it with --rls-config"}
	}
	return st.RLS, nil
}

func showRLS(out io.Writer, st *rls.Status, asJSON bool) error {
	var err error
	if asJSON {
		err = printJSON(out, st)
	} else {
		_, err = fmt.Fprintf(out, "%s: %d limits in %d domains of %d files, read %s\n", st.Path, st.Limits, st.Domains, st.Files, st.Read.Format(time.RFC3339))
		if len(st.Broken) > 0 {
			fmt.Fprintln(out, "The files have changed since and are broken; what was read before is in force:")
		}
		for _, p := range st.Broken {
			fmt.Fprintln(out, p)
		}
	}
	if err == nil && len(st.Broken) > 0 {
		err = exitCode(exitUnhealthy)
	}
	return err
}
