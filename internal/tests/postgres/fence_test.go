package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/keystead/keystead/client/fence"
)

var reports = fence.Rows{Table: "report", Key: []string{"id"}}

func stale(t *testing.T, err error, token, greatest uint64) {
	t.Helper()
	if e := (*fence.StaleError)(nil); !errors.As(err, &e) || !errors.Is(err, fence.ErrStale) || e.Token != token || e.Greatest != greatest {
		t.Errorf("%v, and not stale: %d, below %d", err, token, greatest)
	}
}

// Rows, at each level of isolation.
func TestRows(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB) {
		for i, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
			id := int64(i)
			write := func(f func(context.Context, fence.DB, uint64, []any, ...fence.Column) error, token uint64, body string) error {
				tx := begin(t, db, level)
				err := f(t.Context(), tx, token, []any{id}, fence.Set("body", body))
				commit(t, tx)
				return err
			}
			if err := write(reports.Update, 33, "none"); !errors.Is(err, fence.ErrNoRow) {
				t.Errorf("%s: %v", level, err)
			}
			for _, w := range []struct {
				f     func(context.Context, fence.DB, uint64, []any, ...fence.Column) error
				token uint64
				stale bool
			}{
				{reports.Upsert, 33, false}, {reports.Update, 33, false}, {reports.Update, 34, false}, {reports.Update, 33, true},
				{reports.Upsert, 33, true}, {reports.Upsert, 34, false}, {reports.Update, 1<<63 - 1, false}, {reports.Update, 35, true},
			} {
				was := ""
				if w.stale {
					was = text(t, db, "SELECT body || last_token FROM report WHERE id = $1", id)
				}
				body := fmt.Sprint("by ", w.token)
				switch err := write(w.f, w.token, body); {
				case w.stale:
					if !errors.Is(err, fence.ErrStale) || text(t, db, "SELECT body || last_token FROM report WHERE id = $1", id) != was {
						t.Errorf("%s: %d: %v", level, w.token, err)
					}
				case err != nil, text(t, db, "SELECT body || last_token FROM report WHERE id = $1", id) != body+fmt.Sprint(w.token):
					t.Errorf("%s: %d: %v", level, w.token, err)
				}
			}
		}
		stale(t, reports.Update(t.Context(), db, 35, []any{0}), 35, 1<<63-1)
	})
}

// Names are quoted, keys may have several columns, and the column of the token another name.
func TestNames(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB) {
		run(t, db, `CREATE TABLE "Odd ""one" ("select" int, "a.b" int, "x;--" text, "my token" bigint NOT NULL DEFAULT 0, UNIQUE ("select", "a.b"))`)
		rows := fence.Rows{Table: schema(t) + `.Odd "one`, Key: []string{"select", "a.b"}, Token: "my token"}
		for _, f := range []func(context.Context, fence.DB, uint64, []any, ...fence.Column) error{rows.Upsert, rows.Update} {
			if err := f(t.Context(), db, 34, []any{1, 2}, fence.Set("x;--", "body")); err != nil {
				t.Fatal(err)
			}
		}
		stale(t, rows.Upsert(t.Context(), db, 33, []any{1, 2}, fence.Set("x;--", "late")), 33, 34)
		if got := text(t, db, `SELECT "x;--" FROM "Odd ""one"`); got != "body" {
			t.Error(got)
		}
	})
}

// A late holder that comes while the next one's transaction is open waits for it, and is then
// judged by what it has written: after a commit it is refused, after a rollback it is not.
func TestLateBesideAnOpenTransaction(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB) {
		tokens := fence.Tokens{}
		run(t, db, tokens.CreateSQL())
		raise := func(ctx context.Context, tx *sql.Tx, token uint64) error {
			return tokens.Raise(ctx, tx, "report", token)
		}
		update := func(ctx context.Context, tx *sql.Tx, token uint64) error {
			return reports.Update(ctx, tx, token, []any{1}, fence.Set("body", "x"))
		}
		for name, write := range map[string]func(context.Context, *sql.Tx, uint64) error{"tokens": raise, "rows": update} {
			for _, commits := range []bool{false, true} {
				run(t, db, "INSERT INTO report VALUES (1) ON CONFLICT (id) DO UPDATE SET last_token = 0")
				run(t, db, "DELETE FROM keystead_fence")
				next, late := begin(t, db, sql.LevelReadCommitted), begin(t, db, sql.LevelReadCommitted)
				if err := write(t.Context(), next, 34); err != nil {
					t.Fatal(err)
				}
				done := make(chan error, 1)
				go func() { done <- write(t.Context(), late, 33) }()
				blocked(t, db, pidOf(t, next))
				if commits {
					commit(t, next)
					stale(t, <-done, 33, 34)
				} else if _ = next.Rollback(); true {
					if err := <-done; err != nil {
						t.Errorf("%s: after a rollback: %v", name, err)
					}
				}
				_ = late.Rollback()
			}
		}
	})
}

// Where a transaction sees what was there when it began, PostgreSQL ends it when the row has
// changed since. Done again, it is judged.
func TestLateInItsSnapshot(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB) {
		run(t, db, "INSERT INTO report VALUES (1)")
		for i, level := range []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelSerializable} {
			token := uint64(10 * (i + 1))
			late := begin(t, db, level)
			_ = text(t, late, "SELECT body FROM report WHERE id = 1")
			if err := reports.Update(t.Context(), db, token+1, []any{1}); err != nil {
				t.Fatal(err)
			}
			if err := reports.Update(t.Context(), late, token, []any{1}); err == nil || !strings.Contains(err.Error(), "could not serialize access") {
				t.Errorf("%s: %v", level, err)
			}
			_ = late.Rollback()
			stale(t, reports.Update(t.Context(), begin(t, db, level), token, []any{1}), token, token+1)
		}
	})
}

// What a transaction under a token does is done as one, or not at all.
func TestTokensDo(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB) {
		tokens := fence.Tokens{Table: schema(t) + ".fences"}
		run(t, db, tokens.CreateSQL())
		run(t, db, tokens.CreateSQL()) // does nothing
		do := func(token uint64, fails error) error {
			return tokens.Do(t.Context(), db, "a", token, func(tx *sql.Tx) error {
				run(t, tx, "INSERT INTO report VALUES ($1)", int64(token))
				run(t, tx, "INSERT INTO entry (token) VALUES ($1)", int64(token))
				return fails
			})
		}
		failed := errors.New("no")
		if err := errors.Join(do(33, nil), do(34, nil)); err != nil {
			t.Fatal(err)
		}
		stale(t, do(32, nil), 32, 34)
		if err := do(35, failed); !errors.Is(err, failed) {
			t.Error(err)
		}
		stale(t, do(33, nil), 33, 34) // 35 was rolled back, and its token with it
		if err := tokens.Do(t.Context(), db, "b", 1, func(*sql.Tx) error { return nil }); err != nil {
			t.Errorf("another scope: %v", err)
		}
		if got := text(t, db, "SELECT string_agg(id::text, ' ' ORDER BY id) || (SELECT ':' || count(*) FROM entry) FROM report"); got != "33 34:2" {
			t.Error(got)
		}
	})
}

// One statement that raises and inserts needs no transaction.
func TestInsertInOneStatement(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB) {
		tokens := fence.Tokens{}
		run(t, db, tokens.CreateSQL())
		insert := "WITH passed AS (" + tokens.RaiseSQL() + " RETURNING 1) INSERT INTO entry (token, text) SELECT $2, $3 FROM passed"
		for i, tc := range []struct{ token, want int64 }{{33, 1}, {33, 1}, {34, 1}, {33, 0}, {34, 1}} {
			if got := run(t, db, insert, "a", tc.token, "x"); got != tc.want {
				t.Errorf("%d: token %d: %d rows", i, tc.token, got)
			}
		}
		if got := text(t, db, "SELECT string_agg(token::text, ' ' ORDER BY n) FROM entry"); got != "33 33 34 34" {
			t.Error(got)
		}
	})
}

// A holder that is paused in its transaction keeps the next one waiting, for as long as
// idle_in_transaction_session_timeout says. Then it has done nothing.
func TestPausedInItsTransaction(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB) {
		tokens := fence.Tokens{}
		run(t, db, tokens.CreateSQL())
		paused := begin(t, db, sql.LevelReadCommitted)
		run(t, paused, "SET LOCAL idle_in_transaction_session_timeout = '300ms'")
		if err := tokens.Raise(t.Context(), paused, "report", 33); err != nil {
			t.Fatal(err)
		}
		run(t, paused, "INSERT INTO entry (token) VALUES (33)")
		if err := tokens.Do(t.Context(), db, "report", 34, func(tx *sql.Tx) error {
			run(t, tx, "INSERT INTO entry (token) VALUES (34)")
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if err := paused.Commit(); err == nil {
			t.Error("the paused one has committed")
		}
		if got := text(t, db, "SELECT string_agg(token::text, ' ' ORDER BY n) FROM entry"); got != "34" {
			t.Error(got)
		}
	})
}

// Many writers under random tokens at a time: no row ever goes back to a smaller token, and
// each write that was refused had a greater one before it.
func TestManyWriters(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB) {
		const writers, ids = 8, 3
		tokens := fence.Tokens{}
		run(t, db, tokens.CreateSQL())
		for _, statement := range []string{
			"CREATE TABLE seen (n bigserial PRIMARY KEY, id bigint, before bigint, after bigint)",
			`CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
				INSERT INTO seen (id, before, after) VALUES (NEW.id, OLD.last_token, NEW.last_token); RETURN NEW; END $$`,
			"CREATE TRIGGER see AFTER UPDATE ON report FOR EACH ROW EXECUTE FUNCTION see()",
		} {
			run(t, db, statement)
		}
		db.SetMaxOpenConns(2 * writers)
		var all sync.WaitGroup
		for w := range writers {
			all.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(w), 1))
				for i := range *rounds {
					// Tokens rise in the long run, as grants do, and late ones come all the time.
					token, id := uint64(1+i+rng.IntN(10)), int64(rng.IntN(ids))
					var err error
					if i%2 == 0 {
						err = reports.Upsert(t.Context(), db, token, []any{id}, fence.Set("body", "x"))
					} else {
						err = tokens.Do(t.Context(), db, fmt.Sprint(id), token, func(tx *sql.Tx) error {
							_, err := tx.ExecContext(t.Context(), "INSERT INTO entry (token, text) VALUES ($1, $2)", int64(token), fmt.Sprint(id))
							return err
						})
					}
					if e := (*fence.StaleError)(nil); err != nil && (!errors.As(err, &e) || e.Greatest <= token) {
						t.Errorf("writer %d, token %d: %v", w, token, err)
						return
					}
				}
			})
		}
		all.Wait()
		for what, query := range map[string]string{
			"rows":   "SELECT count(*)::text FROM seen WHERE after < before",
			"tokens": "SELECT count(*)::text FROM (SELECT token < max(token) OVER (PARTITION BY text ORDER BY n) AS fell FROM entry) e WHERE fell",
		} {
			if got := text(t, db, query); got != "0" {
				t.Errorf("%s: %s writes under a token below that of a write before", what, got)
			}
		}
		if text(t, db, "SELECT (count(*) > 0)::text FROM seen") != "true" || text(t, db, "SELECT (count(*) > 0)::text FROM entry") != "true" {
			t.Error("nothing was written")
		}
	})
}
