package cli

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/policy"
)

// requestFlags are what a request is, and costs, for an admission policy.
type requestFlags struct{ fields, amounts []string }

func (f *requestFlags) flags(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&f.fields, "field", nil, "what the request is, as `NAME=VALUE`; may be repeated")
	cmd.Flags().StringArrayVar(&f.amounts, "amount", nil, "what the request costs, as `NAME=COUNT`; may be repeated")
}

func (f *requestFlags) given() bool { return len(f.fields)+len(f.amounts) > 0 }

// read returns what the flags say.
func (f *requestFlags) read() (fields map[string]string, amounts map[string]uint64, err error) {
	fields, amounts = map[string]string{}, map[string]uint64{}
	for _, text := range f.fields {
		name, value, ok := strings.Cut(text, "=")
		if _, twice := fields[name]; !ok || name == "" || twice {
			return nil, nil, usageError{fmt.Errorf("--field %q: say NAME=VALUE, each name once", text)}
		}
		fields[name] = value
	}
	for _, text := range f.amounts {
		name, count, ok := strings.Cut(text, "=")
		n, err := strconv.ParseUint(count, 10, 64)
		if _, twice := amounts[name]; !ok || name == "" || err != nil || twice {
			return nil, nil, usageError{fmt.Errorf("--amount %q: say NAME=COUNT, each name once", text)}
		}
		amounts[name] = n
	}
	return fields, amounts, nil
}

// admitArgs judges the arguments of "keystead admit": a KEY, unless a policy says it.
func (f *admitFlags) args(cmd *cobra.Command, args []string) error {
	if f.policy == "" {
		if f.request.given() {
			return usageError{errors.New("--field and --amount go with --policy")}
		}
		return optionalKey(cmd, args)
	}
	for _, other := range []string{"limit", "anywhere", "counter", "slots", "algorithm", "time-zone", "first-day", "first-month", "carry-over", "clamp"} {
		if cmd.Flags().Changed(other) {
			return usageError{fmt.Errorf("--policy and --%s exclude each other\n  hint: `keystead policy explain %s --field …` shows what it demands", other, f.policy)}
		}
	}
	if len(args) > 0 {
		return usageError{fmt.Errorf("--policy says the key: leave %q out", args[0])}
	}
	return nil
}

// optionalKey judges the KEY of demands, which is not needed if each of them has its own.
func optionalKey(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return exactArgs("KEY")(cmd, args)
	}
	for _, flag := range []string{"limit", "counter", "slots"} {
		texts, _ := cmd.Flags().GetStringArray(flag)
		for _, text := range texts {
			name, _, _ := strings.Cut(text, "=")
			if key, _ := under(name); key != "" {
				return nil
			}
		}
	}
	return exactArgs("KEY")(cmd, args)
}

// admissionJSON is an admission policy as --json prints it.
type admissionJSON struct {
	Name    string   `json:"name"`
	About   string   `json:"about,omitempty"`
	Key     string   `json:"key"`
	Fields  []string `json:"fields"`
	Amounts []string `json:"amounts"`
	Demands []string `json:"demands"`
	Line    int      `json:"line,omitempty"`
}

func admissionsJSON(all []*policy.Admission) []admissionJSON {
	list := []admissionJSON{}
	for _, a := range all {
		x := admissionJSON{Name: a.Name, About: a.About, Key: a.Key.String(), Fields: orEmpty(a.Fields), Amounts: orEmpty(a.Amounts()), Line: a.Line}
		for _, r := range a.Demands {
			x.Demands = append(x.Demands, r.Name.String()+": "+r.Short())
		}
		list = append(list, x)
	}
	return list
}

// selectedJSON is what an admission policy demands of a request, as --json prints it.
type selectedJSON struct {
	Key     string               `json:"key"`
	Demands []selectedDemandJSON `json:"demands"`
}

type selectedDemandJSON struct {
	Name   string       `json:"name"`
	Of     string       `json:"of"`
	Cost   uint64       `json:"cost"`
	Clamp  uint32       `json:"clamp,omitempty"`
	Max    int64        `json:"max,omitempty"`
	Policy []policyJSON `json:"limit,omitempty"`
	Line   int          `json:"line"`
}

// explainRequest says what an admission policy demands of a request.
func explainRequest(out io.Writer, a *policy.Admission, request *requestFlags, asJSON bool) error {
	fields, amounts, err := request.read()
	if err != nil {
		return err
	}
	s, err := a.Select(fields, amounts)
	if bad := (*failure.Error)(nil); errors.As(err, &bad) && bad.Hint != "" {
		return hinted{err, bad.Hint}
	}
	if err != nil {
		return err
	}
	if !asJSON {
		return s.Explain(out)
	}
	x := selectedJSON{Key: s.Key}
	for i := range s.Demands {
		d := &s.Demands[i]
		y := selectedDemandJSON{Name: d.Name, Of: d.Of.String(), Cost: d.Cost, Clamp: d.Clamp, Max: d.Max, Line: d.Line}
		if d.Of == policy.OfLimit {
			y.Policy = policiesJSON([]*policy.Policy{&d.Limit}, true)
		}
		x.Demands = append(x.Demands, y)
	}
	return printJSON(out, x)
}

// noHold stands for the hold of what was admitted without the owner of its key: there is nothing to settle.
const noHold = "-"

// showNoHold says that there is no hold to settle.
func showNoHold(std Process, asJSON bool) error {
	if asJSON {
		return showSettled(std, &client.Settled{}, true)
	}
	_, err := fmt.Fprintln(std.Out, "nothing to settle: a fallback admitted it")
	return err
}

// aloneMark says which node has admitted without the owner.
func aloneMark(h *client.Admitted) string {
	if !h.Degraded {
		return ""
	}
	return fmt.Sprintf(" (degraded: by %s alone)", h.Owner)
}
