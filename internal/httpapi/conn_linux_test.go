package httpapi

import (
	"net"
	"syscall"
	"testing"
	"time"
)

// A connection whose peer has vanished is probed, and is closed within 15 s.
func TestVanishedPeersAreProbed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := newDoor(l, 1)
	defer d.Close()
	out, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	in, err := d.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	raw, err := in.(*conn).Conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var on, idle, interval, probes int
	_ = raw.Control(func(fd uintptr) {
		on, _ = syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_KEEPALIVE)
		idle, _ = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE)
		interval, _ = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_KEEPINTVL)
		probes, _ = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_KEEPCNT)
	})
	if within := time.Duration(idle+interval*probes) * time.Second; on == 0 || within <= 0 || within > 15*time.Second {
		t.Errorf("on %d, after %d s, each %d s, %d times: noticed within %s", on, idle, interval, probes, within)
	}
}
