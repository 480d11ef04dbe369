// Command canary shows that tests would notice if a guard of the protocol were
// gone. It has a table of guards; for each it switches the guard off in a copy of
// the source, runs the tests that are there for it, and they have to fail.
//
//	go run ./internal/tests/canary                      # all: some minutes on 2 cores
//	go run ./internal/tests/canary --only 'flip-.*'     # some of them
//	go run ./internal/tests/canary --list               # what there is
//
// # What it tells apart
//
// First the same tests run as the code is, and must pass: a test that is red
// anyway notices nothing. Then, with the guard switched off:
//
//   - noticed: a test failed, or the race detector or a panic ended it;
//   - NOT NOTICED: all tests passed, as often as they were tried;
//   - out of date: the text that is to be replaced is not in the file, or there
//     more than once. The code has changed, and the canary has to follow;
//   - does not compile, hung, broken: it was not the tests that said no.
//
// The exit code is 0 if all are noticed. The tree is never written to: edited
// copies lie in a temporary directory, and go test reads them through -overlay.
//
// # Non-guarantee
//
// A canary switches a guard off in one way. That the tests see it does not mean
// that they would see every weaker form of it.
package main
