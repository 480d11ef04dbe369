package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"

	"github.com/keystead/keystead/internal/health"
	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
)

const (
	maxHot     = 12  // busiest keys shown
	maxMembers = 100 // members shown
	maxObjects = 200 // objects of a key shown
)

// view is what the page shows.
type view struct {
	Style, Script any // set by layout

	Node, Cluster, Version string
	State                  string // ok, warn, bad: how it is, beside Health, which says it
	Health                 string
	Findings               []finding

	Epoch, Leader, Lease, Up string
	Rows, RowsText           string
	Tiles                    []tile
	Rate, P99                chart
	Ring                     []arc
	Members                  []member
	MembersMore              int
	Hot                      []hotKey
	HotRule                  string

	Asked bool   // a key is asked for
	Key   string // as it was sent
	Shown string // as it is shown
	Found *keyState
	Fault *finding // why there is nothing of the key
	Time  string
}

// finding is what is wrong, and what helps.
type finding struct{ State, Problem, Hint string }

// tile is a figure with its name.
type tile struct{ Label, Value, More string }

// ask is a call of the API whose answer is an A.
func ask[A any](ctx context.Context, c *Console, method string, request any) (answer A, err error) {
	api := c.api.Load()
	if api == nil {
		return answer, errors.New("the node starts, and does not serve yet")
	}
	got, err := (*api).Call(ctx, method, request)
	if err != nil {
		return answer, err
	}
	answer, ok := got.(A)
	if !ok {
		return answer, fmt.Errorf("%s answered with %T", method, got)
	}
	return answer, nil
}

const (
	getStatus   = "/keystead.cluster.v1.ClusterService/GetStatus"
	listMembers = "/keystead.cluster.v1.ClusterService/ListMembers"
	listHot     = "/keystead.cluster.v1.ClusterService/ListHot"
	inspectKey  = "/keystead.admin.v1.AdminService/InspectKey"
)

// view gathers what the page of a request shows.
func (c *Console) view(ctx context.Context, r *http.Request) *view {
	v := &view{Style: safeStyle, Script: safeScript, State: "bad", Time: time.Now().Format("15:04:05")}
	if keys := r.URL.Query()["key"]; len(keys) > 0 && keys[0] != "" {
		v.Asked, v.Key, v.Shown = true, keys[0], printable(keys[0])
	}
	st, err := ask[*clusterpb.GetStatusResponse](ctx, c, getStatus, &clusterpb.GetStatusRequest{})
	var members *clusterpb.ListMembersResponse
	if err == nil {
		members, err = ask[*clusterpb.ListMembersResponse](ctx, c, listMembers, &clusterpb.ListMembersRequest{})
	}
	if err != nil {
		v.Health = "No answer"
		v.Findings = []finding{faultOf(err)}
	} else {
		v.ofCluster(st, members.Members)
	}
	v.ofStock(c.cfg.Stock())
	points, last := c.samples.history()
	v.Rate, v.P99 = charts(points, last)
	if hot, err := ask[*clusterpb.ListHotResponse](ctx, c, listHot, &clusterpb.ListHotRequest{MaxKeys: maxHot}); err == nil {
		v.ofHot(hot)
	}
	if v.Asked {
		v.ofKey(ctx, c)
	}
	return v
}

// ofCluster fills in what the node says of itself and of the cluster.
func (v *view) ofCluster(st *clusterpb.GetStatusResponse, members []*clusterpb.MemberStatus) {
	v.Node, v.Cluster, v.Version = printable(st.Id), printable(st.Cluster), printable(st.Version)
	r := health.Assess(st, members, 0)
	switch {
	case len(r.Problems) > 0:
		v.State, v.Health = "bad", "Not healthy"
	case len(r.Warnings) > 0:
		v.State, v.Health = "warn", "Healthy, but"
	default:
		v.State, v.Health = "ok", "Healthy"
	}
	for _, f := range r.Problems {
		v.Findings = append(v.Findings, finding{"bad", printable(f.Problem), printable(f.Hint)})
	}
	for _, f := range r.Warnings {
		v.Findings = append(v.Findings, finding{"warn", printable(f.Problem), printable(f.Hint)})
	}
	v.Epoch, v.Leader, v.Up = fmt.Sprint(st.Epoch), cmp.Or(printable(st.Leader), "none"), lasting(st.UptimeNs)
	v.Lease = "none"
	if st.LeaseLeftNs > 0 {
		v.Lease = lasting(st.LeaseLeftNs)
	}
	v.Rows = count(uint64(st.Rows))
	v.RowsText = "all where the ring wants them"
	if st.RowsUnowned+st.RowsToMove+st.RowsUnprotected > 0 {
		v.RowsText = fmt.Sprintf("%d to move, %d without owner, %d without copy", st.RowsToMove, st.RowsUnowned, st.RowsUnprotected)
	}
	v.ofMembers(st, members)
}

// ofStock fills in what the node holds.
func (v *view) ofStock(s Stock) {
	all, kinds := int64(0), []string{}
	for kind, n := range s.Objects {
		all += n
		kinds = append(kinds, fmt.Sprintf("%s %s", count(uint64(n)), plural(kind, n)))
	}
	slices.SortFunc(kinds, func(a, b string) int { return cmp.Compare(last(a), last(b)) })
	v.Tiles = append(v.Tiles,
		tile{"Objects", count(uint64(all)), strings.Join(kinds, ", ")},
		tile{"Memory for objects", size(s.Bytes), "of " + size(s.MaxBytes)},
	)
}

// last returns the last word.
func last(text string) string { return text[strings.LastIndexByte(text, ' ')+1:] }

// faultOf returns an error in words.
func faultOf(err error) finding {
	st := status.Convert(err)
	f := finding{"bad", printable(st.Message()), ""}
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			f.Hint = printable(info.Metadata["hint"])
		}
	}
	return f
}

// ofKey fills in what there is of the key that is asked for.
func (v *view) ofKey(ctx context.Context, c *Console) {
	if !utf8.ValidString(v.Key) {
		v.Fault = &finding{"bad", "the key is not valid UTF-8", "no key is"}
		return
	}
	k, err := ask[*adminpb.InspectKeyResponse](ctx, c, inspectKey, &adminpb.InspectKeyRequest{Key: v.Key})
	if err != nil {
		fault := faultOf(err)
		v.Fault = &fault
		return
	}
	v.Found = keyStateOf(k)
}
