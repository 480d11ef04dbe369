// Package rls is Envoy's rate limit service
// (envoy.service.ratelimit.v3.RateLimitService) on top of Keystead's limits: it
// reads the configuration files of github.com/envoyproxy/ratelimit, finds the
// limit of each descriptor of a request, and asks the owners of the keys.
//
// # Picture
//
//	files ─▶ Rules ─▶ find: descriptor → limit and key ─▶ Checker.BatchCheck ─▶ statuses
//	  ▲                                                        │ each item to the owner of its key
//	  └─ read again when they change; broken ones change nothing
//
// # Guarantee
//
// A hit is decided once, by the owner of its key, in the order in which hits
// arrive there: with one algorithm and one key, and if nothing is given back, no more
// is let through than the limit says. Two descriptors share a key only if they have
// the same domain and the same entries (see key.go), or if the configuration says so
// (share_threshold).
//
// A configuration counts as a whole or not at all: files that are broken leave
// those in force that were read before.
//
// # Non-guarantees
//
// A request with several descriptors is not one operation: each is decided by
// itself, and others see what was decided so far. With all_or_nothing, what was
// spent is given back when the request is over some other limit; until then, and
// if the owner cannot be reached any more, there is less room than there should be.
// There is more, by at most what is given back, if the hits have come back by
// themselves meanwhile: a bucket has refilled, or the window in which they were spent
// is over. Hits that are negative give back whatever the request says.
//
// An owner that does not answer in the time that a caller leaves may have counted the
// hits; see on_failure for what the caller is told.
package rls
