package cli

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
)

// policyServer is a node that goes by a version of the policies.
type policyServer struct {
	clusterpb.UnimplementedClusterServiceServer
	id      string
	version uint64
	members []*clusterpb.MemberStatus
}

func (s *policyServer) GetStatus(context.Context, *clusterpb.GetStatusRequest) (*clusterpb.GetStatusResponse, error) {
	st, _ := statusOf(3)
	st.Id, st.PolicyVersion = s.id, s.version
	return st, nil
}

func (s *policyServer) ListMembers(context.Context, *clusterpb.ListMembersRequest) (*clusterpb.ListMembersResponse, error) {
	return &clusterpb.ListMembersResponse{Members: s.members}, nil
}

// The status says which nodes go by older policies than others, whichever of them is asked; what a
// node that cannot be reached goes by is not known, and nothing is said of it.
func TestStatusSaysThatPoliciesDiffer(t *testing.T) {
	for want, versions := range map[string][2]uint64{
		"": {7, 7}, "n02 by version 5, others by version 7": {7, 5}, "n01 by version 5, others by version 7": {5, 7}, "n02 by version 0, others by version 7": {7, 0},
	} {
		_, members := statusOf(3)
		members[2].Member.GrpcAddr = "127.0.0.1:1"
		var first string
		for i, version := range versions {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				first = l.Addr().String()
			}
			members[i].Member.GrpcAddr = l.Addr().String()
			s := grpc.NewServer()
			clusterpb.RegisterClusterServiceServer(s, &policyServer{id: members[i].Id, version: version, members: members})
			go func() { _ = s.Serve(l) }()
			t.Cleanup(s.Stop)
		}
		f := statusFlags{remote: remote{addr: first, timeout: 5 * time.Second}}
		o, err := f.ask(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		said := ""
		for _, w := range o.Warnings {
			said += w.Problem
		}
		if !o.Healthy || want == "" && said != "" || !strings.HasSuffix(said, want) {
			t.Errorf("%v: %q, not %q", versions, said, want)
		}
		var b strings.Builder
		if err := f.show(&b, o); err != nil || !strings.Contains(b.String(), "\nPolicies version ") {
			t.Errorf("%s %v", b.String(), err)
		}
	}
}
