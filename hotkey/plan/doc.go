// Package plan decides what is done about hot objects: into how many parts they are
// split, on which nodes, and for how long. It is pure: time is an argument.
//
// A hot object is worth several parts ([Parts]), which are on nodes of their own
// ([Spread]). A [Planner] decides from polls of the rates when an object is split, and
// when its parts are united again: for good, to be more or fewer, or to be placed
// elsewhere. Nothing is done because of a single poll except what an operation waits
// for, and a constant load ends with nothing to be done. Parts of a limit have weights,
// which follow what they are asked for ([Weigh]).
//
// The planner proposes. What a split is, and which node serves what meanwhile, is agreed
// on in ring/epoch/table; a decision that came to nothing is made again. A planner
// remembers nothing that must survive: one that begins anew, after the object's home has
// moved, decides later, not otherwise.
package plan
