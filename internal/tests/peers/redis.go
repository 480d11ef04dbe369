package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// unlock is the script of Redis' own page on locks: it deletes the key if it still has the
// caller's value.
const unlock = `if redis.call("get",KEYS[1]) == ARGV[1] then return redis.call("del",KEYS[1]) else return 0 end`

// redis is a connection to Redis. It writes commands and reads their replies, no more, so that
// little of what is measured is the client.
type redis struct {
	conn net.Conn
	r    *bufio.Reader
	w    *bufio.Writer
}

func dialRedis(addr string) (*redis, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &redis{conn, bufio.NewReader(conn), bufio.NewWriter(conn)}, nil
}

// send writes a command, without flushing.
func (c *redis) send(args ...string) {
	fmt.Fprintf(c.w, "*%d\r\n", len(args))
	for _, a := range args {
		c.w.WriteByte('$')
		c.w.WriteString(strconv.Itoa(len(a)))
		c.w.WriteString("\r\n")
		c.w.WriteString(a)
		c.w.WriteString("\r\n")
	}
}

// reply reads one: "" for a nil.
func (c *redis) reply() (string, error) {
	line, err := c.r.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimRight(line, "\r\n")
	if line == "" {
		return "", fmt.Errorf("an empty reply")
	}
	switch kind, rest := line[0], line[1:]; kind {
	case '+', ':':
		return rest, nil
	case '$':
		n, err := strconv.Atoi(rest)
		if err != nil || n < 0 {
			return "", err
		}
		b := make([]byte, n+2)
		_, err = io.ReadFull(c.r, b)
		return string(b[:n]), err
	default:
		return "", fmt.Errorf("redis: %s", rest)
	}
}

// do sends a command and returns its reply.
func (c *redis) do(args ...string) (string, error) {
	c.send(args...)
	if err := c.w.Flush(); err != nil {
		return "", err
	}
	return c.reply()
}

// expect reads so many replies, which all have to be the same.
func (c *redis) expect(n int, want string) error {
	if err := c.w.Flush(); err != nil {
		return err
	}
	for range n {
		if got, err := c.reply(); err != nil || got != want {
			return fmt.Errorf("redis: %q, not %q: %w", got, want, err)
		}
	}
	return nil
}

// redisLocks acquires and releases as many locks as a batch has: all are asked for, then all
// are released.
func redisLocks(batch int) opener {
	return func(_ context.Context, s *clients, i int) (cycle, func(), error) {
		c, err := dialRedis(s.servers.redis)
		if err != nil {
			return nil, nil, err
		}
		end := func() { _ = c.conn.Close() }
		sha, err := c.do("SCRIPT", "LOAD", unlock)
		if err != nil {
			end()
			return nil, nil, err
		}
		var keys []string
		for j := range batch {
			keys = append(keys, fmt.Sprintf("lock-%d-%d", i, j))
		}
		value := "caller-" + strconv.Itoa(i) + "-of-this-run"
		return func(context.Context) error {
			for _, key := range keys {
				c.send("SET", key, value, "NX", "PX", "10000")
			}
			if err := c.expect(batch, "OK"); err != nil {
				return err
			}
			for _, key := range keys {
				c.send("EVALSHA", sha, "1", key, value)
			}
			return c.expect(batch, "1")
		}, end, nil
	}
}

// redisOnces does work of a key of its own each time: it takes the turn if nobody has, and
// replaces it by a result of 100 bytes.
func redisOnces(_ context.Context, s *clients, i int) (cycle, func(), error) {
	c, err := dialRedis(s.servers.redis)
	if err != nil {
		return nil, nil, err
	}
	n, run := 0, time.Now().UnixNano()
	return func(context.Context) error {
		n++
		key := fmt.Sprintf("once-%d-%d-%d", i, run, n)
		c.send("SET", key, "turn", "NX", "PX", "10000")
		if err := c.expect(1, "OK"); err != nil {
			return err
		}
		c.send("SET", key, value, "XX", "PX", "1000")
		return c.expect(1, "OK")
	}, func() { _ = c.conn.Close() }, nil
}

func redisPut(_ context.Context, s *clients, i int) (cycle, func(), error) {
	c, err := dialRedis(s.servers.redis)
	if err != nil {
		return nil, nil, err
	}
	next := keysOf(i)
	return func(context.Context) error {
		_, err := c.do("SET", next(), value)
		return err
	}, func() { _ = c.conn.Close() }, nil
}
