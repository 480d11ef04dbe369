package epoch

import "time"

// wallBase is the moment of the epoch 0.
var wallBase = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)

// EpochsPerSecond is how many epochs of the wall clock a second has: more than a
// cluster commits in the long run, so that one that is built anew begins above
// all that the old one reached.
const EpochsPerSecond = 256

// WallEpoch returns the epoch that a cluster made at this moment begins with.
func WallEpoch(t time.Time) uint64 {
	d := t.Sub(wallBase)
	if d < 0 {
		return 0
	}
	return uint64(d) / uint64(time.Second/EpochsPerSecond)
}
