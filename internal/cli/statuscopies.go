package cli

import (
	"fmt"
	"time"

	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
)

// copyJSON is a copy of some rows that a node makes for another.
type copyJSON struct {
	To       string  `json:"to"`
	Rows     uint32  `json:"rows"`
	Objects  uint64  `json:"objects"`          // sent so far
	Expected uint64  `json:"objects_expected"` // about how many there are
	Bytes    uint64  `json:"bytes"`            // sent so far
	Age      seconds `json:"age"`
	CaughtUp bool    `json:"caught_up"`
}

func copiesJSON(copies []*clusterpb.Copy) []copyJSON {
	out := make([]copyJSON, 0, len(copies))
	for _, y := range copies {
		out = append(out, copyJSON{y.To, y.Rows, y.Objects, y.ObjectsExpected, y.Bytes, seconds(y.AgeNs), y.CaughtUp})
	}
	return out
}

// String is a copy for people.
func (y copyJSON) String() string {
	text := fmt.Sprintf("to %s: %s, ", y.To, plural(int(y.Rows), "row"))
	if y.CaughtUp {
		text += fmt.Sprintf("all %s objects", thousands(float64(y.Objects)))
	} else {
		text += fmt.Sprintf("%s of about %s objects", thousands(float64(y.Objects)), thousands(float64(y.Expected)))
	}
	return text + fmt.Sprintf(", %.1f MB, begun %s ago", float64(y.Bytes)/1e6, people(time.Duration(y.Age)))
}
