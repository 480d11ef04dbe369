// Command keystead runs Keystead nodes and talks to them: one binary for the server, for
// trying it out, for scripts and for measuring. Package internal/cli holds its commands.
package main

import (
	"context"
	"os"
	"runtime/debug"

	"github.com/keystead/keystead/internal/cli"
)

// version is set by the linker in released builds.
var version string

func main() {
	if version == "" {
		build, _ := debug.ReadBuildInfo()
		version = versionOf(build)
	}
	os.Exit(cli.Run(context.Background(), os.Args[1:], cli.Process{Version: version, In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
}
