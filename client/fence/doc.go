// Package fence keeps late holders of a lock from writing: what the lock protects compares
// their fencing tokens with the greatest that it has seen. It is for PostgreSQL and for HTTP
// servers, and imports nothing but the standard library.
//
//	reports := fence.Rows{Table: "report", Key: []string{"id"}}
//	err := reports.Update(ctx, db, lock.Token(), []any{7}, fence.Set("body", text))
//	if errors.Is(err, fence.ErrStale) {
//		return // another holder has written since: stop
//	}
//
// A lease ends by the clock, and its holder may not know: it was stopped, its machine was
// suspended, or its write was long on the way. No look at the lease before the write helps,
// for the pause may come after it. So the comparison has to be where the write takes effect,
// and in the same step.
//
// # Picture
//
//	holder A, token 33 ── paused ───────────────────────── writes ──▶ 33 < 34: refused
//	holder B, token 34 ───────── acquires ── writes ──▶ greatest = 34
//
// # Guarantee
//
//   - Rows: a row takes a write only under a token that is at least the greatest under which
//     it was written through Rows, and keeps that token. Both happen in one statement.
//   - Tokens: so does a transaction, for whatever it reads and writes: its scope has a row of
//     its own, which stays locked until the transaction has ended.
//   - Gate: a request is handled only if no greater token has come to its scope, and only when
//     no request under a smaller one is handled any more. One under a smaller token that is
//     being handled has its context ended.
//   - A token that passed passes again: a holder writes as often as it likes.
//
// # Non-guarantees
//
//   - A late holder is known by the next one: until that has written, the late one may write.
//     Nothing is overwritten by that. A register of Keystead knows it at once, with WhileHeld.
//   - What does not compare tokens is not protected, in the same table either: every statement
//     that writes has to. Rows that are deleted take their token along; see Tokens.
//   - Tokens of different locks are not comparable: one scope, or row, has one lock. A semaphore
//     of more than one permit has several holders at a time, and so has a lock that is shared:
//     the order of their tokens says nothing, and the latest would shut out the others.
//   - A caller that may choose its token may choose a great one, and shut out all others.
//     Authenticate callers first.
//   - A Gate is about one process, and by itself forgets all when that ends. See Config.Keeper.
package fence
