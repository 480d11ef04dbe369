package postgres

import (
	"database/sql"
	"errors"
	"testing"

	"github.com/keystead/keystead/client/fence"
)

// The statement, and what is left when a part of it is left out.
const (
	right      = "UPDATE report SET body = $2, last_token = $1 WHERE id = 1 AND last_token <= $1"
	less       = "UPDATE report SET body = $2, last_token = $1 WHERE id = 1 AND last_token < $1"
	withoutSet = "UPDATE report SET body = $2 WHERE id = 1 AND last_token <= $1"
	blind      = "UPDATE report SET body = $2, last_token = $1 WHERE id = 1"
)

// wrote reports whether a statement under a token changed the row.
func wrote(t *testing.T, db runner, statement string, token int64, body string) bool {
	t.Helper()
	return run(t, db, statement, token, body) == 1
}

// With < in place of <=, a holder is refused its own second write, and would take itself for
// late.
func TestLessAloneRefusesTheHolder(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB) {
		run(t, db, "INSERT INTO report VALUES (1)")
		if !wrote(t, db, less, 34, "first") {
			t.Fatal("the first write is refused")
		}
		if wrote(t, db, less, 34, "second") {
			t.Error("< lets a holder write twice: the page says that it does not")
		}
		if !wrote(t, db, right, 34, "second") || text(t, db, "SELECT body FROM report") != "second" {
			t.Error("<= refuses the holder's second write")
		}
	})
}

// Without the SET the row does not learn of the token, and a late holder passes.
func TestWithoutTheSetALateHolderPasses(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB) {
		run(t, db, "INSERT INTO report VALUES (1)")
		if !wrote(t, db, withoutSet, 34, "new") {
			t.Fatal("the write is refused")
		}
		if !wrote(t, db, withoutSet, 33, "old") {
			t.Error("without the SET a late holder is refused: the page says that it is not")
		}
		run(t, db, "UPDATE report SET body = ''")
		if !wrote(t, db, right, 34, "new") || wrote(t, db, right, 33, "old") || text(t, db, "SELECT body FROM report") != "new" {
			t.Error("with the SET a late holder passes")
		}
	})
}

// A SELECT that compares, and an UPDATE that does not: the next holder writes in between.
func TestAskingFirstIsNoFence(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB) {
		run(t, db, "INSERT INTO report VALUES (1)")
		late := begin(t, db, sql.LevelReadCommitted)
		if text(t, late, "SELECT last_token <= 33 FROM report WHERE id = 1") != "true" {
			t.Fatal("33 is not the greatest")
		}
		if !wrote(t, db, right, 34, "new") { // here it is paused
			t.Fatal("34 is refused")
		}
		if !wrote(t, late, blind, 33, "old") {
			t.Fatal("the blind write wrote nothing")
		}
		commit(t, late)
		if text(t, db, "SELECT body FROM report") != "old" {
			t.Error("asking first kept the late holder out: the page says that it does not")
		}
	})
}

// One statement that raises and reads sees what was there when it began, although it has waited
// for another holder since. A transaction that raises first sees what that has written.
func TestOneStatementReadsWhatWas(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB) {
		tokens := fence.Tokens{}
		run(t, db, tokens.CreateSQL())
		count := "WITH passed AS (" + tokens.RaiseSQL() + " RETURNING 1) SELECT (SELECT count(*) FROM entry)::text FROM passed"
		for i, want := range []string{"0", "2"} {
			before, token := begin(t, db, sql.LevelReadCommitted), 10*uint64(i+1)
			if err := tokens.Raise(t.Context(), before, "a", token); err != nil {
				t.Fatal(err)
			}
			run(t, before, "INSERT INTO entry (token) VALUES ($1)", int64(token))
			next, got := begin(t, db, sql.LevelReadCommitted), make(chan string, 1)
			go func() {
				defer close(got)
				if want == "0" { // in one statement
					got <- text(t, next, count, "a", int64(token+1))
					return
				}
				if err := tokens.Raise(t.Context(), next, "a", token+1); err != nil {
					t.Error(err)
				}
				got <- text(t, next, "SELECT count(*)::text FROM entry")
			}()
			blocked(t, db, pidOf(t, before))
			commit(t, before)
			if n := <-got; n != want {
				t.Errorf("%d: %s entries are seen, and not %s: the page says otherwise", i, n, want)
			}
			commit(t, next)
		}
	})
}

// A row that is deleted takes its token along, and a late holder may make it again. A table
// of tokens keeps it.
func TestDeletedRowsForget(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB) {
		rows, tokens := fence.Rows{Table: "report", Key: []string{"id"}}, fence.Tokens{}
		run(t, db, tokens.CreateSQL())
		write := func(token uint64) error {
			return rows.Upsert(t.Context(), db, token, []any{1}, fence.Set("body", "x"))
		}
		if err := write(34); err != nil {
			t.Fatal(err)
		}
		run(t, db, "DELETE FROM report WHERE id = 1 AND last_token <= 34")
		if err := write(33); err != nil {
			t.Errorf("the row remembers: %v, and the page says that it does not", err)
		}
		under := func(token uint64, statement string) error {
			return tokens.Do(t.Context(), db, "report 1", token, func(tx *sql.Tx) error {
				_, err := tx.ExecContext(t.Context(), statement)
				return err
			})
		}
		if err := under(34, "DELETE FROM report WHERE id = 1"); err != nil {
			t.Fatal(err)
		}
		if err := under(33, "INSERT INTO report VALUES (1)"); !errors.Is(err, fence.ErrStale) || text(t, db, "SELECT count(*)::text FROM report") != "0" {
			t.Errorf("a late holder has made it again: %v", err)
		}
	})
}
