package fence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// DB is what runs statements: a *sql.DB, *sql.Conn or *sql.Tx.
type DB interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// DefaultColumn is the column of a row's token.
const DefaultColumn = "last_token"

// Rows are the rows of a table of PostgreSQL, each with the greatest token under which it was
// written, in a column of the type bigint NOT NULL DEFAULT 0. Names are as PostgreSQL keeps
// them, in small letters unless they were quoted when they were made; a schema goes before a
// dot.
//
// For a row whose write is all that the lock protects. For several rows, inserts of new ones
// and deletes there is Tokens.
type Rows struct {
	Table string
	Key   []string // columns of the primary key, or of a unique index
	Token string   // column of the token; "" = DefaultColumn
}

// Column is a column with its new value.
type Column struct {
	Name  string
	Value any
}

// Set gives a column a value.
func Set(name string, value any) Column { return Column{name, value} }

// UpdateSQL returns the statement of Update: the token is $1, then come the columns, and last
// the key.
//
//	UPDATE "report" SET "body" = $2, "last_token" = $1 WHERE "id" = $3 AND "last_token" <= $1
//
// Both places of the token are needed. With < in place of <= a holder would be refused its
// own second write. Without the SET the row would not learn of the token, and a late holder
// would pass. A SELECT that compares before an UPDATE that does not is no fence: another
// holder may write in between.
func (r Rows) UpdateSQL(columns ...string) string {
	var set, where []string
	for i, c := range columns {
		set = append(set, quoted(c)+" = "+param(i+2))
	}
	//guard:fence-update-sets
	set = append(set, r.column()+" = $1")
	for i, c := range r.Key {
		where = append(where, quoted(c)+" = "+param(len(columns)+i+2))
	}
	//guard:fence-update-compares
	where = append(where, r.column()+" <= $1")
	return "UPDATE " + named(r.Table) + " SET " + strings.Join(set, ", ") + " WHERE " + strings.Join(where, " AND ")
}

// UpsertSQL returns the statement of Upsert, with the same order of parameters.
//
//	INSERT INTO "report" AS t ("last_token", "body", "id") VALUES ($1, $2, $3)
//	ON CONFLICT ("id") DO UPDATE SET "last_token" = EXCLUDED."last_token", "body" = EXCLUDED."body"
//	WHERE t."last_token" <= EXCLUDED."last_token"
func (r Rows) UpsertSQL(columns ...string) string {
	names, params, set := []string{r.column()}, []string{"$1"}, []string{r.column() + " = EXCLUDED." + r.column()}
	for i, c := range slices.Concat(columns, r.Key) {
		names, params = append(names, quoted(c)), append(params, param(i+2))
		if i < len(columns) {
			set = append(set, quoted(c)+" = EXCLUDED."+quoted(c))
		}
	}
	var key []string
	for _, c := range r.Key {
		key = append(key, quoted(c))
	}
	//guard:fence-upsert-compares " <= EXCLUDED." -> " >= EXCLUDED."
	return "INSERT INTO " + named(r.Table) + " AS t (" + strings.Join(names, ", ") + ") VALUES (" + strings.Join(params, ", ") +
		") ON CONFLICT (" + strings.Join(key, ", ") + ") DO UPDATE SET " + strings.Join(set, ", ") +
		" WHERE t." + r.column() + " <= EXCLUDED." + r.column()
}

// Update changes the row of a key under a token. The error is ErrStale if the row was written
// under a greater one, and ErrNoRow if there is no such row. Beside other writers it waits for
// the row; at the isolation levels REPEATABLE READ and SERIALIZABLE PostgreSQL then ends the
// transaction with the code 40001, and the transaction has to be done again.
func (r Rows) Update(ctx context.Context, db DB, token uint64, key []any, columns ...Column) error {
	n, err := r.exec(ctx, db, r.UpdateSQL, token, key, columns)
	if err != nil || n > 0 {
		return err
	}
	return r.refused(ctx, db, token, key)
}

// Upsert is Update that makes the row if there is none.
func (r Rows) Upsert(ctx context.Context, db DB, token uint64, key []any, columns ...Column) error {
	n, err := r.exec(ctx, db, r.UpsertSQL, token, key, columns)
	if err != nil || n > 0 {
		return err
	}
	if err := r.refused(ctx, db, token, key); !errors.Is(err, ErrNoRow) {
		return err
	}
	return &StaleError{What: r.Table, Token: token} // and gone since
}

func (r Rows) column() string {
	if r.Token == "" {
		return quoted(DefaultColumn)
	}
	return quoted(r.Token)
}

func (r Rows) exec(ctx context.Context, db DB, query func(...string) string, token uint64, key []any, columns []Column) (int64, error) {
	if err := judge(token); err != nil {
		return 0, err
	}
	if r.Table == "" || len(r.Key) == 0 || len(key) != len(r.Key) {
		return 0, invalid("table %q has %d key columns, and %d values are given", r.Table, len(r.Key), len(key))
	}
	var names []string
	args := []any{int64(token)}
	for _, c := range columns {
		names, args = append(names, c.Name), append(args, c.Value)
	}
	result, err := db.ExecContext(ctx, query(names...), append(args, key...)...)
	if err != nil {
		return 0, fmt.Errorf("fence: write to %s: %w", r.Table, err)
	}
	return result.RowsAffected()
}

// refused returns why a statement found nothing to write.
func (r Rows) refused(ctx context.Context, db DB, token uint64, key []any) error {
	var where []string
	for i, c := range r.Key {
		where = append(where, quoted(c)+" = "+param(i+1))
	}
	var greatest uint64
	err := db.QueryRowContext(ctx, "SELECT "+r.column()+" FROM "+named(r.Table)+" WHERE "+strings.Join(where, " AND "), key...).Scan(&greatest)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("%w in %s", ErrNoRow, r.Table)
	case err != nil || greatest <= token: // it cannot be asked, or is another row by now
		greatest = 0
	}
	return &StaleError{What: r.Table, Token: token, Greatest: greatest}
}

func param(n int) string { return "$" + strconv.Itoa(n) }

// quoted returns a name as an identifier of SQL, whatever is in it.
func quoted(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// named is quoted for a table that may have a schema.
func named(table string) string {
	schema, name, ok := strings.Cut(table, ".")
	if !ok {
		return quoted(table)
	}
	return quoted(schema) + "." + quoted(name)
}
