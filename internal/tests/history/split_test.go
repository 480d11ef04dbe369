package history

import (
	"strings"
	"testing"
)

// byPart returns an add that one of two parts has answered: value and version mean nothing.
func byPart(value int64) CounterOutput {
	return CounterOutput{Applied: true, Value: value, Version: splitVersion | 3, Parts: 2}
}

// sum is a Get of two parts.
func sum(value int64) CounterOutput {
	return CounterOutput{Value: value, Version: splitVersion | 7, Parts: 2}
}

// ofPart returns what the whole says later of an add that a part has done, in a replay.
func ofPart(value, age, current int64) CounterOutput {
	return CounterOutput{Applied: true, Value: value, Version: splitVersion | 3, Current: current, Replay: Replay{true, age}}
}

// ofWhole returns what a part says later of an add that the whole had done.
func ofWhole(value int64, version uint64, age int64) CounterOutput {
	return CounterOutput{Applied: true, Value: value, Version: version, Current: value, Parts: 2, Replay: Replay{true, age}}
}

// A counter that was first split at 10.
func TestSplitCounter(t *testing.T) {
	two := done(0, 1, add(2), applied(2, 5))
	histories{
		"adds of parts, then whole":                {true, []Call{two, done(10, 12, add(3), byPart(5)), done(11, 13, add(4), byPart(6)), done(20, 21, get, is(9, 8))}},
		"an add was lost":                          {false, []Call{two, done(10, 12, add(3), byPart(5)), done(11, 13, add(4), byPart(6)), done(20, 21, get, is(6, 8))}},
		"an add counted twice":                     {false, []Call{two, done(10, 12, add(3), byPart(5)), done(20, 21, get, is(8, 8))}},
		"an add of before was lost":                {false, []Call{two, done(10, 12, add(3), byPart(5)), done(20, 21, get, is(3, 8))}},
		"values of parts mean nothing":             {true, []Call{two, done(10, 12, add(3), byPart(-77)), done(20, 21, add(1), applied(6, 8))}},
		"but that it was applied":                  {false, []Call{two, done(10, 12, add(3), CounterOutput{Version: splitVersion, Parts: 2})}},
		"exact before the first split":             {false, []Call{two, done(3, 4, add(3), applied(6, 8))}},
		"exact when whole again":                   {false, []Call{two, done(10, 12, add(3), byPart(5)), done(20, 21, add(1), applied(7, 8))}},
		"a new version, of nothing":                {true, []Call{two, done(10, 12, get, is(2, 9))}},
		"but not before":                           {false, []Call{two, done(5, 6, get, is(2, 9))}},
		"an older version":                         {false, []Call{two, done(10, 12, get, is(2, 4))}},
		"versions rise after a merge":              {false, []Call{two, done(10, 12, add(3), byPart(5)), done(20, 21, get, is(5, 5))}},
		"nothing has no version":                   {false, []Call{done(10, 12, get, is(0, 9))}},
		"a version that a compare-and-set may use": {false, []Call{two, done(10, 12, get, CounterOutput{Value: 2, Version: 5, Parts: 2})}},
		"a compare-and-set by a part's version":    {false, []Call{two, done(10, 12, add(3), byPart(5)), done(20, 21, compareAndSet(1, splitVersion|3), applied(1, 9))}},
		"it is refused":                            {true, []Call{two, done(10, 12, add(3), byPart(5)), done(20, 21, compareAndSet(1, splitVersion|3), is(5, 9))}},
		"a compare-and-set across a merge":         {true, []Call{two, done(10, 12, compareAndSet(1, 5), is(2, 9)), done(13, 14, compareAndSet(1, 9), applied(1, 10))}},
		"… that was lost, or came late":            {true, []Call{two, lost(10, compareAndSet(1, 5)), done(20, 21, get, is(2, 9))}},
		"a part decides a bounded add":             {false, []Call{two, done(10, 12, upTo(1, 9), byPart(3))}},
		"a part resets":                            {false, []Call{two, done(10, 12, reset, CounterOutput{Value: 2, Version: splitVersion, Parts: 2})}},
		"a lost add, done once":                    {true, []Call{two, lost(10, add(3)), done(15, 16, add(1), byPart(1)), done(20, 21, get, is(6, 8))}},
		"a lost add, done twice":                   {false, []Call{two, lost(10, add(3)), done(15, 16, add(1), byPart(1)), done(20, 21, get, is(9, 8))}},
	}.check(t, Counter().Split(Splits{"x": 10}))
}

// A Get of parts is not of one moment, but has all that was acknowledged before, and
// nothing that began after it.
func TestSumOfParts(t *testing.T) {
	two, three := done(0, 1, add(2), applied(2, 5)), done(10, 12, add(3), byPart(5))
	histories{
		"of what there is":             {true, []Call{two, three, done(20, 21, get, sum(5))}},
		"less than was acknowledged":   {false, []Call{two, three, done(20, 21, get, sum(4))}},
		"more than there ever was":     {false, []Call{two, three, done(20, 21, get, sum(6)), done(22, 23, add(1), byPart(6))}},
		"with one of two at the time":  {true, []Call{two, done(20, 30, add(3), byPart(5)), done(20, 30, add(8), byPart(5)), done(22, 28, get, sum(10))}},
		"more than all of them, twice": {false, []Call{two, done(20, 30, add(3), byPart(5)), done(20, 30, add(8), byPart(5)), done(22, 28, get, sum(25))}},
		"of no moment": {true, []Call{two, // the second add was done first, the third is not in
			done(20, 30, add(-2), byPart(0)), done(20, 24, add(8), byPart(8)), done(25, 30, add(4), byPart(5)), done(22, 28, get, sum(12))}},
		"an add that was lost, or not":  {true, []Call{two, lost(15, add(4)), done(20, 21, get, sum(6)), done(22, 23, get, sum(6))}},
		"a reset during the call":       {true, []Call{two, done(20, 25, reset, is(2, 9)), done(21, 30, get, sum(3)), done(26, 29, add(3), byPart(3))}},
		"exact gets are not of parts":   {false, []Call{two, done(20, 30, add(3), byPart(5)), done(20, 30, add(8), byPart(5)), done(22, 28, get, is(3, 9))}},
		"the whole after less than all": {false, []Call{two, three, done(20, 21, get, sum(5)), done(30, 31, get, is(2, 9))}},
	}.check(t, Counter().Split(Splits{"x": 10}))
}

// A retry finds the first result, wherever it went.
func TestRetriesAcrossSplits(t *testing.T) {
	two := done(0, 1, add(2), applied(2, 5))
	again := func(o CounterOutput, age int64) CounterOutput {
		o.Replay = Replay{true, age}
		return o
	}
	for what, h := range map[string]struct {
		calls []Call
		says  string // "" = legal
	}{
		"by a part, then by the whole": {calls: []Call{two, as("r", lost(10, add(3))), as("r", done(30, 31, add(3), ofPart(-9, 18, 5))), done(40, 41, get, is(5, 9))}},
		"… and counted twice":          {says: "no order", calls: []Call{two, as("r", lost(10, add(3))), as("r", done(30, 31, add(3), ofPart(-9, 18, 5))), done(40, 41, get, is(8, 9))}},
		"… and not at all":             {says: "no order", calls: []Call{two, as("r", lost(10, add(3))), as("r", done(30, 31, add(3), ofPart(-9, 18, 2))), done(40, 41, get, is(2, 9))}},
		"what it is now is exact":      {says: "no order", calls: []Call{two, as("r", lost(10, add(3))), as("r", done(30, 31, add(3), ofPart(5, 18, 6)))}},
		"by the whole, then by a part": {calls: []Call{as("r", done(0, 1, add(2), applied(2, 5))), as("r", done(20, 21, add(2), again(byPart(40), 20))), done(30, 31, get, is(2, 9))}},
		"… and by the whole again": {calls: []Call{as("r", lost(0, add(2))), as("r", done(20, 21, add(2), again(byPart(40), 20))),
			as("r", done(30, 31, add(2), CounterOutput{Applied: true, Value: 2, Version: 5, Current: 2, Replay: Replay{true, 30}}))}},
		"… which tells another value": {says: "no order", calls: []Call{as("r", lost(0, add(2))), as("r", done(20, 21, add(2), again(byPart(40), 20))),
			as("r", done(30, 31, add(2), CounterOutput{Applied: true, Value: 4, Version: 5, Current: 2, Replay: Replay{true, 30}}))}},
		"by the whole, as a part tells":   {calls: []Call{as("r", lost(0, add(2))), as("r", done(20, 21, add(2), ofWhole(2, 5, 20))), done(30, 31, get, is(2, 9))}},
		"… to whom it was told before":    {calls: []Call{as("r", done(0, 1, add(2), applied(2, 5))), as("r", done(20, 21, add(2), ofWhole(2, 5, 20))), done(30, 31, get, is(2, 9))}},
		"… which tells it wrong":          {says: "no order", calls: []Call{as("r", lost(0, add(2))), as("r", done(20, 21, add(2), ofWhole(4, 5, 20))), done(30, 31, get, is(2, 9))}},
		"… or another than before":        {says: "two results", calls: []Call{as("r", done(0, 1, add(2), applied(2, 5))), as("r", done(20, 21, add(2), ofWhole(2, 6, 20)))}},
		"what a part did is told exactly": {says: "two results", calls: []Call{two, as("r", done(10, 12, add(3), byPart(5))), as("r", done(30, 31, add(3), CounterOutput{Applied: true, Value: 5, Version: 8, Current: 5, Replay: Replay{true, 19}}))}},
		"it acted in two parts":           {says: "acted twice", calls: []Call{as("r", done(10, 12, add(3), byPart(5))), as("r", done(30, 31, add(3), byPart(5)))}},
	} {
		err := Check(Counter().Split(Splits{"x": 5}), h.calls, 0)
		if (err == nil) != (h.says == "") || err != nil && !strings.Contains(err.Error(), h.says) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// That an object is split shows also when nobody has ordered it.
func TestSplitByItself(t *testing.T) {
	calls := []Call{done(0, 1, add(2), applied(2, 5)), done(10, 12, add(3), byPart(5)), done(20, 21, get, is(5, 9)), done(30, 31, get, is(5, 11))}
	if err := Check(Counter(), calls, 0); err != nil {
		t.Error(err)
	}
	if err := Check(Counter(), calls[2:], 0); err == nil {
		t.Error("the version of a whole counter has changed by itself")
	}
}

// The bucket of TestBucket, which was first split at 10.
func TestSplitBucket(t *testing.T) {
	yes, no := BucketOutput{Allowed: true, Bare: true}, BucketOutput{Bare: true}
	partly := func(o BucketOutput) BucketOutput { o.Parts = 2; return o }
	left := func(o BucketOutput, remaining uint64) BucketOutput {
		o.Parts, o.Bare, o.Remaining, o.ResetAfter = 2, false, remaining, 12345 // that of the part
		return o
	}
	half := done(0, 1, check(1), yes)
	all := []Call{half, done(10, 11, check(1), partly(yes)), done(12, 13, check(1), partly(yes))}
	with := func(more ...Call) []Call { return append(all[:len(all):len(all)], more...) }
	histories{
		"parts admit the burst":           {true, all},
		"and no more":                     {false, with(done(14, 15, check(1), partly(yes)))},
		"nor the whole after a merge":     {false, with(done(20, 21, check(1), yes))},
		"one comes back":                  {true, with(done(100, 101, check(1), partly(yes)), done(103, 104, check(1), partly(no)))},
		"not two":                         {false, with(done(100, 101, check(1), partly(yes)), done(110, 111, check(1), partly(yes)))},
		"nor sooner":                      {false, with(done(90, 99, check(1), partly(yes)))},
		"a part refuses early":            {true, []Call{half, done(10, 11, check(1), partly(no)), done(20, 21, check(2), yes)}},
		"the whole does, after a split":   {true, []Call{half, done(10, 11, check(1), partly(no)), done(20, 21, check(1), no)}},
		"but not before one":              {false, []Call{half, done(5, 6, check(1), no)}},
		"a peek that is allowed":          {false, with(done(14, 15, BucketInput{Cost: 1, Peek: true}, partly(yes)))},
		"a part has left what there is":   {true, []Call{half, done(10, 11, check(1), left(yes, 1))}},
		"and no more than that":           {false, []Call{half, done(10, 11, check(1), left(yes, 2))}},
		"also when it refuses":            {false, []Call{half, done(10, 11, check(3), left(no, 3))}},
		"the whole says what is left":     {true, []Call{half, done(10, 11, check(1), partly(yes)), done(20, 20, check(1), denied(0, 80, 280)), done(100, 101, check(1), yes)}},
		"which is no more than there is":  {false, []Call{half, done(10, 11, check(1), partly(yes)), done(20, 20, BucketInput{Cost: 1, Peek: true}, allowed(2, 80))}},
		"tokens that are gone stay so":    {false, []Call{half, done(20, 20, check(1), denied(0, 80, 280)), done(30, 31, check(1), yes)}},
		"also when it is split again":     {false, []Call{half, done(20, 20, check(1), denied(0, 80, 280)), done(30, 31, check(1), partly(yes))}},
		"figures of the whole are of one": {false, []Call{half, done(20, 20, BucketInput{Cost: 1, Peek: true}, allowed(1, 80))}},
		"less than empty":                 {true, []Call{half, done(20, 20, check(1), denied(0, 150, 350)), done(90, 90, BucketInput{Cost: 1, Peek: true}, denied(0, 80, 280))}},
		"but not before a split":          {false, []Call{half, done(5, 5, check(1), denied(0, 150, 350))}},
		"nor when it is allowed":          {false, []Call{half, done(20, 20, check(1), allowed(0, 350))}},
		"nor by two figures":              {false, []Call{half, done(20, 20, check(1), denied(0, 50, 350))}},
		"a refusal in vain":               {false, []Call{half, done(5, 6, check(1), yes), done(7, 8, check(1), denied(1, 20, 50))}},
		"a lost check is none, or one":    {true, []Call{half, lost(10, check(2)), done(12, 13, check(2), partly(yes))}},
		"a refund":                        {true, with(done(14, 15, BucketRefund{2}, partly(yes)), done(16, 17, check(2), partly(yes)), done(18, 19, check(1), partly(no)))},
		"of less than is taken":           {false, with(done(14, 15, BucketRefund{1}, partly(yes)), done(16, 17, check(2), partly(yes)))},
		"a retry of what a part admitted": {true, []Call{half, as("r", lost(10, check(2))),
			as("r", done(20, 20, check(2), BucketOutput{Allowed: true, Remaining: 0, ResetAfter: 280, Replay: Replay{true, 8}}))}},
		"… and then one too many": {false, []Call{half, as("r", lost(10, check(2))),
			as("r", done(20, 20, check(2), BucketOutput{Allowed: true, Remaining: 0, ResetAfter: 280, Replay: Replay{true, 8}})), done(21, 22, check(1), yes)}},
	}.check(t, Bucket(BucketParams{Limit: 1, Period: 100, Burst: 3}).Split(Splits{"x": 10}))
}

// Tokens may come back late in all, also after a split: what the whole tells may be that
// of a copy which is late, and one that is not may take over. Never is one early.
func TestLateSplitBucket(t *testing.T) {
	yes, no := BucketOutput{Allowed: true, Bare: true}, BucketOutput{Bare: true}
	full := done(0, 1, check(3), yes)
	histories{
		"late, and then not":   {true, []Call{full, done(50, 51, check(1), denied(0, 80, 280)), done(101, 102, check(1), yes)}},
		"late by more than so": {false, []Call{full, done(50, 51, check(1), denied(0, 180, 380)), done(101, 102, check(1), yes)}},
		"never early":          {false, []Call{full, done(90, 99, check(1), yes)}},
		"late for a split":     {true, []Call{full, done(400, 401, check(1), no)}},
	}.check(t, Bucket(BucketParams{Limit: 1, Period: 100, Burst: 3, Delay: 50}).Split(Splits{"x": 10}))
}

// A window is never split.
func TestSplitWindow(t *testing.T) {
	histories{
		"whole":    {true, []Call{done(0, 1, check(1), BucketOutput{Allowed: true, Bare: true})}},
		"in parts": {false, []Call{done(0, 1, check(1), BucketOutput{Allowed: true, Bare: true, Parts: 2})}},
	}.check(t, Window(WindowParams{Limit: 3, Period: 100}).Split(Splits{"x": 0}))
}
