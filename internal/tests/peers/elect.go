package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/keystead/keystead/client"
)

// termTTL is how long a leader outlives its process: the shortest that etcd has.
const termTTL = 2 * time.Second

// leaders are processes that lead until they are killed: this program, with -lead.
type leader struct {
	system string // etcd or keystead
	addrs  string // of its servers, with commas between them
	key    string
}

func (l leader) String() string { return l.system + " " + l.addrs + " " + l.key }

// campaign leads, and returns when it does. end ends what it is kept by.
func (l leader) campaign(ctx context.Context) (end func(), err error) {
	addrs := strings.Split(l.addrs, ",")
	switch l.system {
	case etcd:
		c, err := clientv3.New(clientv3.Config{Endpoints: addrs, DialTimeout: patience, Logger: zap.NewNop()})
		if err != nil {
			return nil, err
		}
		end = func() { _ = c.Close() }
		s, err := concurrency.NewSession(c, concurrency.WithTTL(int(termTTL/time.Second)))
		if err != nil {
			return end, err
		}
		return end, concurrency.NewElection(s, "/"+l.key).Campaign(ctx, "here")
	case keystead:
		c, err := client.Config{Timeout: patience}.Dial(ctx, addrs...)
		if err != nil {
			return nil, err
		}
		_, err = c.Election("bench").Campaign(ctx, l.key, []byte("here"), client.TTL(termTTL))
		return c.Close, err
	}
	return nil, fmt.Errorf("there is no %s that elects", l.system)
}

// lead leads by the words of a leader, says so, and waits to be killed.
func lead(ctx context.Context, words string) error {
	f := strings.Fields(words)
	if len(f) != 3 {
		return fmt.Errorf("-lead %q: want SYSTEM ADDRESSES KEY", words)
	}
	if _, err := (leader{f[0], f[1], f[2]}).campaign(ctx); err != nil {
		return err
	}
	fmt.Println("leads")
	_, err := io.Copy(io.Discard, os.Stdin) // until the program ends that has started it
	return err
}

// failover has a process lead, kills it with SIGKILL while another one waits, and returns the time
// until that leads, in ms.
func failover(ctx context.Context, l leader) (took float64, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := command(self, "-lead", l.String())
	cmd.Stderr = os.Stderr
	_, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		return 0, err
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "leads\n" {
		return 0, fmt.Errorf("%s: %q, %w", l, line, err)
	}
	elected := make(chan error, 1)
	var end func()
	go func() {
		var err error
		end, err = l.campaign(ctx)
		elected <- err
	}()
	select {
	case err := <-elected:
		return 0, fmt.Errorf("%s: two lead, %v", l, err)
	case <-time.After(termTTL): // it waits, and the leader has been renewed
	}
	began := time.Now()
	if err := cmd.Process.Kill(); err != nil {
		return 0, err
	}
	select {
	case err = <-elected:
		took = ms(time.Since(began))
	case <-time.After(patience):
		return 0, fmt.Errorf("%s: nobody leads %s after the leader was killed", l, patience)
	}
	if end != nil {
		end()
	}
	return took, err
}

// failovers are several at a time, each of an election of its own.
func failovers(ctx context.Context, n int, system string, addrs ...string) ([]float64, error) {
	took, errs := make([]float64, n), make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			took[i], errs[i] = failover(ctx, leader{system, strings.Join(addrs, ","), fmt.Sprint("election-", i)})
		})
	}
	all.Wait()
	return took, errors.Join(errs...)
}
