package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/keystead/keystead/internal/health"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
)

const (
	// askedForPolicies is how many members are asked by which policies they go.
	askedForPolicies = 32
	// askPolicies is how long they may take: one that cannot be reached from here tells nothing.
	askPolicies = time.Second
)

// policyVersions returns by which version of the policies the other active members go, of those
// that answer soon. Where there are no policies nobody is asked.
func (f *statusFlags) policyVersions(ctx context.Context, st *clusterpb.GetStatusResponse, members []*clusterpb.MemberStatus) map[string]uint64 {
	if st.PolicyVersion == 0 {
		return nil
	}
	versions := map[string]uint64{st.Id: st.PolicyVersion}
	var mu sync.Mutex // guards versions
	var work sync.WaitGroup
	ctx, cancel := context.WithTimeout(ctx, min(askPolicies, f.timeout))
	defer cancel()
	asked := 0
	for _, m := range members {
		if m.Id == st.Id || m.Member.GetPhase() != clusterpb.Phase_PHASE_ACTIVE || asked == askedForPolicies {
			continue
		}
		asked++
		other := remote{addr: m.Member.GetGrpcAddr(), timeout: min(askPolicies, f.timeout)}
		work.Go(func() {
			conn, err := other.dial()
			if err != nil {
				return
			}
			defer conn.Close()
			r, err := clusterpb.NewClusterServiceClient(conn).GetStatus(ctx, &clusterpb.GetStatusRequest{})
			if err != nil || r.LevelKnown < st.LevelKnown { // one of before says nothing of policies
				return
			}
			mu.Lock()
			defer mu.Unlock()
			versions[m.Id] = r.PolicyVersion
		})
	}
	work.Wait()
	return versions
}

// policiesDiffer says which nodes go by older policies than others.
func policiesDiffer(versions map[string]uint64) (health.Finding, bool) {
	latest := uint64(0)
	for _, v := range versions {
		latest = max(latest, v)
	}
	var behind []string
	for id, v := range versions {
		if v < latest {
			behind = append(behind, fmt.Sprintf("%s by version %d", id, v))
		}
	}
	if len(behind) == 0 {
		return health.Finding{}, false
	}
	slices.Sort(behind)
	return health.Finding{
		Problem: fmt.Sprintf("nodes go by different policies: %s, others by version %d", strings.Join(behind, ", "), latest),
		Hint:    "a node hears of new ones within some 50 ms: if this stays, look at its way to the raft port of the leader, and at its disk",
	}, true
}
