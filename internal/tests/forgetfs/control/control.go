// Package control tells a disk what to do, over a socket. Each line is a command. Each is
// answered by a line, "ok", "ok JSON" or "error REASON".
//
// # Commands
//
//	crash [--torn SEED]             all fails from now on; what was not synced is forgotten,
//	                                or some of it, by chance
//	fail sync|write N [forever]     the Nth from now fails, or that and all later ones; 0: none
//	slow sync DURATION              each waits for so long; 0: none
//	full BYTES                      no more than so much in all files; 0: no bound
//	readonly [off]                  what changes something fails
//	hang [off]                      all waits
//	stats                           counts
package control

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/keystead/keystead/internal/tests/forgetfs/disk"
)

// Server takes commands.
type Server struct {
	l  net.Listener
	d  *disk.Disk
	wg sync.WaitGroup
}

// Listen takes commands at a socket of a path, which nobody else uses.
func Listen(path string, d *disk.Disk) (*Server, error) {
	_ = os.Remove(path)
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	s := &Server{l: l, d: d}
	s.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go s.talk(c)
		}
	})
	return s, nil
}

// Close takes no more connections.
func (s *Server) Close() { _ = s.l.Close(); s.wg.Wait() }

func (s *Server) talk(c net.Conn) {
	defer c.Close()
	for lines := bufio.NewScanner(c); lines.Scan(); {
		answer, err := Do(s.d, strings.Fields(lines.Text()))
		if err != nil {
			answer = "error " + strings.ReplaceAll(err.Error(), "\n", "; ")
		} else {
			answer = strings.TrimSpace("ok " + answer)
		}
		if _, err := fmt.Fprintln(c, answer); err != nil {
			return
		}
	}
}

// Errors of commands.
var (
	errUnknown = errors.New("the commands are crash, fail, slow, full, readonly, hang and stats")
	errUsage   = errors.New("wrong arguments")
)

// Do does what a command says, and returns what it answers.
func Do(d *disk.Disk, args []string) (string, error) {
	if len(args) == 0 {
		return "", errUnknown
	}
	name, args := args[0], args[1:]
	switch name {
	case "crash":
		return "", crash(d, args)
	case "fail":
		return "", fail(d, args)
	case "slow":
		if len(args) != 2 || args[0] != "sync" {
			return "", fmt.Errorf("%w: slow sync DURATION", errUsage)
		}
		by, err := time.ParseDuration(args[1])
		d.SlowSyncs(by)
		return "", err
	case "full":
		if len(args) != 1 {
			return "", fmt.Errorf("%w: full BYTES", errUsage)
		}
		bytes, err := strconv.ParseInt(args[0], 10, 64)
		d.Limit(bytes)
		return "", err
	case "readonly", "hang":
		if len(args) > 1 || len(args) == 1 && args[0] != "off" {
			return "", fmt.Errorf("%w: %s [off]", errUsage, name)
		}
		does := d.ReadOnly
		if name == "hang" {
			does = d.Hang
		}
		does(len(args) == 0)
		return "", nil
	case "stats":
		b, err := json.Marshal(d.Stats())
		return string(b), err
	}
	return "", errUnknown
}

func crash(d *disk.Disk, args []string) error {
	if len(args) == 0 {
		return d.Crash(disk.Torn{})
	}
	if len(args) != 2 || args[0] != "--torn" {
		return fmt.Errorf("%w: crash [--torn SEED]", errUsage)
	}
	seed, err := strconv.ParseUint(args[1], 10, 64)
	if err != nil {
		return err
	}
	return d.Crash(disk.Torn{On: true, Seed: seed})
}

func fail(d *disk.Disk, args []string) error {
	if len(args) < 2 || len(args) > 3 || len(args) == 3 && args[2] != "forever" {
		return fmt.Errorf("%w: fail sync|write N [forever]", errUsage)
	}
	nth, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil || nth < 0 {
		return fmt.Errorf("%w: fail sync|write N [forever], where 1 is the next one", errUsage)
	}
	f := disk.Failing{Nth: nth, Forever: len(args) == 3}
	switch args[0] {
	case "sync":
		d.FailSyncs(f)
	case "write":
		d.FailWrites(f)
	default:
		return fmt.Errorf("%w: fail sync|write N [forever]", errUsage)
	}
	return nil
}
