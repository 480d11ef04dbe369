package rpc

import (
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// A caller of an old name is told the new one, and every new name that is told is served.
func TestOldNamesTellTheNew(t *testing.T) {
	synctest.Test(t, oldNames)
}

func oldNames(t *testing.T) {
	h, _ := clusterOf(t, Config{Node: "n1"})
	served := map[string]bool{}
	for service, info := range h.server.grpc.GetServiceInfo() {
		for _, m := range info.Methods {
			served["keystead/"+service+"/"+m.Name] = true
		}
	}
	for old, want := range map[string]string{
		"LimitService/Check":         "keystead.limit.v1.LimitService/Check",
		"LimitService/BatchCheck":    "keystead.limit.v1.LimitService/BatchCheck",
		"LimitService/StreamCheck":   "keystead.limit.v1.LimitService/StreamCheck",
		"CounterService/Add":         "keystead.counter.v1.CounterService/Add",
		"LockService/Acquire":        "keystead.lock.v1.LockService/Acquire",
		"IdService/Next":             "keystead.id.v1.IdService/Next",
		"ClusterService/GetTable":    "keystead.cluster.v1.ClusterService/GetTable",
		"ClusterService/Drain":       "keystead.admin.v1.AdminService/Drain",
		"ClusterService/SplitObject": "keystead.admin.v1.AdminService/SplitObject",
	} {
		err := h.conn.Invoke(bound(t), "/keystead.v1."+old, &limitpb.CheckRequest{Key: "k"}, new(limitpb.CheckResponse))
		refusal{code: codes.Unimplemented, why: commonpb.Reason_REASON_UNKNOWN_METHOD, hint: true}.check(in(t, old), err)
		if !hints(err, want) {
			t.Errorf("%s: %v does not tell %s", old, status.Convert(err).Details(), want)
		}
		if !served["keystead/"+want] {
			t.Errorf("%s is told %s, which is not served", old, want)
		}
	}
	for _, nothing := range []string{"/keystead.v1.NoService/Check", "/other.Service/Method"} {
		err := h.conn.Invoke(bound(t), nothing, &limitpb.CheckRequest{}, new(limitpb.CheckResponse))
		refusal{code: codes.Unimplemented, why: commonpb.Reason_REASON_UNKNOWN_METHOD, hint: true}.check(in(t, nothing), err)
	}
}

func hints(err error, words string) bool {
	for _, d := range status.Convert(err).Details() {
		if m, ok := d.(proto.Message); ok && strings.Contains(m.(interface{ String() string }).String(), words) {
			return true
		}
	}
	return false
}
