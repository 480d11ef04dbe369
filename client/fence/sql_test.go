package fence_test

import (
	"database/sql"
	"errors"
	"math"
	"testing"

	"github.com/keystead/keystead/client/fence"
)

var (
	_ fence.DB = (*sql.DB)(nil)
	_ fence.DB = (*sql.Conn)(nil)
	_ fence.DB = (*sql.Tx)(nil)
)

// The statements compare with <=, and set the token. What they do in a real PostgreSQL
// internal/tests/postgres shows.
func TestStatements(t *testing.T) {
	rows := fence.Rows{Table: "report", Key: []string{"id"}}
	wide := fence.Rows{Table: `sales."report`, Key: []string{"year", "id"}, Token: "tok"}
	for name, tc := range map[string]struct{ got, want string }{
		"update":            {rows.UpdateSQL("body"), `UPDATE "report" SET "body" = $2, "last_token" = $1 WHERE "id" = $3 AND "last_token" <= $1`},
		"update of nothing": {rows.UpdateSQL(), `UPDATE "report" SET "last_token" = $1 WHERE "id" = $2 AND "last_token" <= $1`},
		"update, wide": {wide.UpdateSQL("a", "b"),
			`UPDATE "sales"."""report" SET "a" = $2, "b" = $3, "tok" = $1 WHERE "year" = $4 AND "id" = $5 AND "tok" <= $1`},
		"upsert": {rows.UpsertSQL("body"), `INSERT INTO "report" AS t ("last_token", "body", "id") VALUES ($1, $2, $3) ON CONFLICT ("id") ` +
			`DO UPDATE SET "last_token" = EXCLUDED."last_token", "body" = EXCLUDED."body" WHERE t."last_token" <= EXCLUDED."last_token"`},
		"upsert, wide": {wide.UpsertSQL("a"), `INSERT INTO "sales"."""report" AS t ("tok", "a", "year", "id") VALUES ($1, $2, $3, $4) ON CONFLICT ("year", "id") ` +
			`DO UPDATE SET "tok" = EXCLUDED."tok", "a" = EXCLUDED."a" WHERE t."tok" <= EXCLUDED."tok"`},
		"table": {fence.Tokens{}.CreateSQL(), `CREATE TABLE IF NOT EXISTS "keystead_fence" (scope text PRIMARY KEY, last_token bigint NOT NULL)`},
		"raise": {fence.Tokens{Table: "app.fence"}.RaiseSQL(), `INSERT INTO "app"."fence" AS t (scope, last_token) VALUES ($1, $2) ON CONFLICT (scope) ` +
			`DO UPDATE SET last_token = EXCLUDED.last_token WHERE t.last_token <= EXCLUDED.last_token`},
	} {
		if tc.got != tc.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, tc.got, tc.want)
		}
	}
}

// What cannot be right is refused before the database is asked: here there is none.
func TestStatementsAreJudged(t *testing.T) {
	rows := fence.Rows{Table: "report", Key: []string{"id"}}
	for name, err := range map[string]error{
		"no token":        rows.Update(t.Context(), nil, 0, []any{1}),
		"a large token":   rows.Update(t.Context(), nil, math.MaxInt64+1, []any{1}),
		"no key":          rows.Update(t.Context(), nil, 1, nil),
		"too many keys":   rows.Upsert(t.Context(), nil, 1, []any{1, 2}),
		"no key columns":  fence.Rows{Table: "report"}.Update(t.Context(), nil, 1, nil),
		"no table":        fence.Rows{Key: []string{"id"}}.Update(t.Context(), nil, 1, []any{1}),
		"no scope":        fence.Tokens{}.Raise(t.Context(), nil, "", 1),
		"a scope, no one": fence.Tokens{}.Raise(t.Context(), nil, "x", 0),
	} {
		if !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
