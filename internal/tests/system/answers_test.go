package system

import (
	"flag"
	"time"
)

// What the documents promise of commands, written down once more: their exit codes, what
// they print with --json as far as tests look at it, and how they draw on a terminal.
const (
	exitError       = 1
	exitUsage       = 2
	exitUnhealthy   = 3
	exitNotAcquired = 75

	kindLimit, kindCounter = "limit", "counter"

	defaultTop = 20 // keys that `hot` shows

	screenOpen  = "\x1b[?1049h\x1b[?25l" // another screen, no cursor
	screenClose = "\x1b[?25h\x1b[?1049l"
	screenHome  = "\x1b[H"

	ownerBatch  = 1000 // keys in one question of `owner`
	devPortStep = 10   // from the ports of one node of `dev` to those of the next
)

var update = flag.Bool("update", false, "write the documented examples anew")

// memberJSON is a member, as `members --json` prints it, as far as tests look at it.
type memberJSON struct {
	ID      string `json:"id"`
	Phase   string `json:"phase"`
	HashKey string `json:"hash_key"`
}

// ownerJSON is the owner of a key, as `owner --json` prints it.
type ownerJSON struct {
	Key     string `json:"key"`
	Hash    string `json:"hash"`
	Owner   string `json:"owner"`
	Standby string `json:"standby"`
}

// ownedJSON is what a cluster says of a key.
type ownedJSON struct {
	ownerJSON
	OwnerAddr string `json:"owner_addr"`
	Since     string `json:"since"`
}

// hotJSON is what `hot --json` prints, as far as tests look at it.
type hotJSON struct {
	Nodes []hotNodeJSON `json:"nodes"`
	Keys  []hotKeyJSON  `json:"keys"`
}

type hotNodeJSON struct {
	ID      string  `json:"id"`
	Addr    string  `json:"addr"`
	Error   string  `json:"error"`
	Epoch   string  `json:"epoch"`
	Rate    float64 `json:"rate"`
	Objects uint64  `json:"objects"`
	Hot     uint32  `json:"hot"`
	LeftOut uint64  `json:"left_out"`
	Floor   float64 `json:"floor"`
	Factor  float64 `json:"factor"`
}

type hotKeyJSON struct {
	Key     string  `json:"key"`
	Name    string  `json:"name"`
	Kind    string  `json:"kind"`
	Owner   string  `json:"owner"`
	Rate    float64 `json:"rate"`
	Sure    float64 `json:"sure"`
	Share   float64 `json:"share"`
	Hot     bool    `json:"hot"`
	HotFor  seconds `json:"hot_for"`
	Waiting uint32  `json:"waiting"`
	Split   *struct {
		ID    string `json:"id"`
		Phase string `json:"phase"`
	} `json:"split"`
}

// seconds is a duration that is a number of seconds in JSON.
type seconds time.Duration

// UnmarshalJSON reads the number.
func (s *seconds) UnmarshalJSON(text []byte) error {
	d, err := time.ParseDuration(string(text) + "s")
	*s = seconds(d)
	return err
}
