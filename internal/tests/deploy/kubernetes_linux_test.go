//go:build system

package deploy

import (
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// pods are the nodes of deploy/kubernetes.
type pods struct {
	t     *testing.T
	net   *network
	nodes []*Node
	disks []string
	addrs []string
}

func newPods(t *testing.T) *pods {
	t.Helper()
	r := &reader{fs: os.DirFS(top)}
	nodes, err := Kubernetes(r.manifests(), theImage(t))
	if err != nil {
		t.Fatal(err)
	}
	p := &pods{t: t, net: newNetwork(), nodes: nodes, addrs: make([]string, len(nodes))}
	for range nodes {
		p.disks = append(p.disks, t.TempDir())
	}
	return p
}

// start starts a pod at an address that none has had before. The name of the service
// stands for the addresses of all, as the cluster's DNS has them by then.
func (p *pods) start(i int) *process {
	p.t.Helper()
	p.addrs[i] = p.net.addr()
	return p.at(i)
}

// at starts a pod at its address.
func (p *pods) at(i int) *process {
	p.t.Helper()
	n := *p.nodes[i]
	n.Volume = "/nowhere" // the disk is another one only where the test says so
	join := strings.Join(p.addrs, ":7402,") + ":7402"
	return run(p.t, n.Env["KEYSTEAD_ID"], p.addrs[i], &n,
		n.Env["KEYSTEAD_ADVERTISE"], p.addrs[i], "keystead-peers:7402", join, p.nodes[i].Volume, p.disks[i])
}

// all starts all pods at new addresses.
func (p *pods) all() (ps []*process) {
	p.t.Helper()
	for i := range p.nodes {
		p.addrs[i] = p.net.addr()
	}
	for i := range p.nodes {
		ps = append(ps, p.at(i))
	}
	return ps
}

// TestKubernetes: the pods make one cluster, and come back to it with other addresses,
// one after the other and all at once.
func TestKubernetes(t *testing.T) {
	t.Parallel()
	k := newPods(t)
	ps := k.all()
	ready(t, ps...)
	keystead(t, "counter", "add", "kept", "41", "--addr", ps[0].addr+":7400")
	for i := range ps { // a rolling update
		ps[i].stops(t, k.nodes[i].Patience)
		ps[i] = k.start(i)
		ready(t, ps...)
	}
	if got := keystead(t, "counter", "get", "kept", "--addr", ps[0].addr+":7400"); strings.TrimSpace(got) != "41" {
		t.Errorf("after a rolling update the counter is %q", got)
	}
	for _, p := range ps {
		p.kill()
	}
	ps = k.all()
	ready(t, ps...) // from their logs, which know the old addresses
}

// TestKubernetesLostDisk: the pod that made the cluster, and has lost its disk, joins
// it; and where the others cannot be reached it waits, and makes no second one.
func TestKubernetesLostDisk(t *testing.T) {
	t.Parallel()
	k := newPods(t)
	ps := k.all()
	ready(t, ps...)
	was := ps[1].status().Incarnation
	ps[0].kill()
	k.disks[0] = t.TempDir()
	ps[0] = k.start(0)
	ready(t, ps...)
	if strings.Contains(ps[0].said(), "made the cluster") {
		t.Error("it made a second cluster")
	}
	if now := ps[1].status().Incarnation; now != was {
		t.Errorf("another node was taken out meanwhile: %s, then %s", was, now)
	}
	for _, p := range ps {
		p.kill()
	}
	k.disks[0] = t.TempDir()
	ps[0] = k.start(0) // the others do not run
	eventually(t, "it waits for the others", func() bool {
		return strings.Contains(ps[0].said(), "this node makes the cluster when all founders are there")
	})
	for end := time.Now().Add(founderWait + time.Second); time.Now().Before(end); {
		if s := ps[0].status(); s.Ready || len(s.Members) > 0 {
			t.Fatalf("it made a cluster: %+v", s)
		}
	}
	if code, _ := ps[0].get("/healthz"); code != http.StatusOK {
		t.Error("it is not alive while it waits")
	}
	ps[1], ps[2] = k.start(1), k.start(2)
	ready(t, ps...)
}

// founderWait is how long the first founder sees all others before it makes the
// cluster: see internal/node.
const founderWait = 21 * time.Second
