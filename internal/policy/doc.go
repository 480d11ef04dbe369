// Package policy reads named limits from YAML, and says what each of them admits at most.
//
// # Guarantee
//
// What Parse takes, the limit takes: no policy of a Set is refused by its owner for its
// numbers. What it does not take it names by line, with what to do; no field is passed
// over. A Set never changes, so that a lookup takes no lock and allocates nothing.
//
// AtMost is a bound that no check ever exceeds, and that a caller who times its checks
// against the limit reaches.
//
// # Picture
//
//	policies:                      a Set
//	  login:                       ┌───────────────┬───────────────────────────┐
//	    limit: 5/15m         ──▶   │ login         │ sliding-window, 5 in 15m  │
//	    algorithm: …               │ per-user      │ token-bucket, 100 in 1m   │
//	  per-user: …                  └───────────────┴───────────────────────────┘
//
// # Non-guarantee
//
// A Set says nothing of which version of it a cluster has agreed on.
package policy
