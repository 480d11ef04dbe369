// Command canary shows that tests would notice if a guard of the protocol were
// gone. Guards are marked in the source; for each the command switches the guard off
// in a copy, runs the tests that are there for it, and they have to fail.
//
//	go run ./internal/tests/canary                      # all: half an hour on 2 cores
//	go run ./internal/tests/canary --only 'flip-.*'     # some of them
//	go run ./internal/tests/canary --list               # what there is
//
// # Marks
//
// A mark is a comment //guard:NAME. In a line of its own it stands at the statement,
// clause or declaration below it; at the end of a line, at what ends there: an operand
// of && or ||, an element, an argument or a statement. By itself it takes that away:
//
//	//guard:syncs-few
//	if s.syncing >= maxSyncs { // is never true; nor is a clause, and a for has no turn
//		return
//	}
//	//guard:flip-barrier
//	s.store.Load().Barrier() // does not run
//	return i >= 0 &&
//		s.rows[i].mine && //guard:still-owner
//		now < until //guard:still-lease
//
// Something may stand after the name, which happens instead:
//
//	//guard:NAME true              the condition, the operand, or what is returned or
//	//guard:NAME false             assigned, is always true, never true, or the contrary
//	//guard:NAME not
//	//guard:NAME insert STATEMENT  the statement runs first
//	//guard:NAME OLD -> NEW        in the statement, or its head, NEW is in the place of
//	                               the one expression OLD
//	//guard:NAME -> NEW            NEW is in the place of it all; of a statement with a
//	                               body, in that of its condition
//
// The last three name what is in the source, and a renaming has to find them: the others
// come first. A guard that takes several edits has its name at several places. What it
// does, and which tests notice, is in guards.txt. Marks and guards.txt have to fit: one
// that has no counterpart, or stands at nothing, ends the command before it runs anything.
//
// # What it tells apart
//
// First the same tests run as the code is, and must pass: a test that is red
// anyway notices nothing. Then, with the guard switched off:
//
//   - noticed: a test failed, or the race detector or a panic ended it;
//   - NOT NOTICED: all tests passed, as often as they were tried;
//   - does not compile, hung, broken: it was not the tests that said no.
//
// The exit code is 0 if all are noticed. The tree is never written to: edited
// copies lie in a temporary directory, and go test reads them through -overlay. Their
// lines have the numbers of the source.
//
// # Non-guarantee
//
// A canary switches a guard off in one way. That the tests see it does not mean
// that they would see every weaker form of it.
package main
