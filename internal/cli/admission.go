package cli

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/keystead/keystead/client"
)

// admitFlags are those of "keystead admit".
type admitFlags struct {
	remote
	name            string
	limits          []string
	anywhere        []string
	counters, slots []string
	algorithm       string
	calendar        calendarFlags
	clamp           int
	hold            time.Duration
	onExpiry        string
	tag             string
	peek            bool
	key             idempotencyKey
	policy          string
	request         requestFlags
}

const admissionNameText = "which admission of the key (default \"admission\")"

func newAdmit(std Process) *cobra.Command {
	var f admitFlags
	cmd := &cobra.Command{
		Use:   "admit {[KEY] --limit [KEY//]NAME=COUNT/PERIOD[:COST]... | --policy NAME --field NAME=VALUE...}",
		Short: "Charge several limits, counters and slots of a key at once, or none",
		Long: `Asks whether all demands pass, and charges them: all, or none. They are objects of KEY, each by a
name: levels such as user, team and service are names under one key. KEY//NAME is one of another key:
then the owners of all keys hold first, and all of them charge, or none does.

With --hold, what is charged is reserved, and the name of the hold is printed: "keystead settle"
says what it has cost. What nobody settles in that time is given back, or with --on-expiry charge
stays charged. --slots need a hold, and come back when it ends. With --tag, "keystead settle --tag"
ends one of the holds of that text, from wherever: nobody needs the name that is printed.

With --policy, an admission policy says key and demands by what the request is (--field) and costs
(--amount); "keystead policy explain" shows which. With --hold, the key is printed before the hold.

A refusal is printed to standard error, and the exit code is 3. With --json:
{"admitted": bool, "key", "hold": "…", "retry_after": seconds, "demands": [{"name", "refused": bool,
"reserved", "capacity", "remaining", "debt", "retry_after": seconds, "overridden": bool}],
"epoch": number}. "degraded": true if the owner could not be asked in time and the fallbacks of the
policy decided; of each demand it is then by what. There is no hold then, and - is printed for it:
"keystead settle KEY -" does nothing. Without --json, "(degraded: by NODE alone)" says so.`,
		Example: `  keystead admit org:7 --limit user:42=60/1m --limit team:3=1000/1m --limit org=5000/1m
  hold=$(keystead admit org:7 --limit tpm=100000/1m:4000 --slots running=8 --hold 2m) || exit
  if ./answer; then keystead settle org:7 "$hold" tpm=3127; else keystead settle org:7 "$hold" --release; fi
  keystead admit org:7 --limit tpm=1000/1m:100000 --clamp 25 --hold 1m    # reserves 250 at most
  keystead admit org:7 --limit rpm=60/1m --limit model:large//rpm=500/1m  # of two keys
  keystead admit org:7 --limit rpm=60/1m --anywhere all//rpm=90000/1m     # … and no message to the second
  held=$(keystead admit --policy chat --field org=7 --field user=42 --amount tokens=4000 --hold 1m) && keystead settle $held spent=3127
  keystead admit org:7 --slots running=8 --hold 5m --tag "req-$id"        # … keystead settle org:7 --tag "req-$id" --release
  keystead admit org:7 --limit quota=100000/month --algorithm calendar-window --time-zone Europe/Berlin --slots running=8 --hold 1m`,
		Args: f.args,
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, std, strings.Join(args, "")) },
	}
	f.flags(cmd)
	cmd.Flags().StringVar(&f.name, "name", "", admissionNameText)
	cmd.Flags().StringArrayVar(&f.limits, "limit", nil, "a limit, as NAME=COUNT/PERIOD or NAME=COUNT/PERIOD:COST; may be repeated")
	cmd.Flags().StringArrayVar(&f.anywhere, "anywhere", nil, "a limit of another key that the node may pay out of a chunk, as KEY//NAME=COUNT/PERIOD; without --hold")
	cmd.Flags().StringArrayVar(&f.counters, "counter", nil, "a counter and its bound, as NAME=MAX or NAME=MAX:COST; may be repeated")
	cmd.Flags().StringArrayVar(&f.slots, "slots", nil, "slots, as NAME=MAX or NAME=MAX:COST; may be repeated")
	cmd.Flags().StringVar(&f.algorithm, "algorithm", defaultAlgorithm, "of all limits: "+algorithmNames)
	f.calendar.flags(cmd)
	cmd.Flags().IntVar(&f.clamp, "clamp", 0, "the share of each capacity, in percent, that is reserved at most; not of slots")
	cmd.Flags().DurationVar(&f.hold, "hold", 0, "how long it is reserved at most; 0 = it is spent at once")
	cmd.Flags().StringVar(&f.onExpiry, "on-expiry", "release", "what becomes of what nobody settles: release or charge")
	cmd.Flags().StringVar(&f.tag, "tag", "", "the hold is ended by this `TEXT`; a retry makes another hold")
	cmd.Flags().BoolVar(&f.peek, "peek", false, "answer, but charge nothing")
	f.key.flags(cmd)
	cmd.Flags().StringVar(&f.policy, "policy", "", "`NAME` of the admission policy that says key and demands")
	f.request.flags(cmd)
	return cmd
}

// demanded is a demand on the command line: NAME=WHAT, or NAME=WHAT:COST.
func demanded(flag, text string) (name, what string, cost uint64, err error) {
	name, rest, ok := strings.Cut(text, "=")
	what, costs, has := strings.Cut(rest, ":")
	if cost = 1; has {
		cost, err = strconv.ParseUint(costs, 10, 64)
	}
	if !ok || name == "" || err != nil || cost == 0 {
		return "", "", 0, usageError{fmt.Errorf("--%s %q: say NAME=… or NAME=…:COST", flag, text)}
	}
	return name, what, cost, nil
}

// under splits what is called KEY//NAME.
func under(text string) (key, name string) {
	if key, name, ok := strings.Cut(text, "//"); ok {
		return key, name
	}
	return "", text
}

// demands returns what is demanded, and the names.
func (f *admitFlags) demands(c *client.Client) (all []client.Demand, names []string, err error) {
	algorithm, err := parseAlgorithm(f.algorithm)
	if err != nil {
		return nil, nil, err
	}
	for i, text := range slices.Concat(f.limits, f.anywhere) {
		flag, opts := "limit", []client.LimitOption(nil)
		if i >= len(f.limits) {
			flag, opts = "anywhere", []client.LimitOption{client.Anywhere()}
		}
		name, what, cost, err := demanded(flag, text)
		if err != nil {
			return nil, nil, err
		}
		r, err := parseRate(what)
		if err != nil {
			return nil, nil, usageError{fmt.Errorf("--%s %q: %w", flag, text, err)}
		}
		if err := f.calendar.judge(&r, algorithm.client); err != nil {
			return nil, nil, err
		}
		rate := f.calendar.onto(client.Rate{Limit: r.limit, Period: r.period, Algorithm: algorithm.client}, r.unit)
		key, own := under(name)
		if key == "" && flag == "anywhere" {
			return nil, nil, usageError{fmt.Errorf("--anywhere %q: say KEY//NAME=…\n  hint: a limit of the request's own KEY is a --limit", text)}
		}
		all, names = append(all, c.Limit(own, rate, opts...).Demand(cost).Clamped(f.clamp).Under(key)), append(names, name)
	}
	for _, kind := range []string{"counter", "slots"} {
		texts := f.counters
		if kind == "slots" {
			texts = f.slots
		}
		for _, text := range texts {
			name, what, cost, err := demanded(kind, text)
			if err != nil {
				return nil, nil, err
			}
			most, err := strconv.ParseInt(what, 10, 64)
			if err != nil {
				return nil, nil, usageError{fmt.Errorf("--%s %q: %q is no number", kind, text, what)}
			}
			key, own := under(name)
			d := c.Counter(own).Demand(cost, most).Clamped(f.clamp)
			if kind == "slots" {
				d = client.Slots(own, cost, most)
			}
			all, names = append(all, d.Under(key)), append(names, name)
		}
	}
	if len(all) == 0 {
		return nil, nil, usageError{errors.New("nothing is demanded\n  hint: for example --limit rpm=60/1m")}
	}
	return all, names, nil
}

func (f *admitFlags) validate() error {
	if f.onExpiry != "release" && f.onExpiry != "charge" {
		return usageError{fmt.Errorf("--on-expiry %q: choose release or charge", f.onExpiry)}
	}
	if f.clamp < 0 || f.clamp > 100 {
		return usageError{fmt.Errorf("--clamp %d: choose 1 to 100", f.clamp)}
	}
	if f.clamp != 0 && f.hold == 0 && !f.peek {
		return usageError{errors.New("--clamp goes with --hold: what is spent at once is charged in full")}
	}
	if f.tag != "" && f.hold == 0 && !f.peek {
		return usageError{errors.New("--tag goes with --hold: what is spent at once is not ended")}
	}
	return nil
}

func (f *admitFlags) run(cmd *cobra.Command, std Process, key string) error {
	if err := f.validate(); err != nil {
		return err
	}
	node, err := f.client(cmd.Context())
	if err != nil {
		return err
	}
	defer node.Close()
	q := client.Admit{Key: key, Policy: f.policy}
	var names []string
	if f.policy != "" {
		q.Fields, q.Amounts, err = f.request.read()
	} else {
		q.Demands, names, err = f.demands(node.Client)
	}
	if err != nil {
		return err
	}
	q.Hold, q.Charge, q.Tag, q.Peek, q.Options = f.hold, f.onExpiry == "charge", f.tag, f.peek, []client.CallOption{f.key.option()}
	h, err := node.Admission(f.name).Admit(cmd.Context(), q)
	if f.policy != "" {
		for _, d := range h.Demands {
			names = append(names, d.Name)
		}
	}
	refused := errors.Is(err, client.ErrNotAdmitted)
	switch {
	case err != nil && !refused:
		return f.inDemands(node.explain(err))
	case f.json:
		err = printJSON(std.Out, admittedJSONOf(h, names))
	case refused:
		err = sayRefused(std, h, names)
	case h.Degraded && f.hold != 0 && !f.peek:
		fmt.Fprintf(std.Err, "keystead: admitted without a hold%s\n", aloneMark(h))
		_, err = fmt.Fprintln(std.Out, h.Key(), noHold)
	case h.Hold() != "" && f.policy != "":
		_, err = fmt.Fprintln(std.Out, h.Key(), h.Hold())
	case h.Hold() != "":
		_, err = fmt.Fprintln(std.Out, h.Hold())
	default:
		said := "admitted"
		if f.peek {
			said = "would be admitted"
		}
		_, err = fmt.Fprintf(std.Out, "%s%s%s\n", said, graceMark(h.LostEpoch), aloneMark(h))
	}
	if err == nil && refused {
		err = exitCode(exitDenied)
	}
	return err
}

func sayRefused(std Process, h *client.Admitted, names []string) error {
	var by []string
	for i, d := range h.Demands {
		if d.Refused {
			text := fmt.Sprintf("%s has %d of %d left", printable(names[i]), d.Remaining, d.Capacity)
			if d.Debt > 0 {
				text = fmt.Sprintf("%s owes %d", printable(names[i]), d.Debt)
			}
			by = append(by, text)
		}
	}
	when := "try again when slots or a counter are given back"
	if h.RetryAfter > 0 {
		when = againIn(h.RetryAfter)
	}
	if h.Contended {
		when = "try again: what is missing is held for other requests, which may be refused"
	}
	if len(by) == 0 {
		by = []string{"by what was said before"}
	}
	_, err := fmt.Fprintf(std.Err, "refused  %s; %s%s\n", strings.Join(by, ", "), when, aloneMark(h))
	return err
}

type demandJSON struct {
	Name       string  `json:"name"`
	Refused    bool    `json:"refused"`
	Reserved   uint64  `json:"reserved"`
	Capacity   uint64  `json:"capacity"`
	Remaining  uint64  `json:"remaining"`
	Debt       uint64  `json:"debt"`
	RetryAfter seconds `json:"retry_after"`
	Overridden bool    `json:"overridden,omitempty"`
	Degraded   string  `json:"degraded,omitempty"`
}

type admittedJSON struct {
	Admitted   bool         `json:"admitted"`
	Key        string       `json:"key"`
	Hold       string       `json:"hold,omitempty"`
	RetryAfter seconds      `json:"retry_after"`
	Demands    []demandJSON `json:"demands"`
	Epoch      uint64       `json:"epoch"`
	Lost       uint64       `json:"lost_epoch,omitempty"`
	Policy     uint64       `json:"policy_version,omitempty"`
	Degraded   bool         `json:"degraded,omitempty"`
}

func admittedJSONOf(h *client.Admitted, names []string) admittedJSON {
	j := admittedJSON{h.OK, h.Key(), h.Hold(), seconds(h.RetryAfter), nil, h.Epoch, h.LostEpoch, h.PolicyVersion, h.Degraded}
	for i, d := range h.Demands {
		j.Demands = append(j.Demands, demandJSON{names[i], d.Refused, d.Reserved, d.Capacity, d.Remaining, d.Debt, seconds(d.RetryAfter), d.Overridden, string(d.Degraded)})
	}
	return j
}

func newAdmission(std Process) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "admission",
		Short: "List and extend holds that \"keystead admit\" has made",
		Example: `  keystead admission holds org:7
  keystead admission extend org:7 "$hold" --hold 2m`,
	}
	onlySubcommands(cmd)
	cmd.AddCommand(newHolds(std), newExtend(std))
	return cmd
}

func newHolds(std Process) *cobra.Command {
	var f remote
	var name string
	cmd := &cobra.Command{
		Use:   "holds KEY",
		Short: "List holds that are not settled",
		Long: `Lists at most 100 holds of KEY, a line each: the hold, the time until it is over, and what it has
reserved. With --json: {"holds": [{"hold", "over": bool, "age": seconds, "left": seconds,
"on_expiry", "reserved": {"NAME": number}}], "total": number}.`,
		Example: `  keystead admission holds org:7`,
		Args:    exactArgs("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			node, err := f.client(cmd.Context())
			if err != nil {
				return err
			}
			defer node.Close()
			holds, total, err := node.Admission(name).Holds(cmd.Context(), args[0], "")
			if err != nil {
				return node.explain(err)
			}
			return showHolds(std, holds, total, f.json)
		},
	}
	f.flags(cmd)
	cmd.Flags().StringVar(&name, "name", "", admissionNameText)
	return cmd
}

type holdJSON struct {
	Hold     string            `json:"hold"`
	Over     bool              `json:"over"`
	Age      seconds           `json:"age"`
	Left     seconds           `json:"left"`
	OnExpiry string            `json:"on_expiry"`
	Reserved map[string]uint64 `json:"reserved"`
}

func showHolds(std Process, holds []client.HoldInfo, total int, asJSON bool) error {
	all := []holdJSON{}
	for _, h := range holds {
		j := holdJSON{h.Hold, h.Over, seconds(h.Age), seconds(h.Left), "release", map[string]uint64{}}
		if h.Charge {
			j.OnExpiry = "charge"
		}
		line := h.Hold + "  for " + people(h.Left)
		if h.Over {
			line = h.Hold + "  over"
		}
		for _, c := range h.Costs {
			j.Reserved[c.Name] = c.Cost
			line += fmt.Sprintf("  %s: %d", printable(c.Name), c.Cost)
		}
		if all = append(all, j); asJSON {
			continue
		}
		if _, err := fmt.Fprintln(std.Out, line); err != nil {
			return err
		}
	}
	switch {
	case asJSON:
		return printJSON(std.Out, struct {
			Holds []holdJSON `json:"holds"`
			Total int        `json:"total"`
		}{all, total})
	case total > len(holds):
		fmt.Fprintf(std.Err, "keystead: %d of %d holds are shown\n", len(holds), total)
	}
	return nil
}

func newExtend(std Process) *cobra.Command {
	var f remote
	var name string
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:   "extend KEY HOLD --hold TIME",
		Short: "Have a hold end later",
		Long: `Has a hold end --hold from now. It never shortens one: a hold that ends later does so, and is
"extended" as well. The exit code is 3 if its time was over before, or if it is unknown: settled,
forgotten, or it never was. With --json: {"extended": bool}.`,
		Example: `  keystead admission extend org:7 "$hold" --hold 2m`,
		Args:    exactArgs("KEY", "HOLD"),
		RunE: func(cmd *cobra.Command, args []string) error {
			node, err := f.client(cmd.Context())
			if err != nil {
				return err
			}
			defer node.Close()
			goesOn, err := node.Admission(name).Extend(cmd.Context(), args[0], args[1], ttl)
			unknown := errors.Is(err, client.ErrHoldUnknown)
			switch {
			case unknown && !f.json:
				return unknownHold(std)
			case err != nil && !unknown:
				return node.explain(err)
			}
			said := "extended"
			if !goesOn {
				said = "over"
			}
			if f.json {
				err = printJSON(std.Out, map[string]bool{"extended": goesOn})
			} else {
				_, err = fmt.Fprintln(std.Out, said)
			}
			if err == nil && !goesOn {
				err = exitCode(exitDenied)
			}
			return err
		},
	}
	f.flags(cmd)
	cmd.Flags().StringVar(&name, "name", "", admissionNameText)
	cmd.Flags().DurationVar(&ttl, "hold", time.Minute, "how long it lasts from now, at least")
	return cmd
}
