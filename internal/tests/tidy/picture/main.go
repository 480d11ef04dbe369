// Command picture draws the packages and their arrows into docs/architecture.md. It runs in
// internal/tests/tidy, by `go generate`; a test there compares.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/keystead/keystead/internal/tests/tidy"
)

func main() {
	if err := draw(filepath.Join("..", "..", "..")); err != nil {
		fmt.Fprintln(os.Stderr, "picture:", err)
		os.Exit(1)
	}
}

func draw(top string) error {
	g, err := tidy.ReadGraph(top)
	if err != nil {
		return err
	}
	path := filepath.Join(top, tidy.PictureFile)
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	drawn, err := tidy.Redraw(string(text), tidy.Picture(g))
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(drawn), 0o644)
}
