package fence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// DefaultTable is the table of Tokens.
const DefaultTable = "keystead_fence"

// Tokens is a table of PostgreSQL with the greatest token of each scope: of what one lock
// protects. A transaction raises its scope's first, and may then read and write as many rows
// as it likes, insert and delete: the scope's row stays locked until the transaction has
// ended, so the next holder's begins behind it, and a late one's is refused.
//
// A holder that is paused in its transaction keeps the next one waiting. Set
// idle_in_transaction_session_timeout in PostgreSQL to the time after which it shall not.
type Tokens struct {
	Table string // a schema may go before a dot; "" = DefaultTable
}

// maxScope is the longest name of a scope, in bytes.
const maxScope = 512

// CreateSQL returns the statement that makes the table, if there is none.
func (t Tokens) CreateSQL() string {
	return "CREATE TABLE IF NOT EXISTS " + t.name() + " (scope text PRIMARY KEY, " + DefaultColumn + " bigint NOT NULL)"
}

// RaiseSQL returns the statement of Raise: the scope is $1, the token $2. It changes one row,
// or none if the token is older. A statement that inserts can have it before it, and so needs
// no transaction:
//
//	WITH passed AS (INSERT INTO … RETURNING 1) INSERT INTO entry (text) SELECT $3 FROM passed
//
// with RaiseSQL and " RETURNING 1" in the brackets. Such a statement must not read tables: it sees
// them as they were when it began, before it waited for the transaction of another holder.
func (t Tokens) RaiseSQL() string {
	//guard:fence-raise-compares " <= EXCLUDED." -> " >= EXCLUDED."
	return "INSERT INTO " + t.name() + " AS t (scope, " + DefaultColumn + ") VALUES ($1, $2) ON CONFLICT (scope) DO UPDATE SET " +
		DefaultColumn + " = EXCLUDED." + DefaultColumn + " WHERE t." + DefaultColumn + " <= EXCLUDED." + DefaultColumn
}

// Raise has the rest of a transaction done under a token of a scope, of 1 to 512 bytes. The
// error is ErrStale if there was a greater one; then roll the transaction back. It must come
// before all that the transaction reads or writes of the scope.
func (t Tokens) Raise(ctx context.Context, tx *sql.Tx, scope string, token uint64) error {
	if err := errors.Join(judge(token), judgeScope(scope)); err != nil {
		return err
	}
	result, err := tx.ExecContext(ctx, t.RaiseSQL(), scope, int64(token))
	if err != nil {
		return fmt.Errorf("fence: raise the token of %q: %w", scope, err)
	}
	n, err := result.RowsAffected()
	if err != nil || n > 0 {
		return err
	}
	stale := &StaleError{What: scope, Token: token}
	// Without an answer it is not known.
	_ = tx.QueryRowContext(ctx, "SELECT "+DefaultColumn+" FROM "+t.name()+" WHERE scope = $1", scope).Scan(&stale.Greatest)
	return stale
}

// Do does something in a transaction under a token, and commits it. If the error is one of
// the commit then it is not known whether it was done; under the same token it may be done
// again.
func (t Tokens) Do(ctx context.Context, db *sql.DB, scope string, token uint64, do func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("fence: begin a transaction for %q: %w", scope, err)
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	if err := t.Raise(ctx, tx, scope, token); err != nil {
		return err
	}
	if err := do(tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("fence: commit what was done for %q: %w", scope, err)
	}
	return nil
}

func (t Tokens) name() string {
	if t.Table == "" {
		return named(DefaultTable)
	}
	return named(t.Table)
}

// judgeScope returns what is wrong with the name of a scope.
func judgeScope(scope string) error {
	if scope == "" || len(scope) > maxScope {
		return invalid("a scope of %d bytes: 1 to %d are allowed", len(scope), maxScope)
	}
	return nil
}
