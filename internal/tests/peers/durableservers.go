package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/internal/vtcodec"
)

// lab is servers that have their data in one directory on a disk, and clients of them.
type lab struct {
	*servers
	versions          map[string]string
	etcd, etcdThree   members
	redis, redisEvery string           // addresses: appendfsync always, and everysec
	redisWrites       syncs            // of redis, replies included
	pids              map[string][]int // of both, by address
	alone, three      []nodes
}

// members are those of an etcd.
type members struct {
	clients []*clientv3.Client
	synced  syncs // of a member, on average
	pids    []int
}

// nodes are a node that runs alone, or a cluster, of some durability.
type nodes struct {
	durability string
	bare       []*grpc.ClientConn
	client     *client.Client
	synced     syncs // nil = it is not known
	pids       []int // nil = they are not known
}

// startOnDisk starts all that f names.
func startOnDisk(ctx context.Context, f *durableFlags) (*lab, error) {
	l := &lab{servers: &servers{}, versions: map[string]string{}, pids: map[string][]int{}}
	if err := l.start(ctx, f); err != nil {
		l.stop()
		return nil, err
	}
	return l, nil
}

func (l *lab) start(ctx context.Context, f *durableFlags) (err error) {
	if l.dir, err = os.MkdirTemp(f.data, "keystead-durable-"); err != nil {
		return err
	}
	binary, err := l.keystead(f.binary)
	if err != nil {
		return err
	}
	for name, program := range map[string]string{etcd: "etcd", redisName: "redis-server", keystead: binary} {
		if l.versions[name], err = version(program); err != nil {
			return missing(err)
		}
	}
	if l.etcd, err = l.startEtcd(1); err != nil {
		return missing(err)
	}
	if l.etcdThree, err = l.startEtcd(3); err != nil {
		return missing(err)
	}
	pid := 0
	if l.redis, pid, err = l.startRedis(always); err != nil {
		return missing(err)
	}
	l.redisWrites = func() (float64, error) { return writes(pid) }
	if l.redisEvery, _, err = l.startRedis("everysec"); err != nil {
		return missing(err)
	}
	for _, durability := range f.alone {
		if flags, ok := durabilityFlags(binary, durability); ok {
			n, err := l.startAlone(ctx, binary, durability, flags)
			if err != nil {
				return err
			}
			l.alone = append(l.alone, n)
		}
	}
	for _, durability := range f.three {
		if flags, ok := durabilityFlags(binary, durability); ok {
			n, err := l.startThree(ctx, binary, durability, flags)
			if err != nil {
				return err
			}
			l.three = append(l.three, n)
		}
	}
	return nil
}

// version returns the first line of what a program says of itself.
func version(program string) (string, error) {
	out, err := exec.Command(program, "--version").Output()
	line, _, _ := strings.Cut(string(out), "\n")
	return line, err
}

// durabilityFlags returns the flags of a durability. A program that has none has none of the others.
func durabilityFlags(binary, durability string) (flags []string, ok bool) {
	help, _ := exec.Command(binary, "server", "--help").Output()
	if !strings.Contains(string(help), "--durability") {
		if durability != none {
			fmt.Fprintf(os.Stderr, "keystead has no --durability: %s is not measured\n", durability)
		}
		return nil, durability == none
	}
	return []string{"--durability", durability}, true
}

// startEtcd starts so many members, which are one cluster.
func (l *lab) startEtcd(n int) (m members, err error) {
	ports, err := freePorts(2 * n)
	if err != nil {
		return m, err
	}
	name := func(i int) string { return fmt.Sprintf("etcd-%d-of-%d", i+1, n) }
	peer := func(i int) string { return "http://" + local(ports[n+i]) }
	var cluster, addrs []string
	for i := range n {
		cluster, addrs = append(cluster, name(i)+"="+peer(i)), append(addrs, local(ports[i]))
	}
	for i, addr := range addrs {
		pid, err := l.launch(command("etcd", "--name", name(i), "--data-dir", filepath.Join(l.dir, name(i)), "--listen-client-urls", "http://"+addr, "--advertise-client-urls", "http://"+addr,
			"--listen-peer-urls", peer(i), "--initial-advertise-peer-urls", peer(i), "--initial-cluster", strings.Join(cluster, ","), "--log-level", "error", "--logger", "zap"))
		if err != nil {
			return m, err
		}
		m.pids = append(m.pids, pid)
	}
	for i, addr := range addrs {
		if err := answers("http://" + addr + "/health"); err != nil {
			return m, err
		}
		for range max(1, conns/n) {
			// each client has one member
			c, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, DialTimeout: patience, Logger: zap.NewNop()})
			if err != nil {
				return m, fmt.Errorf("%s: %w", name(i), err)
			}
			m.clients = append(m.clients, c)
		}
	}
	m.synced = func() (sum float64, err error) {
		for _, addr := range addrs {
			n, err := metricOf("http://"+addr+"/metrics", "etcd_disk_wal_fsync_duration_seconds_count")
			if err != nil {
				return 0, err
			}
			sum += n
		}
		return sum / float64(n), nil
	}
	return m, nil
}

// startRedis starts one that appends all to a file which it syncs always, or every second.
func (l *lab) startRedis(when string) (addr string, pid int, err error) {
	ports, err := freePorts(1)
	if err != nil {
		return "", 0, err
	}
	dir := filepath.Join(l.dir, "redis-"+when)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", 0, err
	}
	pid, err = l.launch(command("redis-server", "--bind", "127.0.0.1", "--port", strconv.Itoa(ports[0]), "--save", "", "--appendonly", "yes", "--appendfsync", when, "--dir", dir))
	if err != nil {
		return "", 0, err
	}
	addr = local(ports[0])
	l.pids[addr] = []int{pid}
	return addr, pid, reachable(addr)
}

// startAlone starts a node that runs alone.
func (l *lab) startAlone(ctx context.Context, binary, durability string, flags []string) (n nodes, err error) {
	ports, err := freePorts(2)
	if err != nil {
		return n, err
	}
	addr, admin := local(ports[0]), "http://"+local(ports[1])
	cmd := command(binary, append([]string{"server", "--id", "n1", "--grpc-addr", addr, "--admin-addr", local(ports[1]),
		"--data-dir", filepath.Join(l.dir, "alone-"+durability), "--log-level", "warn"}, flags...)...)
	cmd.Stderr = os.Stderr
	pid, err := l.launch(cmd)
	if err != nil {
		return n, err
	}
	n.pids = []int{pid}
	if err := answers(admin + "/readyz"); err != nil {
		return n, err
	}
	if durability == always {
		n.synced = func() (float64, error) { return metricOf(admin+"/metrics", nodeSyncs) }
	}
	return n, n.dial(ctx, durability, addr)
}

// startThree starts a cluster of three.
func (l *lab) startThree(ctx context.Context, binary, durability string, flags []string) (n nodes, err error) {
	if err := l.cluster(binary, append([]string{"--data-dir", filepath.Join(l.dir, "three-"+durability)}, flags...)...); err != nil {
		return n, err
	}
	return n, n.dial(ctx, durability, l.servers.three...)
}

// dial makes the connections.
func (n *nodes) dial(ctx context.Context, durability string, addrs ...string) (err error) {
	n.durability = durability
	for i := range conns {
		conn, err := grpc.NewClient("passthrough:///"+addrs[i%len(addrs)], grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.ForceCodecV2(vtcodec.New())))
		if err != nil {
			return err
		}
		n.bare = append(n.bare, conn)
	}
	n.client, err = client.Config{Timeout: patience}.Dial(ctx, addrs...)
	return err
}

// nodeSyncs is the metric of a node that counts its syncs.
const nodeSyncs = "keystead_disk_store_sync_seconds_count"

// answers waits until a page is there.
func answers(url string) (err error) {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if _, err = page(url); err == nil {
			return nil
		}
	}
	return err
}

func page(url string) (string, error) {
	r, err := http.Get(url)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(r.Body)
	if err = errors.Join(err, r.Body.Close()); err != nil {
		return "", err
	}
	if r.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s", url, r.Status)
	}
	return string(body), nil
}

func metricOf(url, name string) (float64, error) {
	text, err := page(url)
	if err != nil {
		return 0, err
	}
	return metric(text, name)
}
