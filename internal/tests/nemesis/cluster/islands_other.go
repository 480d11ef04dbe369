//go:build !linux

package cluster

import (
	"context"
	"errors"
	"net"
)

var errNoIslands = errors.New("cluster: network namespaces need Linux")

// islands are network namespaces, which only Linux has.
type islands struct{}

func newIslands() (*islands, error) { return nil, errNoIslands }

func (*islands) host(int) string                { return "" }
func (*islands) add() error                     { return errNoIslands }
func (*islands) drop(int, int, bool) error      { return errNoIslands }
func (*islands) dropRaft(int, int, bool) error  { return errNoIslands }
func (*islands) within(int, func() error) error { return errNoIslands }
func (*islands) close()                         {}

func (*islands) dial(context.Context, string, string) (net.Conn, error) { return nil, errNoIslands }
