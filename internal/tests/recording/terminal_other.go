//go:build !linux

package main

import (
	"errors"
	"io"
	"os/exec"
)

func onTerminal(*exec.Cmd, uint16, uint16) (io.ReadCloser, error) {
	return nil, errors.New("a recording is made on Linux")
}
