// Package sessions is the model of sessions: the rules of docs/decisions/0036-sessions.md,
// with a network that loses, doubles, delays and reorders messages, owners that die or
// hand their rows over, and a client that pauses, forgets and dies. Its tests check what
// the decision promises, and that each rule is needed: without it, a promise breaks.
//
// # Non-guarantees
//
// All clocks are one, and a key is a row of its own. A row with neither owner nor
// standby left is not in the model: its state is claimed, as that of locks is. A digest
// that differs is answered with the node's set here, and by one word as it was built; the
// client sends its own in either case.
package sessions
