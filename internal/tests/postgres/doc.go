// Package postgres tries package client/fence against a real PostgreSQL: that of the machine,
// such as Debian's package postgresql has it, as a server of its own with an empty directory.
// There are tests only.
//
//	go -C internal/tests/postgres test ./...
//	go -C internal/tests/postgres test ./... -rounds 2000    # as `.ci/run --long` does
//
// # What is tried
//
// The statements of docs/howto/fence.md, and why each part of them is there: what goes wrong
// without it. Writers that come at the same time, at each level of isolation. A holder that is
// stopped in the middle, as a process, with a lock of a real node. All of it with the two
// drivers that programs use most.
//
// The package is a module of its own, so that the program's go.mod knows no driver.
package postgres
