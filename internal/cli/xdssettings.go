package cli

import (
	"fmt"

	"github.com/keystead/keystead/internal/node"
)

// xdsSettings validates the settings of xDS, with the names of the flags.
func (f *nodeFlags) xdsSettings() error {
	listener := f.XDS
	listener.KeyHeader = ""
	if err := listener.Validate(); err != nil {
		return usageError{fmt.Errorf("--xds-listener %w", err)}
	}
	if err := f.XDS.Validate(); err != nil {
		return usageError{fmt.Errorf("--xds-key-header %w", err)}
	}
	if err := node.CheckAppAddr(f.AppAddr); err != nil {
		return usageError{fmt.Errorf("--app-addr %w", err)}
	}
	return nil
}
