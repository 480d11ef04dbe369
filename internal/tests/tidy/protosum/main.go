// Command protosum is the last step of `go generate ./proto`: it writes down what was
// generated of what. It runs in proto; a test of internal/tests/tidy compares.
package main

import (
	"fmt"
	"os"

	"github.com/keystead/keystead/internal/tests/tidy"
)

func main() {
	tree, err := tidy.Load(os.DirFS(".."))
	if err == nil {
		var sum string
		if sum, err = tidy.ProtoSum(tree); err == nil {
			err = os.WriteFile("generated.sum", []byte(sum+"\n"), 0o644)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "protosum:", err)
		os.Exit(1)
	}
}
