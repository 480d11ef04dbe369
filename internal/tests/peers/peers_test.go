package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// What Redis replies is read, and what is no reply to what was asked is an error.
func TestReplies(t *testing.T) {
	for reply, want := range map[string]string{"+OK\r\n": "OK", ":1\r\n": "1", "$3\r\nabc\r\n": "abc", "$0\r\n\r\n": "", "$-1\r\n": ""} {
		c := &redis{r: bufio.NewReader(strings.NewReader(reply))}
		if got, err := c.reply(); err != nil || got != want {
			t.Errorf("%q: %q %v", reply, got, err)
		}
	}
	for _, reply := range []string{"", "\r\n", "-ERR no\r\n", "$x\r\n", "$3\r\nab", "*1\r\n"} {
		c := &redis{r: bufio.NewReader(strings.NewReader(reply))}
		if got, err := c.reply(); err == nil {
			t.Errorf("%q: %q", reply, got)
		}
	}
	var sent bytes.Buffer
	c := &redis{r: bufio.NewReader(strings.NewReader("+OK\r\n$-1\r\n")), w: bufio.NewWriter(&sent)}
	c.send("SET", "a", "", "NX")
	if err := c.expect(2, "OK"); err == nil {
		t.Error("a lock that was not acquired is counted")
	}
	if want := "*4\r\n$3\r\nSET\r\n$1\r\na\r\n$0\r\n\r\n$2\r\nNX\r\n"; sent.String() != want {
		t.Errorf("%q", sent.String())
	}
}

func TestNodesOfDev(t *testing.T) {
	var l lines
	for _, s := range []string{"A cluster is ready:\n\n  NODE  API\n  n1    127.0.0.1:7400  x\n  n2    127.0.", "0.1:7410  x\n  n3    127.0.0.1:7420  x\n\n  kill -9 7 # n3 dies\n"} {
		_, _ = l.Write([]byte(s))
	}
	if got := l.nodes(); !slices.Equal(got, []string{"127.0.0.1:7400", "127.0.0.1:7410", "127.0.0.1:7420"}) {
		t.Error(got)
	}
}

// All that is compared was measured: ratios finds each, and divides round by round.
func TestRatios(t *testing.T) {
	var results []result
	for i, w := range ways() {
		results = append(results, result{way: w, Rounds: []float64{float64(i + 1), float64(2 * (i + 1)), float64(i + 1)}})
	}
	all := ratios(results)
	if len(all) == 0 || all[0].Of != oneNode || all[0].To != etcd || all[0].Value != 4 || all[0].Least != 4 || all[0].Most != 4 {
		t.Errorf("%+v", all)
	}
	a, b := result{Rounds: []float64{10, 20, 40}}, result{Rounds: []float64{10, 10, 10}}
	if r := compare("", "", "", a, b, false); r.Value != 2 || r.Least != 1 || r.Most != 4 {
		t.Errorf("%+v", r)
	}
	if r := compare("", "", "", a, b, true); r.Value != 0.5 || r.Least != 0.25 || r.Most != 1 {
		t.Errorf("%+v", r)
	}
}

// Each watcher hears each write, and p99 is of all of them; a watch that ends is an error, and so is
// one that hears nothing.
func TestFanOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 200
		board := make([]chan string, n)
		for i := range board {
			board[i] = make(chan string, 1)
		}
		follow := func(ctx context.Context, _ *clients, i int, told func(string)) error {
			told("")
			for {
				select {
				case v := <-board[i]:
					if i == 0 {
						time.Sleep(time.Second) // the slowest of 200 is not in p99
					}
					told(v)
					told(v) // again
				case <-ctx.Done():
					return nil
				}
			}
		}
		set := func(_ context.Context, _ *clients, v string) error {
			time.Sleep(10 * time.Millisecond)
			for _, c := range board {
				c <- v
			}
			return nil
		}
		if got, err := fanOut(t.Context(), nil, n, 3, follow, set); err != nil || !slices.Equal(got, []float64{10, 10, 10}) {
			t.Error(got, err)
		}
		ends := func(context.Context, *clients, int, func(string)) error { return errors.New("it ended") }
		if got, err := fanOut(t.Context(), nil, n, 1, ends, set); err == nil {
			t.Error(got)
		}
		deaf := func(ctx context.Context, _ *clients, _ int, told func(string)) error {
			told("")
			<-ctx.Done()
			return nil
		}
		if got, err := fanOut(t.Context(), nil, n, 1, deaf, func(context.Context, *clients, string) error { return nil }); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(got, err)
		}
	})
}

// Times are compared round by round, too.
func TestTimeRatios(t *testing.T) {
	var spans []span
	for i, what := range []string{told, failedOver} {
		for j, system := range []string{etcd, oneNode, threeNodes} {
			spans = append(spans, span{What: what, System: system, Rounds: []float64{float64(1 + i + j), float64(2 * (1 + i + j))}})
		}
	}
	all := timeRatios(spans)
	if len(all) != 3 || all[0].Of != oneNode || all[0].To != etcd || all[0].Value != 2 || all[2].Of != threeNodes || all[2].Value != 2 {
		t.Errorf("%+v", all)
	}
}
