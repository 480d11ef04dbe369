package rpc

import (
	"strings"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/internal/failure"
)

// oldPackage is where all services stood before each noun had a package of its own.
const oldPackage = "/keystead.v1."

// renamed are the packages of the services that had other names, and of the methods
// that have moved to another service.
var renamed = map[string]string{
	"LimitService": "limit", "CounterService": "counter", "LockService": "lock", "IdService": "id", "ClusterService": "cluster",

	"ClusterService/Drain": "admin.v1.AdminService", "ClusterService/Undrain": "admin.v1.AdminService",
	"ClusterService/SplitObject": "admin.v1.AdminService", "ClusterService/MergeObject": "admin.v1.AdminService",
}

// newName returns what a method is called today, "" if it never had another name.
func newName(full string) string {
	name, ok := strings.CutPrefix(full, oldPackage)
	if !ok {
		return ""
	}
	service, method, _ := strings.Cut(name, "/")
	if to := renamed[name]; to != "" {
		return "keystead." + to + "/" + method
	}
	if noun := renamed[service]; noun != "" {
		return "keystead." + noun + ".v1." + service + "/" + method
	}
	return ""
}

// unknown answers calls of methods that do not exist. It tells callers of old names the
// new ones.
func (s *Server) unknown(_ any, stream grpc.ServerStream) error {
	full, _ := grpc.MethodFromServerStream(stream)
	e := &failure.Error{Reason: failure.UnknownMethod, Message: "there is no method " + strings.TrimPrefix(full, "/"),
		Hint: "the node may be older than you: compare `keystead members`; docs/api.md lists all methods"}
	if to := newName(full); to != "" {
		e.Hint = "call " + to + ", which takes and answers the same; docs/names.md lists all new names"
	}
	return s.refuse(e)
}
