package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/keystead/keystead/internal/config"
)

// usageError is a command line that does not make sense.
type usageError struct{ error }

// wrongUse is a usageError with a hint that leads to the command's help.
func wrongUse(cmd *cobra.Command, problem, hint string) error {
	see := "see `" + cmd.CommandPath() + " --help`"
	switch {
	case hint == "":
		hint = see
	case !strings.HasSuffix(hint, "?"):
		hint += "; " + see
	}
	return usageError{fmt.Errorf("%s\n  hint: %s", problem, hint)}
}

// exactArgs is cobra.ExactArgs with a message that names what is missing.
func exactArgs(names ...string) cobra.PositionalArgs { return rangeArgs(len(names), names...) }

// rangeArgs accepts one argument for each of names; those from the least-th on may be
// left out.
func rangeArgs(least int, names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) >= least && len(args) <= len(names) {
			return nil
		}
		takes := strings.Join(names[:least], " and ")
		if rest := strings.Join(names[least:], " and "); rest != "" {
			takes += " and, if you like, " + rest
		}
		if takes == "" {
			takes = "nothing but flags"
		}
		return wrongUse(cmd, "`"+cmd.CommandPath()+"` takes "+takes, "")
	}
}

// onlySubcommands is for a command that does nothing by itself: it shows its help, and
// suggests what a wrong subcommand may have meant.
func onlySubcommands(cmd *cobra.Command) {
	cmd.SuggestionsMinimumDistance = 2
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return unknownCommand(cmd, args[0])
	}
}

func unknownCommand(cmd *cobra.Command, name string) error {
	hint := ""
	if near := cmd.SuggestionsFor(name); len(near) > 0 {
		hint = "did you mean `" + cmd.CommandPath() + " " + strings.Join(near, "` or `"+cmd.CommandPath()+" ") + "`?"
	}
	return wrongUse(cmd, fmt.Sprintf("unknown command %q for `%s`", name, cmd.CommandPath()), hint)
}

// newHelp is cobra's help command with an error for what does not exist.
func newHelp() *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND]...",
		Short:   "Show the help of a command",
		Example: `  keystead help limit check`,
		// Help does not depend on settings, so wrong ones do not keep it away.
		PersistentPreRunE: func(*cobra.Command, []string) error { return nil },
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			if err != nil {
				return usageError{err}
			}
			if len(rest) > 0 {
				return unknownCommand(about, rest[0])
			}
			about.InitDefaultHelpFlag() // cobra adds them only to what it executes
			about.InitDefaultVersionFlag()
			return about.Help()
		},
	}
}

// flagError suggests what may have been meant by a wrong flag.
func flagError(cmd *cobra.Command, err error) error {
	var value *pflag.InvalidValueError
	if errors.As(err, &value) {
		kind := value.GetFlag().Value.Type()
		if want := config.Wanted(kind, value.GetValue()); want != "" {
			if kind == "bool" {
				want += ", or leave the value out"
			}
			return wrongUse(cmd, fmt.Sprintf("--%s %q: %s", value.GetFlag().Name, value.GetValue(), want), "")
		}
		return wrongUse(cmd, fmt.Sprintf("--%s %q: %v", value.GetFlag().Name, value.GetValue(), value.Unwrap()), "")
	}
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return wrongUse(cmd, err.Error(), "")
	}
	if unknown.GetSpecifiedShortnames() == "" {
		var known []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
		if near := config.Nearest(unknown.GetSpecifiedName(), known); near != "" {
			return wrongUse(cmd, err.Error(), "did you mean --"+near+"?")
		}
	}
	if cmd.Args == nil || !strings.Contains(cmd.Use, " ") || cmd.HasSubCommands() && !strings.Contains(cmd.Use, "COMMAND") {
		return wrongUse(cmd, err.Error(), "")
	}
	return wrongUse(cmd, err.Error(), "what begins with \"-\" and is no flag of this command goes after \"--\"")
}
