//go:build system

package system

import (
	"flag"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// How many processes TestClusterForms starts, and how long after each other:
//
//	go test ./internal/tests/system -tags system -run TestClusterForms -forms 24 -forms.apart 400ms -timeout 10m -v
var (
	forms      = flag.Int("forms", 6, "TestClusterForms: how many processes to start")
	formsApart = flag.Duration("forms.apart", 0, "TestClusterForms: pause between the starts of two processes")
)

// Of TestClusterForms.
const (
	formTime  = 4 * time.Minute        // for the cluster to form, on a machine that does much else
	formLook  = 100 * time.Millisecond // between two looks at it
	formCalm  = 5 * time.Second        // how long it is watched afterwards
	formSpare = 4                      // proposals for each epoch, at most
)

// TestClusterForms starts many processes at once, or one soon after the other. They form a
// cluster in which every row has its standby; nobody is removed and nothing is lost on the
// way, and what is proposed to the leader is about what is applied.
func TestClusterForms(t *testing.T) {
	c := layOut(t, *forms, false)
	began := time.Now()
	first := 0.0
	for i, n := range c.nodes {
		if n.run(); i == 0 {
			eventually(t, "the first one has a table", func() bool { first = n.epoch(); return first > 1 })
		}
		if *formsApart > 0 {
			<-time.After(*formsApart)
		}
	}
	why := ""
	for why = c.forming(); why != "" && time.Since(began) < formTime; why = c.forming() {
		<-time.After(formLook)
	}
	if why != "" {
		t.Fatalf("%d processes have not formed a cluster after %s: %s", len(c.nodes), formTime, why)
	}
	took := time.Since(began)
	proposed, applied := 0.0, c.nodes[0].epoch()-first
	for _, n := range c.nodes {
		proposed += n.sum(t, "keystead_raft_apply")
	}
	t.Logf("%d processes, %s apart: formed after %s, with %.0f proposals and %.0f epochs", len(c.nodes), *formsApart, took.Round(100*time.Millisecond), proposed, applied)
	if proposed > formSpare*applied {
		t.Errorf("%.0f proposals for %.0f epochs: work makes work", proposed, applied)
	}
	for end := time.Now().Add(formCalm); time.Now().Before(end); <-time.After(formLook) {
		if why := c.forming(); why != "" {
			t.Fatalf("formed, and then not: %s", why)
		}
	}
	for _, n := range c.nodes {
		if strings.Contains(n.err(), "a node was removed") {
			t.Errorf("%s removed nodes", n.id)
		}
	}
}

// forming reports what the cluster lacks: members, rows, standbys; "" if nothing.
func (c *testCluster) forming() string {
	c.t.Helper()
	n := c.nodes[len(c.nodes)-1]
	if !n.runs() {
		c.t.Fatalf("%s has ended: %s", n.id, n.err())
	}
	st, ok := n.clusterStatus()
	switch {
	case !ok:
		return "no answer"
	case len(st.Members) != len(c.nodes), st.Rows != 256*len(c.nodes), st.RowsToMove > 0, st.RowsUnprotected > 0, st.RowsInGrace > 0, st.RowsLost > 0:
		return fmt.Sprintf("%d members, %d rows, %d to move, %d unprotected, %d in grace, %d lost",
			len(st.Members), st.Rows, st.RowsToMove, st.RowsUnprotected, st.RowsInGrace, st.RowsLost)
	}
	return ""
}

// epoch returns the one that the node serves under; 0 if it does not answer yet.
func (n *testNode) epoch() float64 {
	if code, _, err := n.get("/metrics"); err != nil || code != http.StatusOK {
		return 0
	}
	return n.sum(n.t, "keystead_epoch")
}

// sum returns that of a metric's series.
func (n *testNode) sum(t *testing.T, name string) float64 {
	t.Helper()
	_, text, err := n.get("/metrics")
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for line := range strings.Lines(text) {
		if rest, is := strings.CutPrefix(line, name); is && (rest[0] == ' ' || rest[0] == '{') {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' ')+1:]), 64)
			if err != nil {
				t.Fatal(err)
			}
			sum += v
		}
	}
	return sum
}
