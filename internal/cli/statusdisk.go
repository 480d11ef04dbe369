package cli

import (
	"fmt"
	"strconv"
	"time"

	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
)

// statusDisk is the store on disk of a node, in its status.
type statusDisk struct {
	Durability string  `json:"durability"`
	Interval   seconds `json:"interval"`
	Behind     seconds `json:"behind"`
	Bytes      int64   `json:"bytes"`
	Taking     bool    `json:"taking"`
	Agreed     string  `json:"agreed,omitempty"` // by the cluster
}

func diskJSON(d *clusterpb.Disk) *statusDisk {
	if d == nil {
		return nil
	}
	return &statusDisk{d.Durability, seconds(d.IntervalNs), seconds(d.BehindNs), d.Bytes, d.Taking, d.Agreed}
}

// aboutSize writes a number of bytes for people, with three digits.
func aboutSize(n int64) string {
	units, v := []string{"B", "KiB", "MiB", "GiB", "TiB"}, float64(n)
	for ; v >= 1000 && len(units) > 1; units = units[1:] {
		v /= 1024
	}
	return fmt.Sprintf("%.3g %s", v, units[0])
}

func (d *statusDisk) String() string {
	text := fmt.Sprintf("%s, %s, at most %s behind", d.Durability, aboutSize(d.Bytes), time.Duration(d.Behind).Round(time.Millisecond))
	if d.Agreed != "" {
		text += ", the cluster has agreed on " + d.Agreed
	}
	if !d.Taking {
		text += ": it takes nothing"
	}
	return text
}

// awaitedDisk is a disk that rows wait for.
type awaitedDisk struct {
	Node        string  `json:"node"`
	Incarnation string  `json:"incarnation"`
	Rows        uint32  `json:"rows"`
	RowsAlone   uint32  `json:"rows_alone"` // that wait for no other
	Waiting     seconds `json:"waiting"`
}

func awaitedJSON(all []*clusterpb.AwaitedDisk) []awaitedDisk {
	out := []awaitedDisk{}
	for _, d := range all {
		out = append(out, awaitedDisk{d.Node, strconv.FormatUint(d.Incarnation, 10), d.Rows, d.RowsAlone, seconds(d.WaitingNs)})
	}
	return out
}
