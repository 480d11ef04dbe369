package deploy

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// real returns the part of the repository that is judged, in memory.
func real(t *testing.T) fstest.MapFS {
	t.Helper()
	tree, out := os.DirFS(top), fstest.MapFS{}
	add := func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(tree, path)
		out[path] = &fstest.MapFile{Data: b}
		return err
	}
	for _, root := range []string{"deploy", "docs", "go.mod"} {
		if err := fs.WalkDir(tree, root, add); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// TestDeployment: nothing is wrong with what is there.
func TestDeployment(t *testing.T) {
	t.Parallel()
	for _, f := range Check(os.DirFS(top), Program{Resolve: resolve}) {
		t.Error(f)
	}
}

// TestFindings breaks what is there in one place each, and wants that to be found.
func TestFindings(t *testing.T) {
	t.Parallel()
	whole := real(t)
	ask := remembered()
	names := map[string]bool{}
	for path, f := range whole {
		if strings.HasPrefix(path, "deploy/") {
			for _, n := range metricName.FindAllString(string(f.Data), -1) {
				names[n] = true
			}
		}
	}
	const set, svc, pol = "deploy/kubernetes/statefulset.yaml", "deploy/kubernetes/services.yaml", "deploy/kubernetes/networkpolicy.yaml"
	for _, tc := range []struct{ file, old, new, want string }{
		{dockerfile, "ARG GO_VERSION=1.", "ARG GO_VERSION=0.", "GO_VERSION is not the version"},
		{dockerfile, "CGO_ENABLED=0", "CGO_ENABLED=1", "not built statically"},
		{dockerfile, `ENTRYPOINT ["/usr/bin`, `ENTRYPOINT ["/bin`, "is not the program"},
		{dockerfile, "USER 65532:65532", "USER root", "not root's"},
		{dockerfile, "7402/udp", "7403/udp", "it exposes 7403/udp"},
		{dockerfile, "7402/udp ", "", "does not expose 7402/udp"},
		{dockerfile, `"status"`, `"state"`, "health check"},
		{dockerfile, "KEYSTEAD_DATA_DIR=/var/lib/keystead", "KEYSTEAD_DATA_DIR=/data", `the data directory "/data"`},
		{dockerfile, "KEYSTEAD_RAFT_ADDR", "KEYSTEAD_RAFT_ADR", "unknown setting"},
		{unitFile, "keystead server", "keystead server --boots", "unknown flag: --boots"},
		{unitFile, "keystead server", "keystead server --bootstrap", "--bootstrap stays in a file"},
		{unitFile, "TimeoutStopSec=60s", "TimeoutStopSec=40s", "it is killed 40s after SIGTERM"},
		{unitFile, "StateDirectory=keystead", "StateDirectory=other", "is not in \"/var/lib/other\""},
		{unitFile, "ProtectSystem=strict", "ProtectSystem=full", "Service.ProtectSystem"},
		{unitFile, "Restart=on-failure", "Restart", "while parsing option name"},
		{unitEnvFile, "KEYSTEAD_FOUNDERS=n1", "KEYSTEAD_FOUNDERS=n2", "the first node's id first"},
		{unitEnvFile, "GOMEMLIMIT=1600MiB", "GOMEMLIMIT=1700MiB", "0.8 of"},
		{composeFile, "stop_grace_period: 45s", "stop_grace_period: 30s", "it is killed 30s after SIGTERM"},
		{composeFile, "stop_grace_period", "stop_grace", ".stop_grace false schema"},
		{composeFile, "x-node: &node", "node: &node", "properties 'node' not allowed"},
		{composeFile, "--id=n2", "--id=n1", "another node's as well"},
		{composeFile, "--id=n3", "--id=n3, --hash-key=n3", "would miss the owner"},
		{composeFile, "--id=n3", "--ids=n3", "unknown flag"},
		{composeFile, "n1,n2,n3\n", "n1,n2,n4\n", `the founder "n4"`},
		{composeFile, "n1:7402", "n1:7401", "joins n1:7401"},
		{composeFile, "KEYSTEAD_MAX_MEMORY: 512MiB", "KEYSTEAD_MAX_MEMORY: 800MiB", "more than half"},
		{composeFile, "127.0.0.1:7410:7400", "7410:7400", "open to other machines"},
		{composeFile, "127.0.0.1:7410:7400", "127.0.0.1:7410:7403", "where the node does not listen"},
		{composeFile, "../prometheus/prometheus.yml:", "../prometheus/prometheus.yaml:", "there is no file"},
		{composeFile, `["n2:/var/lib/keystead"]`, `["n2:/data"]`, `is not in "/data"`},
		{composeFile, "[keystead]\n  restart", "[other]\n  restart", "undefined network other"},
		{envoyFile, `"n3", port_value: 7400`, `"n3", port_value: 7401`, "it does not ask"},
		{composeFile, "./envoy.yaml:", "./envoi.yaml:", "there is no file"},
		{composeFile, "KEYSTEAD_XDS_LISTENER: 0.0.0.0:10000", "KEYSTEAD_XDS_LISTENER: 127.0.0.1:10000", "has it listen at"},
		{composeFile, "  KEYSTEAD_XDS_LISTENER: 0.0.0.0:10000\n", "", "set xds-listener to 0.0.0.0:10000"},
		{set, "replicas: 3", "replicas: 2", `the founder "keystead-2"`},
		{set, "terminationGracePeriodSeconds: 60", "terminationGracePeriodSeconds: 45", "it is killed 40s after SIGTERM"},
		{set, "podManagementPolicy: Parallel", "podManagementPolicy: OrderedReady", "wait for ever"},
		{set, "serviceName: keystead-peers", "serviceName: peers", `no Service "peers"`},
		{set, "--cluster-id=prod", "--cluster=prod", "unknown flag"},
		{set, "--join=keystead-peers:7402", "--join=keystead:7402", "which is not the gossip port"},
		{set, "--grpc-addr=0.0.0.0:7400", "--grpc-addr=0.0.0.0:7500", "the node listens at 7500"},
		{set, "path: /readyz", "path: /ready", "the readiness probe asks"},
		{set, "path: /healthz, port: metrics", "path: /healthz, port: grpc", "probe asks"},
		{set, "failureThreshold: 60", "failureTreshold: 60", `unknown field "failureTreshold"`},
		{set, "matchLabels:\n      app.kubernetes.io/name: keystead", "matchLabels:\n      app.kubernetes.io/name: other", "the StatefulSet selects"},
		{set, "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "may more than it needs"},
		{set, "automountServiceAccountToken: false", "automountServiceAccountToken: true", "gets a token"},
		{set, "{name: data, mountPath", "{name: disk, mountPath", "claimed nowhere"},
		{set, "limits: {memory: 2Gi}", "limits: {memory: 1Gi}", "more than half"},
		{set, "fieldPath: status.podIP", "fieldPath: status.hostIP", "which nobody here knows"},
		{set, "name: KEYSTEAD_ADVERTISE", "name: KEYSTEAD_ADVERTIZE", "did you mean"},
		{set, "minReadySeconds: 10", "minReadySeconds: 0", "may not vote yet"},
		{set, "whenScaled: Retain", "whenScaled: Delete", "outlive"},
		{svc, "publishNotReadyAddresses: true", "publishNotReadyAddresses: false", "not ready"},
		{svc, "targetPort: gossip-udp", "targetPort: gossip", "names the port gossip/UDP"},
		{svc, "appProtocol: kubernetes.io/h2c}", "appProtocol: kubernetes.io/h2c}\n  internalTraffic: Local", "unknown field"},
		{pol, "{port: raft, protocol: TCP}\n", "{port: raft, protocol: UDP}\n", "names the port raft/UDP"},
		{pol, "        - {port: raft, protocol: TCP}\n", "", "four ports of each other"},
		{"deploy/kubernetes/disruption.yaml", "maxUnavailable: 1", "maxUnavailable: 2", "2 pods may be evicted"},
		{"deploy/kubernetes/disruption.yaml", "kind: PodDisruptionBudget", "kind: Budget", "nobody here knows such an object"},
		{"deploy/kubernetes/kustomization.yaml", "  - networkpolicy.yaml\n", "", "it lists"},
		{scrapeFile, `"n3:7481"`, `"n4:7481"`, "it scrapes"},
		{scrapeFile, "job_name: keystead", "job_name: ks", "one job, keystead"},
		{scrapePodsFile, "role: pod\n", "rol: pod\n", "unknown field"},
		{rulesFile, "keystead_ready == 0", "keystead_redy == 0", "no node shows keystead_redy"},
		{rulesFile, "severity: critical", "severity: high", "lacks a severity"},
		{rulesFile, "#keysteadquorumlost", "#keysteadquorum", "runbook_url does not lead"},
		{rulesFile, "alert: KeysteadDrainStuck", "alert: KeysteadDrainHangs", "no test makes it fire"},
		{rulesTestFile, "keystead_draining{", "keystead_drains{", "no node shows keystead_drains"},
		{operationsFile, "### KeysteadNoLeader", "### No leader", `no section "KeysteadNoLeader"`},
		{dashboardFile, "keystead_rows_owned", "keystead_rows_own", "no node shows keystead_rows_own"},
	} {
		tree := maps.Clone(whole)
		before := string(whole[tc.file].Data)
		after := strings.Replace(before, tc.old, tc.new, 1)
		if after == before {
			t.Errorf("%s has no %q to be broken", tc.file, tc.old)
			continue
		}
		tree[tc.file] = &fstest.MapFile{Data: []byte(after)}
		found := Check(tree, Program{Resolve: ask, Metrics: names})
		if !slices.ContainsFunc(found, func(f string) bool { return strings.Contains(f, tc.want) }) {
			t.Errorf("%s with %q for %q: no %q in %q", tc.file, tc.new, tc.old, tc.want, found)
		}
	}
	if found := Check(whole, Program{Resolve: ask, Metrics: names}); len(found) > 0 {
		t.Errorf("as it is: %q", found)
	}
}

// metricName finds what may be the name of a series.
var metricName = regexp.MustCompile(`\b(?:keystead|process|go)_[a-z0-9_]+\b`)

// A label that no series has is found, in a group and in a condition.
func TestLabels(t *testing.T) {
	t.Parallel()
	p := Program{Metrics: map[string]bool{"keystead_xds_clients": true}, Labels: map[string]map[string]bool{"keystead_xds_clients": {"client": true}}}
	for expr, want := range map[string]string{
		`sum by (client, instance) (keystead_xds_clients{client="envoy", cluster="$cluster"})`: "",
		`sum by (kind) (keystead_xds_clients)`:                                                 "has the label kind",
		`keystead_xds_clients{kind=~"envoy"}`:                                                  "has no label kind",
	} {
		r := &reader{prog: p}
		r.series("here", expr)
		if got := fmt.Sprint(r.found); (want == "") != (len(r.found) == 0) || !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %q", expr, got, want)
		}
	}
}

func TestAnchors(t *testing.T) {
	t.Parallel()
	got := slices.Sorted(maps.Keys(Anchors("# A page\n\ntext # no\n\n## What `x` is: one, two\n### KeysteadDown\n")))
	if want := []string{"a-page", "keysteaddown", "what-x-is-one-two"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
