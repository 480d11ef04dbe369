package history

import (
	"errors"
	"strings"
	"testing"
)

// done is a call that was answered.
func done(start, end int64, in, out any) Call {
	return Call{Object: "x", Input: in, Start: start, End: end, Output: out}
}

// lost is a call that was not.
func lost(start int64, in any) Call {
	return Call{Object: "x", Input: in, Start: start, End: Never}
}

// as gives a call the id of a request.
func as(request string, c Call) Call {
	c.Request = request
	return c
}

type histories map[string]struct {
	legal bool
	calls []Call
}

func (hs histories) check(t *testing.T, m Model) {
	t.Helper()
	for what, h := range hs {
		t.Run(what, func(t *testing.T) {
			err := Check(m, h.calls, 0)
			var v *Violation
			switch {
			case h.legal && err != nil:
				t.Errorf("rejected: %v", err)
			case !h.legal && err == nil:
				t.Error("accepted")
			case !h.legal && !errors.As(err, &v):
				t.Errorf("rejected for another reason: %v", err)
			case !h.legal && !strings.Contains(err.Error(), "client 0"):
				t.Errorf("does not show the history: %v", err)
			case !h.legal && !strings.Contains(v.Stuck(), "  and then not client"):
				t.Errorf("does not show where it is wrong: %q", v.Stuck())
			}
		})
	}
}

func add(delta int64) CounterInput { return CounterInput{Op: CounterAdd, Delta: delta} }
func upTo(delta, most int64) CounterInput {
	return CounterInput{Op: CounterAdd, Delta: delta, Max: most, HasMax: true}
}
func compareAndSet(value int64, version uint64) CounterInput {
	return CounterInput{Op: CounterCompareAndSet, Value: value, Version: version}
}
func applied(value int64, version uint64) CounterOutput {
	return CounterOutput{Applied: true, Value: value, Version: version}
}
func is(value int64, version uint64) CounterOutput {
	return CounterOutput{Value: value, Version: version}
}

var (
	get   = CounterInput{Op: CounterGet}
	reset = CounterInput{Op: CounterReset}
	del   = CounterInput{Op: CounterDelete}
)

func TestCounter(t *testing.T) {
	histories{
		"nothing":         {true, nil},
		"never touched":   {true, []Call{done(0, 1, get, is(0, 0)), done(2, 3, reset, is(0, 0))}},
		"one after other": {true, []Call{done(0, 1, add(2), applied(2, 5)), done(2, 3, add(3), applied(5, 9)), done(4, 5, get, is(5, 9))}},
		"a lost update":   {false, []Call{done(0, 1, add(2), applied(2, 5)), done(2, 3, add(3), applied(3, 9))}},
		"a stale read":    {false, []Call{done(0, 1, add(2), applied(2, 5)), done(2, 3, get, is(0, 0))}},
		"a read of what comes": {false, []Call{
			done(0, 1, get, is(2, 5)), done(2, 3, add(2), applied(2, 5))}},
		"concurrent, either order": {true, []Call{done(0, 9, add(2), applied(5, 9)), done(0, 9, add(3), applied(3, 5)), done(1, 3, get, is(3, 5))}},
		"concurrent, no order":     {false, []Call{done(0, 9, add(2), applied(2, 5)), done(0, 9, add(3), applied(3, 6))}},
		"the same version twice":   {false, []Call{done(0, 1, add(2), applied(2, 5)), done(2, 3, add(2), applied(4, 5))}},
		"a version that falls":     {false, []Call{done(0, 1, add(2), applied(2, 5)), done(2, 3, add(2), applied(4, 4))}},
		"a read of another version": {false, []Call{
			done(0, 1, add(2), applied(2, 5)), done(2, 3, get, is(2, 6))}},
		"at the bound":                    {true, []Call{done(0, 1, upTo(5, 5), applied(5, 1)), done(2, 3, upTo(1, 5), is(5, 1)), done(4, 5, upTo(-1, 3), applied(4, 2))}},
		"above the bound":                 {false, []Call{done(0, 1, upTo(5, 5), applied(5, 1)), done(2, 3, upTo(1, 5), applied(6, 2))}},
		"refused within it":               {false, []Call{done(0, 1, upTo(5, 9), is(0, 0))}},
		"a refusal that adds":             {false, []Call{done(0, 1, upTo(5, 4), is(5, 1))}},
		"overflow":                        {true, []Call{done(0, 1, add(1<<62), applied(1<<62, 1)), done(2, 3, add(1<<62), is(1<<62, 1))}},
		"wrapped around":                  {false, []Call{done(0, 1, add(1<<62), applied(1<<62, 1)), done(2, 3, add(1<<62), applied(-1<<63, 2))}},
		"add of nothing":                  {true, []Call{done(0, 1, add(0), applied(0, 0)), done(2, 3, add(1), applied(1, 1)), done(4, 5, add(0), applied(1, 1))}},
		"reset":                           {true, []Call{done(0, 1, add(4), applied(4, 1)), done(2, 3, reset, is(4, 2)), done(4, 5, get, is(0, 2))}},
		"reset that did not":              {false, []Call{done(0, 1, add(4), applied(4, 1)), done(2, 3, reset, is(4, 2)), done(4, 5, get, is(4, 1))}},
		"compare-and-set":                 {true, []Call{done(0, 1, compareAndSet(4, 0), applied(4, 1)), done(2, 3, compareAndSet(7, 1), applied(7, 2)), done(4, 5, compareAndSet(8, 1), is(7, 2))}},
		"both compare-and-sets won":       {false, []Call{done(0, 9, compareAndSet(4, 0), applied(4, 1)), done(0, 9, compareAndSet(5, 0), applied(5, 2))}},
		"compare-and-set that should win": {false, []Call{done(0, 1, add(4), applied(4, 1)), done(2, 3, compareAndSet(7, 1), is(4, 1))}},

		"lost, and done":       {true, []Call{lost(0, add(2)), done(5, 6, get, is(2, 3))}},
		"lost, and not done":   {true, []Call{lost(0, add(2)), done(5, 6, get, is(0, 0))}},
		"lost, and done late":  {true, []Call{lost(0, add(2)), done(5, 6, get, is(0, 0)), done(7, 8, get, is(2, 3))}},
		"lost, done too early": {false, []Call{done(0, 1, get, is(2, 3)), lost(5, add(2))}},
		"lost, and done twice": {false, []Call{lost(0, add(2)), done(5, 6, get, is(2, 3)), done(7, 8, get, is(4, 5))}},
		"lost, and undone":     {false, []Call{lost(0, add(2)), done(5, 6, get, is(2, 3)), done(7, 8, get, is(0, 0))}},
		"lost, then refused":   {true, []Call{lost(0, add(2)), done(5, 6, upTo(1, 2), is(2, 9))}},
		"lost compare-and-set": {true, []Call{done(0, 1, add(1), applied(1, 1)), lost(2, compareAndSet(7, 1)), done(5, 6, add(1), applied(8, 9))}},
		"lost compare-and-set that cannot": {false, []Call{
			done(0, 1, add(1), applied(1, 3)), lost(2, compareAndSet(7, 1)), done(5, 6, add(1), applied(8, 9))}},
		"lost compare-and-set after a lost add": {true, []Call{
			lost(0, add(1)), done(1, 2, get, is(1, 4)), lost(2, add(1)), lost(2, compareAndSet(7, 4)), done(5, 6, get, is(8, 9))}},
		"deleted":                   {true, []Call{done(0, 1, add(4), applied(4, 3)), done(2, 3, del, applied(4, 5)), done(4, 5, get, is(0, 0)), done(6, 7, del, is(0, 0))}},
		"deleted, and made again":   {true, []Call{done(0, 1, add(4), applied(4, 3)), done(2, 3, del, applied(4, 5)), done(4, 5, compareAndSet(1, 0), applied(1, 6))}},
		"a version comes again":     {false, []Call{done(0, 1, add(4), applied(4, 3)), done(2, 3, del, applied(4, 5)), done(4, 5, get, is(0, 0)), done(6, 7, add(1), applied(1, 5))}},
		"deleted, and still there":  {false, []Call{done(0, 1, add(4), applied(4, 3)), done(2, 3, del, applied(4, 5)), done(4, 5, get, is(4, 3))}},
		"deleted what is not there": {false, []Call{done(0, 1, del, applied(0, 5))}},
		"nothing deleted":           {false, []Call{done(0, 1, add(4), applied(4, 3)), done(2, 3, del, is(0, 0))}},
		"lost delete":               {true, []Call{done(0, 1, add(4), applied(4, 3)), lost(2, del), done(5, 6, add(1), applied(1, 9))}},
		"lost delete, a version again": {false, []Call{
			done(0, 1, add(4), applied(4, 3)), lost(2, del), done(5, 6, add(1), applied(1, 3))}},
		"a retry deletes what came since": {false, []Call{
			done(0, 1, add(4), applied(4, 3)), as("r", done(2, 3, del, applied(4, 5))), done(4, 5, add(1), applied(1, 6)),
			as("r", done(6, 7, del, CounterOutput{Applied: true, Value: 4, Version: 5, Current: 1, Replay: Replay{true, 3}})), done(8, 9, get, is(0, 0))}},
		"lost reset": {true, []Call{done(0, 1, add(4), applied(4, 1)), lost(2, reset), done(5, 6, add(1), applied(1, 9))}},
	}.check(t, Counter())
}

func check(cost uint64) BucketInput { return BucketInput{Cost: cost} }
func allowed(remaining uint64, resetAfter int64) BucketOutput {
	return BucketOutput{Allowed: true, Remaining: remaining, ResetAfter: resetAfter}
}
func denied(remaining uint64, retryAfter, resetAfter int64) BucketOutput {
	return BucketOutput{Remaining: remaining, RetryAfter: retryAfter, ResetAfter: resetAfter}
}

// The bucket holds 3 and gets one back every 100 ns.
func TestBucket(t *testing.T) {
	yes, no := BucketOutput{Allowed: true, Bare: true}, BucketOutput{Bare: true}
	histories{
		"from full":             {true, []Call{done(0, 0, check(1), allowed(2, 100)), done(0, 0, check(2), allowed(0, 300)), done(0, 0, check(1), denied(0, 100, 300))}},
		"four at once":          {false, []Call{done(0, 1, check(3), allowed(0, 300)), done(2, 3, check(1), allowed(0, 300))}},
		"four at once, bare":    {false, []Call{done(0, 1, check(3), yes), done(2, 3, check(1), yes)}},
		"one comes back":        {true, []Call{done(0, 1, check(3), yes), done(100, 101, check(1), yes), done(102, 103, check(1), no)}},
		"one comes back sooner": {false, []Call{done(0, 1, check(3), yes), done(90, 99, check(1), yes)}},
		"within the call":       {true, []Call{done(0, 1, check(3), yes), done(10, 100, check(1), yes)}},
		"either way":            {true, []Call{done(0, 50, check(3), yes), done(110, 120, check(1), no)}},
		"refused in vain":       {false, []Call{done(0, 50, check(3), yes), done(151, 160, check(1), no)}},
		"refused when full":     {false, []Call{done(0, 1, check(3), no)}},
		"two come back, not three": {false, []Call{
			done(0, 1, check(3), yes), done(200, 210, check(2), yes), done(211, 212, check(1), yes)}},
		"never above the burst": {false, []Call{done(0, 1, check(1), yes), done(9000, 9001, check(3), yes), done(9002, 9003, check(1), yes)}},
		"a refusal spends":      {false, []Call{done(0, 1, check(3), yes), done(50, 51, check(1), no), done(102, 103, check(1), no)}},
		"a peek does not spend": {true, []Call{done(0, 1, BucketInput{Cost: 3, Peek: true}, yes), done(2, 3, check(3), yes), done(4, 5, BucketInput{Cost: 1, Peek: true}, no)}},
		"remaining too high":    {false, []Call{done(0, 1, check(2), yes), done(2, 3, check(1), allowed(1, 150))}},
		"reset too late":        {false, []Call{done(0, 1, check(1), allowed(2, 101))}},
		"figures of two kinds":  {false, []Call{done(0, 1, check(1), allowed(1, 100))}},
		"retry too early":       {false, []Call{done(0, 1, check(3), yes), done(10, 11, check(1), denied(0, 50, 290))}},
		"retry":                 {true, []Call{done(0, 1, check(3), yes), done(10, 11, check(1), denied(0, 90, 290))}},
		"answers narrow": {false, []Call{
			done(0, 90, check(3), allowed(0, 300)), done(90, 95, check(1), denied(0, 20, 220)), done(100, 105, check(1), no), done(116, 117, check(1), no)}},
		"order decides": {true, []Call{done(0, 9, check(3), yes), done(0, 9, check(1), no), done(0, 9, check(1), no)}},
		"too many at once": {false, []Call{
			done(0, 9, check(1), yes), done(0, 9, check(1), yes), done(0, 9, check(1), yes), done(0, 9, check(1), yes)}},

		"lost, and spent":      {true, []Call{lost(0, check(1)), done(5, 6, check(2), yes), done(7, 8, check(1), no)}},
		"lost, and not spent":  {true, []Call{lost(0, check(1)), done(5, 6, check(3), yes)}},
		"lost, spent late":     {true, []Call{lost(0, check(3)), done(500, 501, check(1), no), done(590, 591, check(1), no)}},
		"lost, spent too late": {false, []Call{lost(0, check(3)), done(500, 501, check(1), no), done(602, 603, check(1), no)}},
		"lost spends once":     {false, []Call{lost(0, check(1)), done(5, 6, check(1), yes), done(7, 8, check(1), no)}},
		"a refund":             {true, []Call{done(0, 1, check(3), yes), done(2, 3, BucketRefund{2}, allowed(2, 98)), done(4, 5, check(2), yes), done(6, 7, check(1), no)}},
		"a refund of no room":  {false, []Call{done(0, 1, check(3), yes), done(2, 3, BucketRefund{2}, yes), done(4, 5, check(2), no)}},
		"a refund too much":    {false, []Call{done(0, 1, check(3), yes), done(2, 3, BucketRefund{1}, yes), done(4, 5, check(2), yes)}},
		"above the burst":      {false, []Call{done(0, 1, check(1), yes), done(2, 3, BucketRefund{3}, yes), done(4, 5, check(3), yes), done(6, 7, check(1), yes)}},
		"a refund when full":   {true, []Call{done(0, 1, BucketRefund{3}, allowed(3, 0)), done(4, 5, check(3), yes), done(6, 7, check(1), no)}},
		"a refund is denied":   {false, []Call{done(0, 1, BucketRefund{3}, no)}},
		"what it says":         {false, []Call{done(0, 1, check(3), yes), done(2, 3, BucketRefund{2}, allowed(3, 0))}},
		"a lost refund, done":  {true, []Call{done(0, 1, check(3), yes), lost(2, BucketRefund{1}), done(4, 5, check(1), yes), done(6, 7, check(1), no)}},
		"a lost refund, not":   {true, []Call{done(0, 1, check(3), yes), lost(2, BucketRefund{1}), done(4, 5, check(1), no)}},
		"a lost refund, twice": {false, []Call{done(0, 1, check(3), yes), lost(2, BucketRefund{1}), done(4, 5, check(1), yes), done(6, 7, check(1), yes)}},
		"of a lost check":      {true, []Call{lost(0, check(3)), done(4, 5, BucketRefund{1}, yes), done(6, 7, check(2), no), done(8, 9, check(1), yes)}},
		"of no check":          {true, []Call{lost(0, check(3)), done(4, 5, BucketRefund{1}, yes), done(6, 7, check(3), yes)}},
		"a lost peek":          {false, []Call{lost(0, BucketInput{Cost: 1, Peek: true}), done(5, 6, check(3), no)}},
		"made full":            {true, []Call{done(0, 1, check(3), yes), done(2, 3, BucketReset{}, yes), done(4, 5, check(3), allowed(0, 300))}},
		"not made full":        {false, []Call{done(0, 1, check(3), yes), done(2, 3, BucketReset{}, yes), done(4, 5, check(3), no)}},
		"made more than full":  {false, []Call{done(0, 1, BucketReset{}, yes), done(2, 3, check(3), yes), done(4, 5, check(1), yes)}},
		"made full again": {false, []Call{
			done(0, 1, check(3), yes), as("r", done(2, 3, BucketReset{}, yes)), done(4, 5, check(3), yes),
			as("r", done(6, 7, BucketReset{}, BucketOutput{Allowed: true, Bare: true, Replay: Replay{true, 3}})), done(8, 9, check(1), yes)}},
		"a lost reset, done": {true, []Call{done(0, 1, check(3), yes), lost(2, BucketReset{}), done(4, 5, check(3), yes)}},
		"a lost reset, not":  {true, []Call{done(0, 1, check(3), yes), lost(2, BucketReset{}), done(4, 5, check(1), no)}},
		"a lost reset, twice": {false, []Call{
			done(0, 1, check(3), yes), lost(2, BucketReset{}), done(4, 5, check(3), yes), done(6, 7, check(3), yes)}},
	}.check(t, Bucket(BucketParams{Limit: 1, Period: 100, Burst: 3}))
}

// Units are such that nothing is rounded.
func TestBucketIsExact(t *testing.T) {
	yes, no := BucketOutput{Allowed: true, Bare: true}, BucketOutput{Bare: true}
	histories{
		"not before a third":  {false, []Call{done(0, 0, check(3), yes), done(33, 33, check(1), yes)}},
		"but after it":        {true, []Call{done(0, 0, check(3), yes), done(33, 33, check(1), no), done(34, 34, check(1), yes)}},
		"two thirds are 67":   {true, []Call{done(0, 0, check(3), allowed(0, 100)), done(34, 34, check(1), allowed(0, 100)), done(66, 66, check(1), denied(0, 1, 68)), done(67, 67, check(1), allowed(0, 100))}},
		"and not 66":          {false, []Call{done(0, 0, check(3), yes), done(34, 34, check(1), yes), done(66, 66, check(1), yes)}},
		"the reset is a ceil": {false, []Call{done(0, 0, check(1), allowed(2, 33))}},
	}.check(t, Bucket(BucketParams{Limit: 300, Period: 10_000, Burst: 3}))
}

func acquire(holder string, ttl, wait int64) LockInput {
	return LockInput{Op: LockAcquire, Holder: holder, TTL: ttl, Wait: wait}
}
func renew(token uint64, ttl int64) LockInput {
	return LockInput{Op: LockRenew, Token: token, TTL: ttl}
}
func release(token uint64) LockInput { return LockInput{Op: LockRelease, Token: token} }
func got(token uint64, ttl int64) LockOutput {
	return LockOutput{OK: true, Token: token, TTL: ttl}
}
func heldBy(holder string, token uint64, ttl int64) LockOutput {
	return LockOutput{Holder: holder, HolderToken: token, HolderTTL: ttl}
}

var (
	inspect  = LockInput{Op: LockInspect}
	freed    = LockOutput{OK: true}
	notHeld  = LockOutput{}
	prolongs = func(ttl int64) LockOutput { return LockOutput{OK: true, TTL: ttl} }
)

func TestLock(t *testing.T) {
	a := done(0, 10, acquire("a", 100, 0), got(1, 100)) // ends between 100 and 110
	kept := acquire("b", 100, 0)
	kept.Tickets = true
	histories{
		"held and released":         {true, []Call{a, done(20, 30, release(1), freed), done(40, 50, acquire("b", 100, 0), got(2, 100))}},
		"two holders":               {false, []Call{a, done(20, 30, acquire("b", 100, 0), got(2, 100))}},
		"after the TTL":             {true, []Call{a, done(90, 100, acquire("b", 100, 0), got(2, 100))}},
		"before the TTL":            {false, []Call{a, done(90, 99, acquire("b", 100, 0), got(2, 100))}},
		"refused after the TTL":     {false, []Call{a, done(110, 120, acquire("b", 100, 0), heldBy("a", 1, 5))}},
		"refused when free":         {false, []Call{done(20, 30, acquire("b", 100, 0), heldBy("a", 1, 5))}},
		"refused by nobody":         {false, []Call{done(20, 30, acquire("b", 100, 0), notHeld)}},
		"kept for a ticket":         {true, []Call{done(20, 30, kept, notHeld)}},
		"kept, and held":            {false, []Call{a, done(20, 30, kept, notHeld)}},
		"refused":                   {true, []Call{a, done(20, 30, acquire("b", 100, 0), heldBy("a", 1, 80))}},
		"refused, too much is left": {false, []Call{a, done(20, 30, acquire("b", 100, 0), heldBy("a", 1, 91))}},
		"refused by another token":  {false, []Call{a, done(20, 30, acquire("b", 100, 0), heldBy("a", 2, 80))}},
		"refused by another":        {false, []Call{a, done(20, 30, acquire("b", 100, 0), heldBy("c", 1, 80))}},
		"what is left narrows":      {false, []Call{a, done(20, 21, inspect, heldBy("a", 1, 80)), done(102, 105, release(1), freed)}},
		"a token again":             {false, []Call{a, done(20, 30, release(1), freed), done(40, 50, acquire("b", 100, 0), got(1, 100))}},
		"a token that falls":        {false, []Call{done(0, 10, acquire("a", 100, 0), got(5, 100)), done(20, 30, release(5), freed), done(40, 50, acquire("b", 100, 0), got(4, 100))}},
		"released twice":            {false, []Call{a, done(20, 30, release(1), freed), done(40, 50, release(1), freed)}},
		"released in vain":          {true, []Call{a, done(20, 30, release(7), notHeld), done(40, 50, release(1), freed), done(60, 70, release(1), notHeld)}},
		"not released when held":    {false, []Call{a, done(20, 30, release(1), notHeld)}},
		"released after the TTL":    {false, []Call{a, done(110, 120, release(1), freed)}},
		"lapsed, not released":      {true, []Call{a, done(110, 120, release(1), notHeld)}},
		"renewed":                   {true, []Call{a, done(50, 60, renew(1, 100), prolongs(100)), done(140, 145, inspect, heldBy("a", 1, 5)), done(150, 155, inspect, notHeld)}},
		"renewed and ended":         {false, []Call{a, done(50, 60, renew(1, 100), prolongs(100)), done(110, 145, inspect, notHeld)}},
		"renewed shorter":           {true, []Call{a, done(50, 60, renew(1, 10), prolongs(10)), done(70, 75, inspect, notHeld)}},
		"renewed after the TTL":     {false, []Call{a, done(110, 120, renew(1, 100), prolongs(100))}},
		"renewed by another":        {false, []Call{a, done(50, 60, renew(2, 100), prolongs(100))}},
		"not renewed when held":     {false, []Call{a, done(50, 60, renew(1, 100), notHeld)}},
		"renewed in vain":           {true, []Call{a, done(50, 60, renew(7, 100), heldBy("a", 1, 45)), done(110, 120, renew(1, 100), notHeld)}},
		"waited":                    {true, []Call{a, done(5, 105, acquire("b", 100, 500), LockOutput{OK: true, Token: 2, TTL: 100, Waited: 95})}},
		"waited longer than it was": {false, []Call{a, done(5, 105, acquire("b", 100, 500), LockOutput{OK: true, Token: 2, TTL: 100, Waited: 101})}},
		"waited, its TTL counts from the grant": {false, []Call{a, done(5, 105, acquire("b", 100, 500), LockOutput{OK: true, Token: 2, TTL: 100, Waited: 95}),
			done(195, 199, inspect, notHeld)}},
		"waited in vain":              {true, []Call{a, done(5, 105, acquire("b", 100, 90), heldBy("a", 1, 5)), done(50, 110, acquire("c", 100, 50), notHeld)}},
		"concurrent acquires":         {true, []Call{done(0, 10, acquire("a", 100, 0), got(1, 100)), done(0, 10, acquire("b", 100, 0), heldBy("a", 1, 95))}},
		"concurrent, both got it":     {false, []Call{done(0, 10, acquire("a", 100, 0), got(1, 100)), done(0, 10, acquire("b", 100, 0), got(2, 100))}},
		"inspected by a liar":         {false, []Call{a, done(20, 30, inspect, notHeld)}},
		"lost, and held":              {true, []Call{lost(0, acquire("a", 100, 0)), done(20, 30, acquire("b", 100, 0), heldBy("a", 1, 80)), done(40, 50, inspect, heldBy("a", 1, 60))}},
		"lost, and not held":          {true, []Call{lost(0, acquire("a", 100, 0)), done(20, 30, acquire("b", 100, 0), got(1, 100))}},
		"lost, and given back":        {true, []Call{lost(0, acquire("a", 100, 0)), done(20, 30, inspect, heldBy("a", 1, 80)), done(40, 50, inspect, notHeld)}},
		"lost, and held for long":     {false, []Call{lost(0, acquire("a", 100, 0)), done(20, 30, inspect, heldBy("a", 1, 80)), done(111, 120, inspect, heldBy("a", 1, 1))}},
		"lost, held under two tokens": {false, []Call{lost(0, acquire("a", 100, 0)), done(20, 30, inspect, heldBy("a", 1, 80)), done(40, 50, inspect, heldBy("a", 2, 60))}},
		"lost, held twice":            {false, []Call{lost(0, acquire("a", 100, 0)), done(20, 30, inspect, heldBy("a", 1, 80)), done(40, 50, inspect, notHeld), done(60, 70, inspect, heldBy("a", 2, 60))}},
		"a lost release":              {true, []Call{a, lost(20, release(1)), done(30, 40, inspect, heldBy("a", 1, 70)), done(50, 60, acquire("b", 100, 0), got(2, 100))}},
		"a lost release of another":   {false, []Call{a, lost(20, release(7)), done(50, 60, acquire("b", 100, 0), got(2, 100))}},
		"a lost renewal, done":        {true, []Call{a, lost(50, renew(1, 100)), done(120, 130, inspect, heldBy("a", 1, 25))}},
		"a lost renewal, not done":    {true, []Call{a, lost(50, renew(1, 100)), done(120, 130, inspect, notHeld)}},
		"no renewal":                  {false, []Call{a, lost(50, renew(2, 100)), done(120, 130, inspect, heldBy("a", 1, 25))}},
	}.check(t, Lock())
}
