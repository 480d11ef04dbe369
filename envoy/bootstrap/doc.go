// Package bootstrap writes configurations for Envoy that send each request to the
// owner of its key: static ones, which name the nodes, and dynamic ones, which ask
// the nodes by xDS.
//
// # Guarantee
//
// What is written is YAML that Envoy's v3 API takes, field for field, and the same
// for the same input, whatever order the nodes come in. In a static one the cluster
// keystead-owners has the ring that package ring makes of the same hash keys: equal
// weights, one locality, XX_HASH, 256 points a node, hosts bytewise by hash key, and
// nothing that would take a host out or send a request past it (no active health
// checks, no outlier detection, no panic threshold, no hash_balance_factor).
//
// # Picture
//
//	                 ┌ with the key header ─▶ keystead-owners  RING_HASH
//	request ─▶ Envoy ┤
//	                 └ without ────────────▶ keystead-any     LEAST_REQUEST of two
//
// With a RateLimit, Envoy asks the rate limit service of the nodes first, at
// keystead-any. With an Upstream, what is let through goes there, and not to the
// nodes.
//
// # Non-guarantee
//
// A static configuration is a picture of one moment. When nodes come and go it is
// behind, and requests are a hop longer; a node that takes a request for a key of
// another passes it on.
package bootstrap
