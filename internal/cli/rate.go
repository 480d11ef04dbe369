package cli

import (
	"fmt"
	"strings"
	"time"

	words "github.com/keystead/keystead/internal/rate"
	"github.com/keystead/keystead/owner/limit"
)

// rate is a limit as people write it: 20/1m, 100/s, 5000/24h, 1000/7d.
type rate struct {
	limit  uint64
	period time.Duration
}

func parseRate(text string) (rate, error) {
	r, err := words.Parse(text)
	if err != nil {
		return rate{}, err
	}
	if r.Period < limit.MinPeriod || r.Period > limit.MaxPeriod {
		_, period, _ := strings.Cut(text, "/")
		return rate{}, fmt.Errorf("a period of %s: choose 1us to 366d", period)
	}
	return rate{r.Limit, r.Period}, nil
}

// String implements pflag.Value.
func (r *rate) String() string {
	if r.limit == 0 {
		return ""
	}
	period := r.period.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(period, zero) {
			period = strings.TrimSuffix(period, zero[1:])
		}
	}
	return fmt.Sprintf("%d/%s", r.limit, period)
}

// Set implements pflag.Value.
func (r *rate) Set(text string) (err error) {
	*r, err = parseRate(text)
	return err
}

// Type implements pflag.Value.
func (r *rate) Type() string { return "COUNT/PERIOD" }
