// Package judge reports whether what the clients of a history were told can be true,
// and whether they were served as they should be.
//
// # What is judged
//
//   - Each object by the model of its kind (internal/tests/kinds): exactly,
//     but for times, which may be late by a bounded slack for each fault and are
//     never early. Durations only lengthen on copies, and stand still while all
//     nodes are stopped. A standby since a handoff may hold an older copy than the
//     new owner, until something is changed.
//   - Of counters and limits that were split: each add counts once, no limit admits more
//     than a whole one, and what the whole says is exact, but that tokens may be gone since
//     the first split (history.Model.Split). If any loss is declared they are left out:
//     they had parts anywhere.
//   - Epochs of answers about one object do not go back.
//   - Writes under locks (kinds.Fencing): a token belongs to one grant; a write under a
//     lease that runs is never refused, for nobody else can have had a later grant;
//     none is accepted after one with a greater token.
//   - Declared loss: the table says that rows arrived without their state. Where
//     none was to be expected it is a failure, unless the machine stalled; elsewhere the objects of these rows
//     are left out, and the history counts as declared, not as legal.
//   - Liveness: when a fault is over, each object is served within a bound. While
//     one lasts, objects whose owner and leader are unharmed pause for less.
//
// # What is not
//
// What internal/tests/history does not check: places in queues, idle TTLs, fixed windows. A
// loss that leaves no trace: of a bucket that would have been full by then anyway.
package judge
