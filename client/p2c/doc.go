// Package p2c chooses a backend by two random choices: of two different ones it
// chooses the one with the smaller load. It is a balancer for any gRPC client, under
// the name keystead_p2c, and the arithmetic below it, which the Go client of
// Keystead uses for calls that have no key.
//
//	p2c.Register() // once, before the first connection is made
//	conn, err := grpc.NewClient("dns:///ids.example.org:7400",
//		grpc.WithDefaultServiceConfig(p2c.Config{}.ServiceConfig()), …)
//
// # Picture
//
//	Pick ─▶ is one overdue? ── yes ─▶ that one (a probe)
//	              └─ no ─▶ two of n at random ─▶ the one that is not down
//	                                        └──▶ of equals the one with the smaller
//
//	         latency · (in flight + 1)     latency: peak-sensitive average of answers
//	       + failures · penalty · (…)      failures: share of late, from 0 to 1
//
// A slower answer raises the latency at once; faster ones bring it down with the
// time constant Config.Decay, by the time since the last and not by their number.
// What is not seen fades likewise, to a quarter.
//
// # Guarantee
//
//   - The two are different, and both READY.
//   - A backend that fails at once does not look fast: failures never lower a
//     latency, each costs Config.Penalty by its share of the calls, and after three
//     in a row, or if it never did anything else, the backend is down: chosen only
//     if nothing else is left, or as a probe.
//   - A backend to which no call went for Config.Probe is given the next call,
//     whatever its load. One that is down and fails its probes waits twice as long
//     after each, up to eight times.
//   - A backend that was never called is given one call at once and, until that
//     returns, no more than it would get if it were as slow as Config.Penalty: a
//     backend that starts does not meet a herd.
//   - Pick takes no lock and allocates nothing but what tells of the end of the call.
//
// # Non-guarantees
//
//   - It is for calls that any backend may answer. Calls with a key go to the owner:
//     package client, or gRPC's ring_hash.
//   - Latencies are those of whole calls, all methods together. A stream counts as
//     in flight while it lasts; if it ended well after more than Longest it says
//     nothing of latency. Give streams and calls that wait (locks) a connection of
//     their own.
//   - Each connection learns for itself, and nothing is learnt from the backends: one
//     that refuses work with the code of an answer (see OutcomeOf) looks fast.
//   - Below one call in Config.Probe for each backend every call is a probe, and the
//     backends take turns: nothing better is known.
//
// Sources: Mitzenmacher, The Power of Two Choices in Randomized Load Balancing,
// IEEE TPDS 12 (2001), for the two choices; the peak-sensitive average is known
// from Twitter's Finagle (PeakEwma). docs/p2c.md has figures.
package p2c
