// Package cli holds the commands of keystead. Each command is a file or a few, named after
// it, that turns flags into a call and an answer into text or JSON.
//
//	runs nodes   server (orders: signals that drain it), dev (devcluster)
//	acts         limit, counter, register, lock (guard: the command that runs under it), id, drain
//	shows        status, members, ring, owner, hot
//	measures     bench, replay
//	on disk      disk (inspect, verify), backup, restore
//	for Envoy    envoy, rls
//
// Below it: cli/bench measures servers, cli/replay decides the entries of an access log,
// which cli/accesslog reads, and cli/latency counts times.
//
// # How a command reaches a node
//
// What changes something goes through package client (client.go): request ids, retries and
// leases are its own. All its calls go to a node at --addr, which passes on what it does
// not own: the addresses by which nodes know each other may lead nowhere from where the
// command runs. What shows what one node says is a raw call (remote.go), tried again only
// while the node cannot be reached. Neither waits for a node that is not there. Both go
// through the nodes that --addr names (nodes.go), one after the other until one answers.
//
// # Settings and exit codes
//
// Every command reads its settings from flags, from the environment (KEYSTEAD_*) and from a
// YAML file, in that order of strength (package config). It exits with 0 when it did what it
// was asked, 1 when it could not, and 2 when it was asked wrongly. A counter or set that was
// refused, and a denied check with --exit-code, exit with 3; for lock see its --help.
// Errors name the flag that was typed and, where it is known, what to do (output.go).
package cli

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/internal/config"
)

// Process is what the commands have of the process that they run in.
type Process struct {
	Version  string // of the program
	In       io.Reader
	Out, Err io.Writer
}

// Exit codes.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2
)

// exitCode ends the program with a code and without a message.
type exitCode int

func (e exitCode) Error() string { return "exit" }

// Run carries out what the arguments ask for and returns the exit code.
func Run(ctx context.Context, args []string, std Process) int {
	root := New(std)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var code exitCode
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &code):
		return int(code)
	}
	printError(std.Err, err)
	if isUsage(err) {
		return exitUsage
	}
	return exitError
}

func isUsage(err error) bool {
	var usage usageError
	var conf *config.Error
	return errors.As(err, &usage) || errors.As(err, &conf) || status.Code(err) == codes.InvalidArgument
}

// New returns the command that has all others.
func New(std Process) *cobra.Command {
	root := &cobra.Command{
		Use:   "keystead",
		Short: "Exact counters, rate limits and locks, each key kept by one owner in memory",
		Long: `Keystead keeps exact counters, rate limits and locks in memory, each key on the
one node that owns it.

Settings come from flags, then from the environment (--grpc-addr is
KEYSTEAD_GRPC_ADDR), then from the YAML file named by --config or
KEYSTEAD_CONFIG (grpc-addr: …).

Commands that talk to a node take several addresses, and names, with commas between
them in --addr or KEYSTEAD_ADDR, and ask the first one that answers.`,
		Example: `  keystead dev                                        # a node to try things on
  keystead limit check 203.0.113.7 --name api --limit 20/1m
  keystead counter add page:/index.html
  keystead lock nightly-report -- ./report.sh
  keystead replay access.log --by client_ip --limit 20/1m`,
		Version:       std.Version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	onlySubcommands(root)
	root.SetIn(std.In)
	root.SetOut(std.Out)
	root.SetErr(std.Err)
	root.SetFlagErrorFunc(flagError)
	root.SetHelpCommand(newHelp())
	root.PersistentFlags().String("config", "", "YAML `FILE` with settings")
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(newDev(std), newServer(std), newLimit(std), newAdmit(std), newSettle(std), newAdmission(std), newCounter(std), newLock(std), newSemaphore(std), newOnce(std), newElection(std), newGroup(std), newBarrier(std), newPhaser(std), newLatch(std), newRegister(std), newID(std), newReplay(std), newBench(std), newOwner(std), newKey(std), newObjects(std))
	root.AddCommand(newStatus(std), newMembers(std), newRing(std), newHot(std), newDrain(std), newUndrain(std), newRecover(std), newEnvoy(std), newRLS(std), newPolicy(std), newDisk(std), newBackup(std), newRestore(std))
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return loadSettings(std, root, cmd) }
	return root
}

// loadSettings fills the flags of a command from the environment and the
// configuration file. With --show-config it prints them and ends the program.
func loadSettings(std Process, root, cmd *cobra.Command) error {
	sources, err := config.Load(cmd.Flags(), config.Input{Environ: os.Environ(), Program: config.Program(root)})
	if err != nil {
		return err
	}
	cmd.SetContext(context.WithValue(cmd.Context(), sourcesKey{}, sources))
	if show := cmd.Flags().Lookup("show-config"); show == nil || show.Value.String() != "true" {
		return nil
	}
	if err := sources.Print(std.Out); err != nil {
		return err
	}
	return exitCode(exitOK)
}

// sourcesKey is where the context of a command keeps where its settings came from.
type sourcesKey struct{}

// sourcesOf returns where each setting of a command came from.
func sourcesOf(cmd *cobra.Command) config.Sources {
	sources, _ := cmd.Context().Value(sourcesKey{}).(config.Sources)
	return sources
}
