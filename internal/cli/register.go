package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/keystead/keystead/client"
)

func newRegister(std Process) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "register",
		Short: "Keep values of up to 60 KiB, with versions and fences",
		Example: `  keystead register put shop open
  keystead register get shop`,
	}
	onlySubcommands(cmd)
	cmd.AddCommand(newRegisterGet(std), newRegisterPut(std), newRegisterDelete(std), newRegisterWatch(std))
	return cmd
}

type registerFlags struct {
	remote
	name      string
	ifVersion uint64
	fence     uint64
	token     uint64 // of the lock that must be held
	lock      string // its name
	key       idempotencyKey
}

func (f *registerFlags) named(cmd *cobra.Command) {
	f.flags(cmd)
	cmd.Flags().StringVar(&f.name, "name", "", "which register of the key (default \"register\")")
}

// conditions are the flags of a change.
func (f *registerFlags) conditions(cmd *cobra.Command) {
	cmd.Flags().Uint64Var(&f.ifVersion, "if-version", 0, "the version that the register must have")
	cmd.Flags().Uint64Var(&f.fence, "fence", 0, "refuse the change if there was one under a greater fencing `TOKEN`")
	cmd.Flags().Uint64Var(&f.token, "while-held", 0, "refuse the change unless the lock of KEY is held now under this fencing `TOKEN`")
	cmd.Flags().StringVar(&f.lock, "lock", "", "the name of that lock (default \"lock\")")
	f.key.flags(cmd)
}

func (f *registerFlags) options(cmd *cobra.Command) (opts []client.RegisterOption, err error) {
	switch changed := cmd.Flags().Changed; {
	case changed("while-held") && f.token == 0:
		return nil, usageError{errors.New("--while-held is 0, which no lock is held under")}
	case changed("fence") && f.fence == 0:
		return nil, usageError{errors.New("--fence is 0, which is no fencing token: leave it out to write without one")}
	case changed("lock") && !changed("while-held"):
		return nil, usageError{errors.New("--lock says which lock --while-held is about, and that is missing")}
	}
	if f.token != 0 {
		opts = append(opts, client.WhileHeldAs(f.lock, f.token))
	}
	if f.fence != 0 {
		opts = append(opts, client.Fenced(f.fence))
	}
	if f.key != "" {
		opts = append(opts, client.IdempotencyKey(string(f.key)))
	}
	return opts, nil
}

// registerJSON is what register commands print with --json.
type registerJSON struct {
	Exists  bool    `json:"exists"`
	Value   []byte  `json:"value"` // base64
	Text    *string `json:"value_text,omitempty"`
	Version string  `json:"version"`
	Fence   string  `json:"fence,omitempty"`
	Applied *bool   `json:"applied,omitempty"`
	Refused string  `json:"refused,omitempty"`
	Epoch   uint64  `json:"epoch"`
	Lost    uint64  `json:"lost_epoch,omitempty"`
}

func registerJSONOf(s client.Stored, m client.Meta) registerJSON {
	j := registerJSON{Exists: s.Exists, Value: s.Value, Version: strconv.FormatUint(s.Version, 10), Epoch: m.Epoch, Lost: m.LostEpoch}
	if s.Value == nil {
		j.Value = []byte{}
	}
	if text := string(s.Value); utf8.ValidString(text) {
		j.Text = &text
	}
	return j
}

const registerAnswer = `With --json: {"exists": bool, "value": "base64", "version": "…", "epoch": number}, "value_text"
if it is UTF-8, "lost_epoch": number in the grace period of a loss`

func newRegisterGet(std Process) *cobra.Command {
	var f registerFlags
	cmd := &cobra.Command{
		Use:   "get KEY",
		Short: "Print a register, byte by byte",
		Long: `Prints the value of KEY's register and nothing else: no line is ended that the value
does not end. If there is no register, nothing is printed, and the exit code is 3; 1 if
whether there was one is not known, for the state of the key was lost.

` + registerAnswer + `, and
"fence": "…" if there was a change with one.`,
		Example: `  keystead register get shop
  if state=$(keystead register get shop); then echo "it is $state"; fi
  version=$(keystead register get shop --json | jq -r .version)`,
		Args: exactArgs("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			node, err := f.client(cmd.Context())
			if err != nil {
				return err
			}
			defer node.Close()
			v, err := node.Register(f.name).Get(cmd.Context(), args[0])
			if err != nil {
				return node.explain(err)
			}
			if f.json {
				j := registerJSONOf(v.Stored, v.Meta)
				if v.Fence != 0 {
					j.Fence = strconv.FormatUint(v.Fence, 10)
				}
				err = printJSON(std.Out, j)
			} else {
				_, err = std.Out.Write(v.Value)
			}
			switch {
			case err != nil || v.Exists:
				return err
			case v.Unknown():
				return fmt.Errorf("%s: whether there is a register is not known", graceText(v.LostEpoch))
			}
			return exitCode(exitDenied)
		},
	}
	f.named(cmd)
	return cmd
}

func newRegisterPut(std Process) *cobra.Command {
	var f registerFlags
	var ifAbsent bool
	cmd := &cobra.Command{
		Use:   "put KEY [VALUE]",
		Short: "Set a register, and print its version",
		Long: `Sets the register of KEY to VALUE, or without VALUE to what comes on standard input, byte
by byte: at most 61,440 bytes. Prints the version of the change.

With --if-version, --if-absent, --fence and --while-held it is refused where what they ask
for is not so: then nothing changes, the exit code is 3, and standard error says why.

` + registerAnswer + `,
"applied": bool, and "refused": "why". exists, value and version are of the register then.`,
		Example: `  keystead register put shop open
  keystead register put config < config.json
  keystead register put name:alice "$me" --if-absent       # exit code 3 if the name is taken
  keystead register put shop closed --if-version "$version"
  keystead lock deploy -- sh -c 'keystead register put deploy v2 --while-held "$KEYSTEAD_FENCING_TOKEN"'`,
		Args: rangeArgs(1, "KEY", "VALUE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			versioned := cmd.Flags().Changed("if-version")
			if versioned && ifAbsent {
				return usageError{errors.New("--if-version and --if-absent do not go together")}
			}
			opts, err := f.options(cmd)
			if err != nil {
				return err
			}
			value, err := valueOf(args[1:], std.In)
			if err != nil {
				return err
			}
			return f.change(cmd.Context(), std, func(ctx context.Context, n client.Register) (client.Written, error) {
				if versioned || ifAbsent {
					return n.CompareAndSet(ctx, args[0], value, f.ifVersion, opts...)
				}
				return n.Put(ctx, args[0], value, opts...)
			})
		},
	}
	f.named(cmd)
	f.conditions(cmd)
	cmd.Flags().BoolVar(&ifAbsent, "if-absent", false, "the register must not exist")
	return cmd
}

// valueOf returns the value in the arguments, or on standard input.
func valueOf(args []string, in io.Reader) ([]byte, error) {
	if len(args) > 0 {
		return []byte(args[0]), nil
	}
	value, err := io.ReadAll(io.LimitReader(in, client.MaxValue+1))
	if err == nil && len(value) > client.MaxValue {
		return nil, usageError{fmt.Errorf("the value has more than %d bytes", client.MaxValue)}
	}
	return value, err
}

// change makes a change, and shows its outcome.
func (f *registerFlags) change(ctx context.Context, std Process, call func(context.Context, client.Register) (client.Written, error)) error {
	node, err := f.client(ctx)
	if err != nil {
		return err
	}
	defer node.Close()
	w, err := call(ctx, node.Register(f.name))
	if err != nil {
		return node.explain(err)
	}
	refused := ""
	if w.Refusal != 0 {
		refused = w.Refusal.String()
	}
	switch {
	case f.json:
		j := registerJSONOf(w.Current, w.Meta)
		j.Applied, j.Refused, j.Version = &w.Applied, refused, strconv.FormatUint(w.Version, 10)
		err = printJSON(std.Out, j)
	case w.Applied:
		_, err = fmt.Fprintln(std.Out, w.Version)
	case w.Refusal == 0 && w.LostEpoch != 0:
	case refused != "":
		fmt.Fprintf(std.Err, "keystead: refused: %s; the register has version %d\n", refused, w.Version)
	default:
		fmt.Fprintln(std.Err, "keystead: there is no register")
	}
	switch {
	case err != nil || w.Applied:
		return err
	case w.Refusal == 0 && w.LostEpoch != 0:
		return fmt.Errorf("%s: whether there was a register is not known", graceText(w.LostEpoch))
	}
	return exitCode(exitDenied)
}

func newRegisterDelete(std Process) *cobra.Command {
	var f registerFlags
	var forget bool
	cmd := &cobra.Command{
		Use:   "delete KEY",
		Short: "Remove a register",
		Long: `Removes the register of KEY and prints the version of the removal: if it is made again, its
versions are above it. Conditions are as for "register put"; the exit code is 3, too, if
there is none; 1 if whether there was one is not known, for the state of the key was lost.

The greatest token that --fence had stays, so that what comes late is refused; with
--forget-fence that is forgotten, too.

` + registerAnswer + `,
"applied": bool, and "refused": "why".`,
		Example: `  keystead register delete shop
  keystead register delete name:alice --if-version "$version"`,
		Args: exactArgs("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts, err := f.options(cmd)
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("if-version") {
				opts = append(opts, client.IfVersion(f.ifVersion))
			}
			if forget {
				opts = append(opts, client.ForgetFence())
			}
			return f.change(cmd.Context(), std, func(ctx context.Context, n client.Register) (client.Written, error) {
				return n.Delete(ctx, args[0], opts...)
			})
		},
	}
	f.named(cmd)
	f.conditions(cmd)
	cmd.Flags().BoolVar(&forget, "forget-fence", false, "forget the greatest token of --fence, too")
	return cmd
}
