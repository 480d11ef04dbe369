package p2c

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Config says how loads are computed. The zero Config is a good one.
type Config struct {
	// Decay is the time constant with which a latency comes down, and with which a
	// failure is forgotten: after it 37 % of the difference is left. Default 2 s: a
	// pause of some 10 ms costs a backend a few seconds of less traffic, while some
	// hundred answers still make an average.
	Decay time.Duration
	// Penalty is what a failed call is assumed to cost its caller: it has to be
	// made again, later and elsewhere. Default 1 s, far above the latency of what is
	// called.
	Penalty time.Duration
	// Probe is how long a backend may be left without a call. Default 10 s: a
	// backend that has recovered is found soon, and one that has not takes less
	// than 1 % of the calls from 10 calls a second on.
	Probe time.Duration
}

// Defaults of Config, and what is not a setting.
const (
	DefaultDecay   = 2 * time.Second
	DefaultPenalty = time.Second
	DefaultProbe   = 10 * time.Second

	// Longest is the duration up to which a call that ended well tells a latency.
	// One that took longer was a stream, or waited for something else.
	Longest = 10 * time.Second

	// minSetting and maxSetting bound every duration of Config: below, the clock's
	// steps would decide; above, nothing would ever be learnt anew.
	minSetting = time.Millisecond
	maxSetting = time.Hour
)

// Invalid is the error of a setting that makes no sense.
type Invalid struct {
	Field   string // as in the service config: "decay", "penalty", "probe"; "" = all of it
	Message string
	Hint    string // what to do about it
}

// Error says what is wrong and what to do.
func (e *Invalid) Error() string {
	field := ""
	if e.Field != "" {
		field = "." + e.Field
	}
	return fmt.Sprintf("%s%s: %s (%s)", Name, field, e.Message, e.Hint)
}

// WithDefaults is c with the defaults for what is 0. It fails with an *Invalid.
func (c Config) WithDefaults() (Config, error) {
	for _, f := range []struct {
		name  string
		value *time.Duration
		or    time.Duration
	}{{"decay", &c.Decay, DefaultDecay}, {"penalty", &c.Penalty, DefaultPenalty}, {"probe", &c.Probe, DefaultProbe}} {
		if *f.value == 0 {
			*f.value = f.or
		}
		if *f.value < minSetting || *f.value > maxSetting {
			return Config{}, &Invalid{Field: f.name, Message: fmt.Sprintf("%s is out of range", *f.value),
				Hint: fmt.Sprintf("choose %s to %s, or leave it out for %s", minSetting, maxSetting, f.or)}
		}
	}
	return c, nil
}

// settings is Config in a service config: durations as gRPC writes them, "1.5s".
type settings struct {
	Decay   string `json:"decay,omitempty"`
	Penalty string `json:"penalty,omitempty"`
	Probe   string `json:"probe,omitempty"`
}

// parse reads the part of a service config that stands behind the name. Fields
// that it does not know are ignored, as gRPC asks of balancers.
func parse(text []byte) (Config, error) {
	var s settings
	if err := json.Unmarshal(text, &s); err != nil {
		return Config{}, &Invalid{Message: err.Error(), Hint: `write {} for the defaults, or {"probe": "5s"}`}
	}
	var c Config
	for _, f := range []struct {
		name, text string
		to         *time.Duration
	}{{"decay", s.Decay, &c.Decay}, {"penalty", s.Penalty, &c.Penalty}, {"probe", s.Probe, &c.Probe}} {
		if f.text == "" {
			continue
		}
		d, err := time.ParseDuration(f.text)
		if err != nil || d <= 0 {
			return Config{}, &Invalid{Field: f.name, Message: fmt.Sprintf("%q is no duration above 0", f.text), Hint: `write "2s" or "0.5s"`}
		}
		*f.to = d
	}
	return c.WithDefaults()
}

// seconds writes a duration as gRPC does: in seconds, with all digits that it needs.
func seconds(d time.Duration) string {
	if d < 0 {
		return d.String() // refused by parse
	}
	text := fmt.Sprintf("%d.%09d", d/time.Second, d%time.Second)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".") + "s"
}

// ServiceConfig is a gRPC service config, JSON, that chooses this balancer with
// c, for grpc.WithDefaultServiceConfig. What is 0 is left out; what is out of range
// is refused there.
func (c Config) ServiceConfig() string {
	var s settings
	for _, f := range []struct {
		from time.Duration
		to   *string
	}{{c.Decay, &s.Decay}, {c.Penalty, &s.Penalty}, {c.Probe, &s.Probe}} {
		if f.from != 0 {
			*f.to = seconds(f.from)
		}
	}
	text, err := json.Marshal(map[string]any{"loadBalancingConfig": []any{map[string]any{Name: s}}})
	if err != nil {
		panic(err) // strings only
	}
	return string(text)
}
