//go:build unix

// Command paused-holder shows what fencing tokens are for. Two processes pay into an account
// that a lock of Keystead protects. The first one is stopped when it is about to write, as a
// machine may be that is suspended or swaps; its lease runs out, the second one gets the lock
// and pays in, and then the first one goes on.
//
//	keystead dev &
//	go run ./examples/paused-holder
//
// It does so twice: with an account that takes what it is given, which loses what the second
// one has paid in, and with one behind a fence.Gate, which refuses the first one.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/client/fence"
)

var (
	nodes   = flag.String("keystead", "127.0.0.1:7400", "addresses of Keystead nodes, separated by commas")
	ttl     = flag.Duration("ttl", time.Second, "how long a lock outlives a holder that is stopped")
	account = flag.String("account", "", "URL of the account; this process is a holder then")
)

const (
	deposit  = 100
	patience = 30 * time.Second
	// late is the exit code of a holder that was refused.
	late = 3
)

func main() {
	log.SetFlags(0)
	flag.Parse()
	if *account != "" {
		os.Exit(hold())
	}
	var gate *fence.Gate
	for _, title := range []string{"Without a fence:", "With one:"} {
		fmt.Println(title)
		left, err := show(gate)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("  %d was paid in, and %d is there\n", 2*deposit, left)
		if (left == 2*deposit) != (gate != nil) {
			log.Fatal("that is not what this program is to show")
		}
		gate = fence.NewGate(fence.Config{})
	}
}

// serve serves an account, behind a gate if there is one.
func serve(gate *fence.Gate) (url string, stop func(), err error) {
	var mu sync.Mutex
	balance := 0
	mux := http.NewServeMux()
	mux.HandleFunc("GET /account", func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprint(w, balance)
	})
	mux.HandleFunc("PUT /account", func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.Atoi(r.FormValue("balance"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		balance = n
	})
	var h http.Handler = mux
	if gate != nil {
		h = gate.HTTP(fence.HTTP{})(mux) // what only reads needs no token
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := http.Server{Handler: h, ReadHeaderTimeout: patience}
	go func() { _ = server.Serve(l) }()
	return "http://" + l.Addr().String() + "/account", func() { _ = server.Close() }, nil
}

// show has two processes pay in, the first of which is stopped, and returns what is there in
// the end.
func show(gate *fence.Gate) (left int, err error) {
	url, stop, err := serve(gate)
	if err != nil {
		return 0, err
	}
	defer stop()
	first, err := start("first", url)
	if err != nil {
		return 0, err
	}
	defer first.end()
	if err := first.signal(syscall.SIGSTOP, "is stopped, just before it writes"); err != nil {
		return 0, err
	}
	second, err := start("second", url)
	if err != nil {
		return 0, err
	}
	defer second.end()
	if code, err := second.write(); code != 0 || err != nil {
		return 0, errors.Join(fmt.Errorf("the second one: exit code %d", code), err)
	}
	if err := first.signal(syscall.SIGCONT, "goes on"); err != nil {
		return 0, err
	}
	switch code, err := first.write(); {
	case err != nil:
		return 0, err
	case code == late: // it does what it was to do again, from the beginning
		again, err := start("first", url)
		if err != nil {
			return 0, err
		}
		defer again.end()
		if code, err := again.write(); code != 0 || err != nil {
			return 0, errors.Join(fmt.Errorf("the first one again: exit code %d", code), err)
		}
	case code != 0:
		return 0, fmt.Errorf("the first one: exit code %d", code)
	}
	return read(url)
}

func read(url string) (int, error) {
	r, err := http.Get(url)
	if err != nil {
		return 0, err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(text))
}

// process is a holder.
type process struct {
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
}

// start starts a holder, and returns when that is about to write.
func start(name, url string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, "-keystead", *nodes, "-ttl", ttl.String(), "-account", url)
	cmd.Stderr = os.Stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		return nil, err
	}
	p := &process{name, cmd, in}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		p.end()
		return nil, fmt.Errorf("the %s holder has no lock: %w", name, err)
	}
	p.says(strings.TrimSpace(line))
	return p, nil
}

func (p *process) says(what string) { fmt.Printf("  the %s %s\n", p.name, what) }

func (p *process) signal(s syscall.Signal, what string) error {
	p.says(what)
	return p.cmd.Process.Signal(s)
}

// write lets a holder write, and waits until it has ended.
func (p *process) write() (code int, err error) {
	if _, err := io.WriteString(p.in, "write\n"); err != nil {
		return 0, err
	}
	_ = p.cmd.Wait() // the code tells
	switch code = p.cmd.ProcessState.ExitCode(); code {
	case 0:
		p.says("has written")
	case late:
		p.says("is refused: its token is older. It begins anew")
	}
	return code, nil
}

func (p *process) end() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// hold is a holder: it acquires the lock, reads, and writes what it read and its deposit.
func hold() (code int) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := client.Dial(ctx, strings.Split(*nodes, ",")...)
	if err != nil {
		log.Print(err)
		return 1
	}
	defer c.Close()
	l, err := c.Lock("account").Acquire(ctx, *account, client.TTL(*ttl))
	if err != nil {
		log.Print(err)
		return 1
	}
	defer func() { _ = l.Release(ctx) }()
	balance, err := read(*account)
	if err != nil {
		log.Print(err)
		return 1
	}
	if !l.Held() { // looking does not help: the pause comes after it
		return 1
	}
	fmt.Printf("has the lock and reads %d\n", balance)
	// A process may be stopped between any two instructions. Here it is, so that it is the same
	// one each time: it goes on with the line that it waits for.
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return 1
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, *account+"?balance="+strconv.Itoa(balance+deposit), nil)
	if err != nil {
		log.Print(err)
		return 1
	}
	fence.Sign(r.Header, l.Token())
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		log.Print(err)
		return 1
	}
	defer a.Body.Close()
	switch a.StatusCode {
	case http.StatusOK:
		return 0
	case http.StatusPreconditionFailed:
		return late
	}
	log.Print(a.Status)
	return 1
}
