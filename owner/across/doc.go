// Package across decides whether an admission with demands under several keys takes place. Each
// key has its owner: the participants. It is a pure state machine of each participant (State),
// and one of the node that has the request (Coordinator).
//
// # Guarantee
//
// All participants charge, or none does. They charge if all of them have held, which is so from
// the moment at which the last of them does; from then on nothing can keep it from being so.
// No participant decides alone, however long it waits: it asks the others. The coordinator may
// die at any step, and is needed by nobody.
//
// A participant whose row was lost counts as one that held. So after a loss, some or all of the
// others may charge what was refused. What a caller was told is admitted is never given back.
//
// # Picture
//
//	coordinator ─ Hold ─▶ participants: charge, if it fits ─▶ Held | Refused
//	            ◀─ answer ─┘
//	all Held    ──▶ the caller is told ─ Admitted ─▶      (settle behind the answer)
//	one Refused ──▶ the caller is told ─ Cancelled ─▶     (with the refusal as the reason)
//
//	Held, and no word for Patience ─ Question ─▶ the others, by key
//	        ◀─ Held, Lost: one more ── all: Admitted
//	        ◀─ Admitted, Charged, Released, Settled: Admitted
//	        ◀─ Refused, Aborted, Cancelled: Cancelled
//	        ◀─ nothing: the question stays open
//	a Question about what was never seen leaves the mark Aborted, which refuses the Hold
//
//	Admitted ─ Settle ─▶ Settled ◀─ Settle ─┐
//	    └─ its time is over ─▶ Charged | Released ─ all others know, and the id window ─▶ forgotten
//
// # What its user does
//
// Owner: an answer leaves when the standby has what it tells, and what it was told by: a vote, a
// mark and an outcome are changes, whatever the setting that says what answers wait for. What is
// charged and the vote are one record. What an Effect says is done to what was charged in the
// step that it comes from. Sender: a participant that cannot be reached is asked again, for ever.
//
// All is kept for the id window. Where there is no room for more (Crowded, Room), what is over of
// requests that are finished is forgotten (Prune); if that does not help, Holds are refused, and
// not answered where that cannot be remembered.
//
// # Non-guarantee
//
// That all participants charge at one moment. That the caller's Settle reaches all: one that it
// has reached tells the others. One that comes while nothing is decided waits for that: its
// caller may name an id whose outcome it was never told. Of two Settles with different costs, each
// participant takes the first that it sees.
package across
