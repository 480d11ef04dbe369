package fence

import (
	"errors"
	"fmt"
	"math"
)

// maxToken is the greatest fencing token: a bigint of PostgreSQL holds it.
const maxToken = math.MaxInt64

var (
	// ErrStale is what a write, or a request, is refused with when there has been one under a
	// greater token: its holder is late, and must stop. It is a *StaleError.
	ErrStale = errors.New("fence: the fencing token is older than one that has written")
	// ErrInvalid is the error of a token, scope or table that cannot be one.
	ErrInvalid = errors.New("fence: invalid")
	// ErrNoRow is the error of an Update of a row that does not exist.
	ErrNoRow = errors.New("fence: there is no such row")
	// ErrBusy is the error of a request that waited too long for one under a smaller token.
	ErrBusy = errors.New("fence: a request under an older fencing token is still being handled")
	// ErrFull is the error of a request in a scope for which a Gate has no room.
	ErrFull = errors.New("fence: too many scopes; raise Config.Scopes")
)

// StaleError is why something was refused. errors.Is finds ErrStale.
type StaleError struct {
	What     string // the scope, or the table
	Token    uint64
	Greatest uint64 // that was seen; 0 = it is not known
}

// Error implements error.
func (e *StaleError) Error() string {
	if e.Greatest == 0 {
		return fmt.Sprintf("fence: %s has been written under a greater fencing token than %d; this holder is late and must stop", e.What, e.Token)
	}
	return fmt.Sprintf("fence: %s has been written under the fencing token %d, above %d; this holder is late and must stop", e.What, e.Greatest, e.Token)
}

// Unwrap returns ErrStale.
func (e *StaleError) Unwrap() error { return ErrStale }

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

// judge returns what is wrong with a token.
func judge(token uint64) error {
	if token == 0 || token > maxToken {
		return invalid("token %d: a fencing token is 1 to 2^63-1, as the grant of the lock has it", token)
	}
	return nil
}
