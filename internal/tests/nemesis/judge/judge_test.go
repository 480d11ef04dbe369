package judge

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/keystead/keystead/internal/tests/history"
	"github.com/keystead/keystead/internal/tests/kinds"
	"github.com/keystead/keystead/internal/tests/nemesis/fault"
	"github.com/keystead/keystead/internal/tests/nemesis/workload"
)

const (
	ms     = int64(time.Millisecond)
	second = int64(time.Second)
)

func call(object string, from, to int64, in, out any) history.Call {
	return history.Call{Object: object, Input: in, Start: from, End: to, Output: out}
}

func add(from int64, delta, value int64, version uint64) history.Call {
	return call("c", from, from+ms, history.CounterInput{Op: history.CounterAdd, Delta: delta},
		history.CounterOutput{Applied: true, Value: value, Version: version})
}

func get(from int64, value int64, version uint64) history.Call {
	return call("c", from, from+ms, history.CounterInput{Op: history.CounterGet}, history.CounterOutput{Value: value, Version: version})
}

func check(from int64, cost uint64, allowed bool) history.Call {
	return call("b", from, from+ms, history.BucketInput{Cost: cost}, history.BucketOutput{Allowed: allowed, Bare: true})
}

func acquire(from int64, holder string, token uint64) history.Call {
	return call("l", from, from+ms, history.LockInput{Op: history.LockAcquire, Holder: holder, TTL: second},
		history.LockOutput{OK: true, Token: token, TTL: second})
}

func release(from int64, token uint64) history.Call {
	return call("l", from, from+ms, history.LockInput{Op: history.LockRelease, Token: token}, history.LockOutput{OK: true})
}

// recordOf is a record of calls on objects of a kind.
func recordOf(k kinds.Kind, calls ...history.Call) workload.Record {
	return workload.Record{Record: kinds.Record{Calls: map[string][]history.Call{k.Name: calls}}}
}

// by is a call that was answered under an epoch.
func by(epoch uint64, c history.Call) history.Call {
	c.Owner, c.Epoch = "n1", epoch
	return c
}

// killed is a fault that came at 2 s, healed at 4 s and was over at 5 s. The keys
// were not harmed.
func killed(untouched ...string) fault.Event {
	return fault.Event{Fault: fault.Fault{Kind: fault.Kill, Victims: 1}, Victims: []string{"n2"}, From: 2 * second, Healed: 4 * second, Settled: 5 * second, Untouched: untouched}
}

// steady are answers at a steady pace between two moments, but none that ends
// within the gap.
func steady(from, to, gapFrom, gapTo int64) (all []workload.Span) {
	for at := from; at < to; at += 50 * ms {
		if end := at + ms; end <= gapFrom || end >= gapTo {
			all = append(all, workload.Span{Start: at, End: end})
		}
	}
	return all
}

// A history is judged by its worst finding. Buckets get 2 a second and hold 20;
// windows admit 12 within 4 s.
func TestJudge(t *testing.T) {
	served := func(from, to int64) map[string][]workload.Span {
		return map[string][]workload.Span{"c": steady(0, 20*second, from, to)}
	}
	record := func(r workload.Record) *workload.Record {
		r.Until = 20 * second
		if r.Served == nil {
			r.Served = served(0, 0)
		}
		return &r
	}
	w := func(holder string, token uint64, at, until int64, accepted bool) kinds.Write {
		return kinds.Write{Holder: holder, Token: token, At: at, Until: until, Accepted: accepted}
	}
	loss := recordOf(kinds.Counter, add(0, 2, 2, 5), get(second, 0, 0))
	isC := func(key string) bool { return key == "c" }
	once := []fault.Event{killed()}
	split := func(object string, at int64) []fault.Order {
		return []fault.Order{{Kind: fault.Merge, Object: object}, {Kind: fault.Split, Object: object, Parts: 2, From: at}}
	}
	for what, tc := range map[string]struct {
		c      Case
		noLoss bool
		want   Verdict
	}{
		"nothing":                    {c: Case{Record: record(workload.Record{})}, want: OK},
		"adds":                       {c: Case{Record: record(recordOf(kinds.Counter, add(0, 2, 2, 5), add(second, 3, 5, 9)))}, want: OK},
		"a lost add":                 {c: Case{Record: record(recordOf(kinds.Counter, add(0, 2, 2, 5), add(second, 3, 3, 9)))}, want: Illegal},
		"a bucket refilled":          {c: Case{Record: record(recordOf(kinds.Bucket, check(0, 20, true), check(second/2, 20, true))), Events: once}, want: Illegal},
		"one a bit early":            {c: Case{Record: record(recordOf(kinds.Bucket, check(0, 20, true), check(second/2-2*ms, 1, true))), Events: once}, want: Illegal},
		"one on time":                {c: Case{Record: record(recordOf(kinds.Bucket, check(0, 20, true), check(second/2+ms, 1, true)))}, want: OK},
		"one late":                   {c: Case{Record: record(recordOf(kinds.Bucket, check(0, 20, true), check(3*second, 1, false)))}, want: Illegal},
		"one late after a fault":     {c: Case{Record: record(recordOf(kinds.Bucket, check(0, 20, true), check(3*second, 1, false))), Events: once}, want: OK},
		"one late after a change":    {c: Case{Record: record(recordOf(kinds.Bucket, check(0, 20, true), check(3*second, 1, false))), Moved: true}, want: OK},
		"one too late after a fault": {c: Case{Record: record(recordOf(kinds.Bucket, check(0, 20, true), check(5*second, 1, false))), Events: once}, want: Illegal},
		"a refusal after a split":    {c: Case{Record: record(recordOf(kinds.Bucket, check(0, 20, true), check(14*second, 20, false))), Orders: split("b", 2*second)}, want: OK},
		"… of another object than that": {c: Case{Record: record(recordOf(kinds.Bucket, check(0, 20, true), check(14*second, 20, false))),
			Orders: split("x", 2*second)}, want: Illegal},
		"… before it":                  {c: Case{Record: record(recordOf(kinds.Bucket, check(0, 20, true), check(14*second, 20, false))), Orders: split("b", 15*second)}, want: Illegal},
		"too much after a split":       {c: Case{Record: record(recordOf(kinds.Bucket, check(0, 20, true), check(10*second, 20, true), check(11*second, 4, true))), Orders: split("b", 2*second)}, want: Illegal},
		"a version after a split":      {c: Case{Record: record(recordOf(kinds.Counter, add(0, 2, 2, 5), get(3*second, 2, 9))), Orders: split("c", 2*second)}, want: OK},
		"a lost add after a split":     {c: Case{Record: record(recordOf(kinds.Counter, add(0, 2, 2, 5), get(3*second, 0, 9))), Orders: split("c", 2*second)}, want: Illegal},
		"a part that was declared":     {c: Case{Record: record(loss), Orders: split("c", 0), LostRows: 1}, want: Declared},
		"one of an object not split":   {c: Case{Record: record(loss), Orders: split("x", 0), LostRows: 1}, want: Illegal},
		"no part was":                  {c: Case{Record: record(loss), Orders: split("c", 0)}, want: Illegal},
		"pauses with a part of it":     {c: Case{Record: record(workload.Record{Served: served(1500*ms, 6*second)}), Orders: split("c", second), Events: []fault.Event{func() fault.Event { e := killed("c"); e.Settled = 7 * second; return e }()}}, want: OK},
		"pauses without one, as split": {c: Case{Record: record(workload.Record{Served: served(2*second, 6*second)}), Orders: split("c", second)}, want: Slow},
		"a window in turn":             {c: Case{Record: record(recordOf(kinds.Window, check(0, 12, true), check(4*second+2*ms, 12, true))), Events: once}, want: OK},
		"one that admits too much":     {c: Case{Record: record(recordOf(kinds.Window, check(0, 12, true), check(2*second, 1, true))), Events: once}, want: Illegal},
		"one that comes back late":     {c: Case{Record: record(recordOf(kinds.Window, check(0, 12, true), check(6*second, 1, false))), Events: once}, want: OK},
		"… for no reason":              {c: Case{Record: record(recordOf(kinds.Window, check(0, 12, true), check(6*second, 1, false)))}, want: Illegal},
		"epochs rise":                  {c: Case{Record: record(recordOf(kinds.Counter, by(7, add(0, 2, 2, 5)), by(7, get(second, 2, 5)), by(8, get(2*second, 2, 5))))}, want: OK},
		"an epoch goes back":           {c: Case{Record: record(recordOf(kinds.Counter, by(7, add(0, 2, 2, 5)), by(6, get(second, 2, 5))))}, want: Illegal},
		"locked in turn":               {c: Case{Record: record(recordOf(kinds.Lock, acquire(0, "a", 1), release(10*ms, 1), acquire(20*ms, "b", 2)))}, want: OK},
		"granted twice":                {c: Case{Record: record(recordOf(kinds.Lock, acquire(0, "a", 1), acquire(20*ms, "b", 2))), Events: once}, want: Illegal},
		"a token goes back":            {c: Case{Record: record(recordOf(kinds.Lock, acquire(0, "a", 5), release(10*ms, 5), acquire(20*ms, "b", 4)))}, want: Illegal},
		"a stale write taken":          {c: Case{Record: record(workload.Record{Record: kinds.Record{Writes: map[string][]kinds.Write{"l": {w("b", 6, 10, 99, true), w("a", 5, 20, 15, true)}}}})}, want: Illegal},
		"an odd answer":                {c: Case{Record: record(workload.Record{Unexpected: []string{"INVALID: key"}})}, want: Illegal},

		"loss":                    {c: Case{Record: record(loss)}, want: Illegal},
		"declared loss":           {c: Case{Record: record(loss), Lost: isC, LostRows: 1}, want: Declared},
		"… of another object":     {c: Case{Record: record(loss), Lost: func(key string) bool { return key == "x" }, LostRows: 1}, want: Illegal},
		"… that should not be":    {c: Case{Record: record(workload.Record{}), LostRows: 1}, noLoss: true, want: Lost},
		"… and seen":              {c: Case{Record: record(loss), Lost: isC, LostRows: 1}, noLoss: true, want: Illegal},
		"… of nothing that is":    {c: Case{Record: record(workload.Record{}), LostRows: 1}, want: Declared},
		"trouble":                 {c: Case{Record: record(workload.Record{}), Trouble: []string{"no node runs"}}, want: Trouble},
		"a fault's trouble":       {c: Case{Record: record(workload.Record{}), Events: []fault.Event{{Trouble: "not recovered"}}}, want: Trouble},
		"served after the fault":  {c: Case{Record: record(workload.Record{Served: served(2*second, 11*second)}), Events: once}, want: OK},
		"not served after it":     {c: Case{Record: record(workload.Record{Served: served(2*second, 13*second)}), Events: once}, want: Unserved},
		"never served again":      {c: Case{Record: record(workload.Record{Served: served(2*second, 30*second)}), Events: once}, want: Unserved},
		"pauses with its owner":   {c: Case{Record: record(workload.Record{Served: served(2*second, 6*second)}), Events: once}, want: OK},
		"pauses without a reason": {c: Case{Record: record(workload.Record{Served: served(1500*ms, 6*second)}), Events: []fault.Event{killed("c")}}, want: OK}, // 3 s of the 4.5 s were within the fault
		"pauses for too long":     {c: Case{Record: record(workload.Record{Served: served(1500*ms, 6*second)}), Events: []fault.Event{func() fault.Event { e := killed("c"); e.Settled = 7 * second; return e }()}}, want: Slow},
		"pauses without a fault":  {c: Case{Record: record(workload.Record{Served: served(2*second, 6*second)})}, want: Slow},
		"a skipped fault is none": {c: Case{Record: record(recordOf(kinds.Bucket, check(0, 20, true), check(3*second, 1, false))), Events: []fault.Event{{Skipped: "no"}}}, want: Illegal},
	} {
		t.Run(what, func(t *testing.T) {
			if r := Judge(tc.c, Limits{NoLoss: tc.noLoss}); r.Verdict != tc.want || r.Verdict.Fails() != (len(r.Findings) > 0) {
				t.Errorf("%s, not %s: %+v", r.Verdict, tc.want, r.Findings)
			}
		})
	}
}

// What cannot be decided in time is no proof of anything.
func TestUndecided(t *testing.T) {
	var calls []history.Call
	// Concurrent adds of different amounts, of which a read tells a sum that none
	// of their orders gives.
	for i := range int64(24) {
		c := call("c", 0, second, history.CounterInput{Op: history.CounterAdd, Delta: 1 << i}, nil)
		c.End = history.Never
		calls = append(calls, c)
	}
	rec := recordOf(kinds.Counter, append(calls, get(10*ms, -1, 77))...)
	rec.Until = second
	if r := Judge(Case{Record: &rec}, Limits{Check: 50 * time.Millisecond}); r.Verdict != Undecided || !r.Verdict.Fails() {
		t.Errorf("%s", r.Verdict)
	}
}

func TestKeep(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "history-1")
	rec := recordOf(kinds.Counter, add(0, 2, 2, 5), add(second, 3, 3, 9))
	rec.Until = second
	c := Case{Record: &rec, Events: []fault.Event{killed()}}
	if err := Keep(dir, c, Judge(c, Limits{})); err != nil {
		t.Fatal(err)
	}
	for name, has := range map[string]string{
		"result.json": `"verdict": "illegal"`, "events.json": `"kind": "kill"`, "calls.json": `"Delta": 3`,
		"c.txt": "no order of the operations on c", "c.html": "<html",
	} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !strings.Contains(string(data), has) {
			t.Errorf("%s: %v: %.200s", name, err, data)
		}
	}
	c.Orders = []fault.Order{{Kind: fault.Split, Object: "c"}}
	if err := Keep(filepath.Join(dir, "split"), c, Judge(c, Limits{})); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "split", "orders.json")); err != nil || !strings.Contains(string(data), `"kind": "split"`) {
		t.Errorf("%v: %.200s", err, data)
	}
	if names, _ := filepath.Glob(filepath.Join(dir, "*.*")); !slices.Contains(names, filepath.Join(dir, "c.html")) || len(names) != 5 {
		t.Errorf("%v", names)
	}
}
