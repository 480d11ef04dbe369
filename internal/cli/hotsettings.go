package cli

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

// hotFlags are the settings of hot keys. hotSettings validates them.
func (f *nodeFlags) hotFlags(fl *pflag.FlagSet) {
	defaults := f.Hot.WithDefaults()
	f.Hot.Split = true
	fl.Float64Var(&f.Hot.Floor, "hot-floor", defaults.Floor, "operations a second from which a key may be hot")
	fl.Float64Var(&f.Hot.Factor, "hot-factor", defaults.Factor, "how many times the average of the node's other keys a hot key has")
	fl.DurationVar(&f.hotStay, "hot-stay", time.Duration(defaults.Stay), "how long a key is hot, and split, at least; and how long it has to be calm before it no longer is")
	fl.IntVar(&f.Hot.Max, "hot-max", defaults.Max, "keys that are hot at a time; and no more are split by themselves when so many are, 1 to 100")
	fl.Var((*onOff)(&f.Hot.Split), "hot-split", "split hot limits and counters over several nodes; off: by hand alone")
	fl.Float64Var(&f.Hot.PerPart, "hot-per-part", defaults.PerPart, "operations a second that a part of a split key is worth")
	fl.StringSliceVar(&f.Hot.Exclude, "hot-whole", nil, "`NAME`s of limits and counters that are never split, with commas; also BEGINNING*, and limit:NAME, counter:NAME")
}

// hotSettings turns the flags of hot keys into settings, and validates them with the names
// of the flags.
func (f *nodeFlags) hotSettings() error {
	f.Hot.Stay = int64(f.hotStay)
	if err := f.Hot.WithDefaults().Validate(); err != nil {
		return usageError{fmt.Errorf("--hot-%w", err)} // it begins with the name of the field
	}
	return nil
}

// onOff is a switch that is written on or off. Files and variables may have true and
// false as well.
type onOff bool

// String implements pflag.Value.
func (b *onOff) String() string {
	if *b {
		return "on"
	}
	return "off"
}

// Set implements pflag.Value.
func (b *onOff) Set(text string) error {
	switch text {
	case "on", "true":
		*b = true
	case "off", "false":
		*b = false
	default:
		return errors.New("choose on or off")
	}
	return nil
}

// Type implements pflag.Value.
func (b *onOff) Type() string { return "on|off" }
