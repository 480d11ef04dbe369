package cli

import (
	"testing"

	"github.com/spf13/cobra"
)

// What was set for the command is set for each of its nodes, as it was written.
func TestDevPassesSettingsOn(t *testing.T) {
	t.Parallel()
	var f nodeFlags
	cmd := &cobra.Command{}
	f.flags(cmd)
	for name, value := range map[string]string{"ack-owner": "limits,counters", "copy-rate": "64MB", "max-calls": "7"} {
		if err := cmd.Flags().Set(name, value); err != nil {
			t.Fatal(err)
		}
	}
	args := (&devNode{id: "n1"}).args(cmd, "", "")
	cmd = newServer(Process{})
	if err := cmd.ParseFlags(args[1:]); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"ack-owner": "[limits,counters]", "copy-rate": "62500KiB", "max-calls": "7"} {
		if got := cmd.Flags().Lookup(name).Value.String(); got != want {
			t.Errorf("%s is %s for a node, want %s", name, got, want)
		}
	}
}

// HTTP is served three ports above gRPC where no address is given, also by each of several
// nodes.
func TestWhereHTTPIsServed(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ http, grpc, want string }{
		{autoAddr, "127.0.0.1:7400", "127.0.0.1:7403"},
		{autoAddr, "[::1]:9000", "[::1]:9003"},
		{autoAddr, "0.0.0.0:0", "0.0.0.0:0"},
		{"", "127.0.0.1:7400", ""},
		{"10.0.0.1:80", "127.0.0.1:7400", "10.0.0.1:80"},
	} {
		if got, err := placeHTTP(row.http, row.grpc); err != nil || got != row.want {
			t.Errorf("%q with gRPC at %s: %q, %v, want %q", row.http, row.grpc, got, err, row.want)
		}
	}
	if _, err := placeHTTP(autoAddr, "nonsense"); err == nil {
		t.Error("an address of gRPC that is none")
	}
	var f nodeFlags
	f.GRPCAddr, f.AdminAddr, f.HTTPAddr = defaultAddr, defaultAdminAddr, autoAddr
	nodes, err := placeDevNodes(&f, 3)
	if err != nil || nodes[2].http != "127.0.0.1:7423" {
		t.Errorf("%v, %v", nodes, err)
	}
	f.HTTPAddr = ""
	if nodes, err = placeDevNodes(&f, 2); err != nil || nodes[1].http != "" {
		t.Errorf("%v, %v", nodes, err)
	}
	f.HTTPAddr = "127.0.0.1:7403"
	if _, err = placeDevNodes(&f, 2); err == nil {
		t.Error("several nodes at one address of HTTP")
	}
}
