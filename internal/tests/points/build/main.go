// Command build makes a keystead that has fail points, for tests and for trying a
// step of the protocol by hand:
//
//	go run ./internal/tests/points/build -o keystead-points
//
// Package points says what the points are, and how they are set. What it makes is
// for no other use. It exits with 1 if the sources do not compile.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/keystead/keystead/internal/tests/points"
)

func main() {
	root := flag.String("root", ".", "the sources: the directory of go.mod")
	out := flag.String("o", "keystead-points", "the file to write")
	flag.Parse()
	if err := points.Build(context.Background(), *root, *out); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
