package disk

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/keystead/keystead/owner"
)

// Durability is what an answer says of the disk.
type Durability uint8

// The durabilities, from the least on.
const (
	None     Durability = iota + 1 // nothing: what is decided is in memory alone
	Interval                       // a crash loses at most what was answered within the last interval
	Always                         // what it tells is on disk
)

var durabilities = [...]string{"", "none", "interval", "always"}

func (d Durability) String() string { return durabilities[d] }

// Bounds and default of an interval, with their reasons.
const (
	DefaultInterval = time.Second           // what people know of others, and far above what a round takes
	MinInterval     = 50 * time.Millisecond // a round has to fit in half of it
	MaxInterval     = 5 * time.Minute       // what is lost has to be remembered by somebody
)

// Settings say what is kept, and how soon.
type Settings struct {
	Default  Durability
	Of       map[owner.Kind]Durability // those of kinds that differ
	Interval time.Duration
}

// ParseSettings reads "interval", or "interval,counter=always,lock=none": the durability of
// all kinds, and those of kinds that differ. "" is the default.
func ParseSettings(text string, interval time.Duration) (Settings, error) {
	s := Settings{Default: Interval, Of: map[owner.Kind]Durability{}, Interval: interval}
	if interval == 0 {
		s.Interval = DefaultInterval
	}
	if s.Interval < MinInterval || s.Interval > MaxInterval {
		return s, fmt.Errorf("a durability interval of %s: choose %s to %s", interval, MinInterval, MaxInterval)
	}
	if text == "" {
		return s, nil
	}
	for i, part := range strings.Split(text, ",") {
		name, word, of := strings.Cut(strings.TrimSpace(part), "=")
		if !of {
			name, word = "", name
		}
		at := slices.Index(durabilities[:], word)
		if at <= 0 {
			return s, fmt.Errorf("durability %q: choose none, interval or always", word)
		}
		d := Durability(at)
		kind, known := owner.ParseKind(name)
		if !known { // as other settings name it
			kind, known = owner.ParseKind(strings.TrimSuffix(name, "s"))
		}
		switch {
		case !of && i > 0:
			return s, fmt.Errorf("durability %q: name the one of all kinds first, and once, as in interval,counter=always", text)
		case !of:
			s.Default = d
		case i == 0:
			return s, fmt.Errorf("durability %q: name the one of all kinds first, as in interval,counter=always", text)
		case !known:
			return s, fmt.Errorf("durability of %q: it is no kind of object: choose among %s", name, kindNames())
		case s.Of[kind] != 0:
			return s, fmt.Errorf("durability %q: %s is named twice", text, name)
		case d != s.Default:
			s.Of[kind] = d
		}
	}
	return s, nil
}

func kindNames() string {
	var names []string
	for _, k := range owner.Kinds() {
		names = append(names, k.String())
	}
	return strings.Join(names, ", ")
}

// For returns the durability of a kind.
func (s Settings) For(k owner.Kind) Durability {
	if d, ok := s.Of[k]; ok {
		return d
	}
	return s.Default
}

// OfCluster returns the settings of a disk on which others count: it leaves out no kind, for what another node answers under
// always, or within its interval, is to be on the disks of its standbys as well.
func (s Settings) OfCluster() Settings {
	if !s.partly() {
		return s
	}
	all := Settings{Default: s.Default, Of: map[owner.Kind]Durability{}, Interval: s.Interval}
	if all.Default == None {
		all.Default = Interval
	}
	for k, d := range s.Of {
		//guard:disk-kinds-of-others max(d, Interval) -> d
		if d = max(d, Interval); d != all.Default {
			all.Of[k] = d
		}
	}
	return all
}

// Kept reports whether anything is kept on disk.
func (s Settings) Kept() bool { return s.any(func(d Durability) bool { return d != None }) }

// Whole reports whether nothing that was answered can be lost.
func (s Settings) Whole() bool {
	//guard:disk-whole d != Always -> d == Interval
	return !s.any(func(d Durability) bool { return d != Always })
}

// partly reports whether some kinds are kept and others are not.
func (s Settings) partly() bool {
	return s.Kept() && s.any(func(d Durability) bool { return d == None })
}

func (s Settings) any(is func(Durability) bool) bool {
	return slices.ContainsFunc(owner.Kinds(), func(k owner.Kind) bool { return is(s.For(k)) })
}

// String is what ParseSettings reads, in the order of kinds.
func (s Settings) String() string {
	text := s.Default.String()
	for _, k := range owner.Kinds() {
		if d, ok := s.Of[k]; ok {
			text += "," + k.String() + "=" + d.String()
		}
	}
	return text
}
