// Package ids hands out unique 63-bit numbers of blocks: an epoch that nobody else
// was given, and 2^24 sequence numbers under it.
//
// # Guarantee
//
// No id is handed out twice, as long as Config.Claim returns no epoch twice, in any
// process. Nothing else matters: not the time, not leases, not whether anybody can be
// reached. A block lives in the memory of its process and ends with it.
//
// An id that is asked for more than Order after another one was handed out is
// greater, if epochs taken later are greater: a block is used for no longer than
// Order after it was asked for, so that it was taken after the other id's.
// The ids of one Source rise.
//
// # Picture
//
//	Claim ─▶ epoch 71 │ 0 1 2 … 12,582,912 …            ids 71·2^24, 71·2^24 + 1, …
//	                                 │
//	                    three quarters used, or Fresh over: the next one is taken
//	Claim ─▶ epoch 90 │ 0 1 2 …      beside the callers, and is there when it is needed
//
// # Non-guarantee
//
// Ids have gaps: what is left of a block when it is replaced is never used. They
// tell nothing of the time, but for their order.
package ids
