package console

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"time"

	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	oncepb "github.com/keystead/keystead/proto/keystead/once/v1"
)

// hotKey is a line of the busiest keys.
type hotKey struct {
	Key               string // as it is
	Shown, Name, Kind string
	Rate              string
	Width             float64 // of a bar of 100
	State             string
	Hot               bool
}

// keyState is what there is of a key.
type keyState struct {
	Owner, OwnerAddr, Standby, Epoch, Lost string
	Objects                                []object
	More                                   string // that there are more objects
}

// object is an object of a key, as a list of facts.
type object struct {
	Kind, Name string
	Facts      []fact
}

// fact is something about an object.
type fact struct{ What, Value string }

// kindName is what people call a kind of object.
func kindName(k commonpb.Kind) string {
	return strings.ToLower(strings.TrimPrefix(k.String(), "KIND_"))
}

// ofHot fills in the busiest keys of the node.
func (v *view) ofHot(r *clusterpb.ListHotResponse) {
	if r.Policy != nil {
		v.HotRule = fmt.Sprintf("Hot: from %s a second and %g times the average of the others.", count(uint64(r.Policy.Floor)), r.Policy.Factor)
	}
	most := 0.0
	for _, k := range r.Keys {
		most = max(most, k.RateMax)
	}
	for _, k := range r.Keys {
		x := hotKey{Key: k.Key, Shown: printable(k.Key), Name: cmp.Or(printable(k.Name), none), Kind: kindName(k.Kind), Rate: perSecond(k.RateMax), Hot: k.Hot}
		if most > 0 {
			x.Width = 100 * k.RateMax / most
		}
		var state []string
		if k.Hot {
			state = append(state, "hot for "+lasting(k.SinceNs))
		}
		if k.Parts > 0 {
			state = append(state, fmt.Sprintf("part %d of %d", k.Part+1, k.Parts))
		}
		if k.Waiting > 0 {
			state = append(state, fmt.Sprintf("%d waiting", k.Waiting))
		}
		x.State = strings.Join(state, ", ")
		v.Hot = append(v.Hot, x)
	}
}

// keyStateOf is an answer about a key, for people.
func keyStateOf(k *adminpb.InspectKeyResponse) *keyState {
	s := &keyState{Owner: cmp.Or(printable(k.Owner.GetOwner()), "nobody now"), OwnerAddr: printable(k.Owner.GetOwnerAddr()), Standby: cmp.Or(printable(k.Owner.GetStandby()), "none"), Epoch: fmt.Sprint(k.Epoch)}
	if k.LostEpoch != 0 {
		s.Lost = fmt.Sprintf("What was kept of the key was lost in epoch %d, and its grace period runs.", k.LostEpoch)
		if k.LostInPart {
			s.Lost = fmt.Sprintf("What was answered last of the key may be lost, in epoch %d, and the grace period of that runs.", k.LostEpoch)
		}
	}
	for _, o := range k.Objects[:min(len(k.Objects), maxObjects)] {
		s.Objects = append(s.Objects, objectOf(o))
	}
	if k.Truncated || len(k.Objects) > maxObjects {
		s.More = fmt.Sprintf("There are more than these %d.", len(s.Objects))
	}
	return s
}

func objectOf(o *adminpb.ObjectState) object {
	x := object{Kind: kindName(o.Kind), Name: printable(o.Name)}
	add := func(what, format string, args ...any) {
		x.Facts = append(x.Facts, fact{what, fmt.Sprintf(format, args...)})
	}
	switch {
	case o.Limit != nil:
		limitFacts(o.Limit, add)
	case o.Counter != nil:
		add("value", "%d", o.Counter.Value)
		add("version", "%d", o.Counter.Version)
		if o.Counter.IdleTtlNs > 0 {
			add("forgotten", "after %s without a change", lasting(o.Counter.IdleTtlNs))
		}
	case o.Lock != nil:
		lockFacts(o.Lock, add)
	case o.Register != nil:
		if o.Register.Exists {
			add("value", "of %s bytes", count(uint64(o.Register.Size)))
			add("version", "%d", o.Register.Version)
		} else {
			add("value", "removed")
		}
		if o.Register.Fence > 0 {
			add("fence", "%d", o.Register.Fence)
		}
	case o.Once != nil:
		onceFacts(o.Once, add)
	case o.Kind != commonpb.Kind_KIND_UNSPECIFIED:
		add("state", "of a kind that this page does not show")
	}
	if o.IdleNs > 0 {
		add("changed", "%s ago", lasting(o.IdleNs/1e8*1e8))
	}
	if o.Split != nil {
		add("split", "into %d parts, since then the parts have the state", len(o.Split.Parts))
	}
	return x
}

func limitFacts(l *adminpb.LimitState, add func(what, format string, args ...any)) {
	add("spent", "%s", count(l.Spent))
	if l.Calendar != "" {
		add("limit", "%s in a %s", count(l.Limit), printable(l.Calendar))
	} else {
		add("limit", "%s in %s", count(l.Limit), lasting(l.PeriodNs))
	}
	if algorithm, ok := strings.CutPrefix(l.Algorithm.String(), "ALGORITHM_"); ok && l.Algorithm != limitpb.Algorithm_ALGORITHM_UNSPECIFIED {
		add("shape", "%s", strings.ToLower(strings.ReplaceAll(algorithm, "_", " ")))
	}
	if l.ResetAfterNs == math.MaxInt64 {
		add("full again", "never")
	} else {
		add("full again", "in %s", lasting(l.ResetAfterNs))
	}
}

func lockFacts(l *adminpb.LockState, add func(what, format string, args ...any)) {
	if h := l.Holder; h != nil {
		add("held by", "%s", printable(h.Id))
		add("for", "%s", lasting(h.HeldNs))
		add("lease left", "%s", lasting(h.TtlNs))
		add("fencing token", "%d", h.Token)
		if len(h.Metadata) > 0 {
			add("metadata", "%s", printable(string(h.Metadata)))
		}
	} else {
		add("held by", "nobody")
	}
	add("waiting", "%d", l.Waiting)
}

func onceFacts(o *adminpb.OnceState, add func(what, format string, args ...any)) {
	if o.Phase == oncepb.Phase_PHASE_DONE {
		add("done", "with a result of %s bytes", count(uint64(o.Size)))
		add("forgotten", "in %s", lasting(o.TtlNs))
	} else {
		add("under way by", "%s", cmp.Or(printable(o.Holder), "somebody without a name"))
		add("attempt", "%d", o.Attempt)
		add("lease left", "%s", lasting(o.TtlNs))
	}
	add("fencing token", "%d", o.Token)
}

// lasting writes nanoseconds as people do: three figures are enough.
func lasting(ns int64) string {
	d := time.Duration(ns)
	switch {
	case d >= 10*time.Second:
		d = d.Round(time.Second)
	case d >= time.Second:
		d = d.Round(10 * time.Millisecond)
	case d >= time.Millisecond:
		d = d.Round(10 * time.Microsecond)
	default:
		d = d.Round(100 * time.Nanosecond)
	}
	text := d.String()
	if d >= time.Minute {
		text = strings.TrimSuffix(text, "0s")
		if d >= time.Hour && strings.HasSuffix(text, "h0m") {
			text = strings.TrimSuffix(text, "0m")
		}
	}
	return text
}
