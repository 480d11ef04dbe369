// Package tidy holds the rules of this repository as functions over a tree of
// files, and the tests that hold the repository to them. Each rule has a test
// on made-up input as well, so that it is known to be able to fail.
//
// The rules, by the name that a finding carries:
//
//   - imports: ring, ring/spread, owner and hotkey with everything below reach
//     no gRPC, protobuf, Prometheus, serf or raft, not even through another
//     package. The siblings owner, handoff, hotkey and envoy do not reach each
//     other, except that handoff, hotkey/divide and hotkey/home carry owner's
//     records. Packages outside internal do not reach internal/node,
//     internal/rpc or internal/admin. Only internal/node imports more than two
//     siblings (the codec of records, handoff/record, does not count), or both
//     serf facts (ring/member) and raft truth (ring/epoch), but for
//     internal/tests/sim, which drives whole nodes; only internal/cli,
//     internal/cli/bench and internal/tests/sim import internal/node.
//     internal/node imports neither hotkey/heat nor hotkey/plan: it wires
//     hotkey/home, which decides.
//     Kinds of objects (owner/limit, owner/counter, owner/lock) do not know each other,
//     and what serves them all (owner/queue, owner/reqid, owner/wire, internal/forward)
//     knows none, not even through another package; handoff imports none.
//   - proto: proto holds .proto files, generated Go, generate.go, buf*.yaml and
//     generated.sum.
//   - generated: proto and the tools that generate it are those of the last
//     `go generate ./proto`, which lints, generates and writes down the sum of
//     all of it: buf itself takes minutes to build and is not run here.
//   - clock: ring, ring/spread, owner and hotkey with everything below do not
//     read the clock, sleep or start timers outside tests: time is an argument.
//     hotkey/home may: it drives splits, and waits for what others do.
//   - doc: a package has a comment of two sentences or more, which is one more
//     than repeating its name.
//   - function: a function has at most 60 lines. Tests may have more: a table
//     is long and easy to read.
//   - file: a file has at most 500 lines, a test file 800. Neither here nor in a
//     function is a line counted that is a mark of internal/tests/canary.
//   - sleep: tests do not call time.Sleep outside a file that uses
//     testing/synctest; elsewhere it is slow or flaky, and often both.
//   - gofmt: Go files are formatted, and they parse.
//   - word: no notes that say that something is still to be done; those belong
//     in an issue.
//   - skip: a test that skips itself may never run, and nobody notices.
//   - name: no package is called after nothing (util, helper, common, manager).
//   - picture: the picture of the packages in docs/architecture.md is that of their
//     imports: `go generate ./internal/tests/tidy` draws it.
//   - link: a relative link in a Markdown file leads to a file, and to a heading in it;
//     so does a page of docs that code or a file in deploy names. A decision is called by
//     its own number.
//   - prose: no line of prose in a Markdown file is longer than 120 characters.
//
// Package manual, below this one, holds the pages against the program: the commands,
// settings, metrics and reasons that they name.
//
// Generated code, known by its "Code generated … DO NOT EDIT." line, is held to
// none of the rules on form.
//
// # Exceptions
//
// exceptions.txt lists what may break function, file, sleep and skip, one
// finding a line with the reason behind a "#". An entry that nothing needs any
// more fails the test, so the list only shrinks.
package tidy

//go:generate go run ./picture
