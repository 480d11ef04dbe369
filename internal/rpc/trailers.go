package rpc

import (
	"net/url"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Trailers that say in plain text what the details of a status say: not every language
// reads those. The hint is percent-encoded, as gRPC has messages.
const (
	reasonTrailer = "keystead-reason"
	hintTrailer   = "keystead-hint"
)

// plain returns the trailers of an error: reason and hint, where it has them.
func plain(err error) metadata.MD {
	for _, d := range status.Convert(err).Details() {
		info, ok := d.(*errdetails.ErrorInfo)
		if !ok || info.Domain != Domain {
			continue
		}
		md := metadata.Pairs(reasonTrailer, info.Reason)
		if hint := info.Metadata["hint"]; hint != "" {
			md.Set(hintTrailer, url.PathEscape(hint))
		}
		return md
	}
	return nil
}

// reasonIn returns the reason in the status of an error, "" if it has none.
func reasonIn(err error) string {
	if r := plain(err).Get(reasonTrailer); len(r) > 0 {
		return r[0]
	}
	return ""
}
