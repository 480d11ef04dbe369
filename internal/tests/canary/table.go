package main

import "slices"

// canaries are all there are, in the order in which a request meets the guards,
// and then those of the agreement and of the copies.
func canaries() []Canary {
	return slices.Concat(answers(), rules(), holdings(), leases(), keepers(), terms(), tables(), rows(), removals(),
		streams(), waiting(), copying(), handingOver(), stores(),
		snapshots(), coldStarts(), clocks(),
		losses(), returns(), founders(), ids(), hotKeys(), paths(), budgets(), splits(), queues(), placeRecords(),
		living(), drains(), slowDisks(), replays(), stock(), operators(), clients(), joiners())
}
