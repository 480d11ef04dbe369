package main

import "fmt"

// xdsSettings judges the settings of what Envoy and gRPC clients are told, with the
// names of the flags.
func (f *nodeFlags) xdsSettings() error {
	listener := f.XDS
	listener.KeyHeader = ""
	if err := listener.Validate(); err != nil {
		return usageError{fmt.Errorf("--xds-listener %w", err)}
	}
	if err := f.XDS.Validate(); err != nil {
		return usageError{fmt.Errorf("--xds-key-header %w", err)}
	}
	if host, port := splitPort(f.AppAddr); f.AppAddr != "" && (host == "" || port < 1) {
		return usageError{fmt.Errorf("--app-addr %q: write HOST:PORT, like 10.0.0.1:8080", f.AppAddr)}
	}
	return nil
}
