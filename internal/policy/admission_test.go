package policy

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/keystead/keystead/internal/failure"
)

const chat = `
policies:
  tokens: {limit: 100000/1m}
admissions:
  chat:
    about: a request of a gateway
    key: org:{org}
    fields: [org, user, model, tier]
    demands:
    - {name: rpm, limit: 5000/1m}
    - {name: "user:{user}/rpm", when: {tier: gold}, limit: 600/1m}
    - {name: "user:{user}/rpm", limit: 60/1m}
    - {name: "model:{model}/tpm", when: {model: "*"}, policy: tokens, cost: tokens, clamp: 25}
    - {name: "model:{model}/quota", when: {model: [large, huge]}, limit: 1000/month, algorithm: calendar-window, time_zone: Europe/Berlin}
    - {name: running, slots: 8}
    - {name: spent, counter: 1_000_000, cost: tokens}
`

func selected(t *testing.T, a *Admission, fields map[string]string, amounts map[string]uint64) string {
	t.Helper()
	s, err := a.Select(fields, amounts)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString(s.Key)
	for _, d := range s.Demands {
		fmt.Fprintf(&b, ", %s %d of %s", d.Name, d.Cost, d.text())
	}
	return b.String()
}

func TestSelect(t *testing.T) {
	a := parse(t, chat).Admission("chat")
	for _, c := range []struct {
		fields map[string]string
		want   string
	}{
		{map[string]string{"org": "7", "user": "42"}, "org:7, rpm 1 of token-bucket, 5000 in 1m, user:42/rpm 1 of token-bucket, 60 in 1m, running 1 of 8, slots, spent 30 of 1000000, a counter"},
		{map[string]string{"org": "7", "user": "42", "tier": "gold", "model": "small"}, "org:7, rpm 1 of token-bucket, 5000 in 1m, user:42/rpm 1 of token-bucket, 600 in 1m, model:small/tpm 30 of token-bucket, 100000 in 1m, running 1 of 8, slots, spent 30 of 1000000, a counter"},
		{map[string]string{"org": "7", "user": "a/rpm", "model": "huge", "tier": "gold "}, "org:7, rpm 1 of token-bucket, 5000 in 1m, user:a%2frpm/rpm 1 of token-bucket, 60 in 1m, model:huge/tpm 30 of token-bucket, 100000 in 1m, model:huge/quota 1 of calendar-window, 1000 in each month of Europe/Berlin, running 1 of 8, slots, spent 30 of 1000000, a counter"},
	} {
		if got := selected(t, a, c.fields, map[string]uint64{"tokens": 30}); got != c.want {
			t.Errorf("%v:\n got %s\nwant %s", c.fields, got, c.want)
		}
	}
	tokens := map[string]uint64{"tokens": 1}
	for _, c := range []struct {
		field   string
		fields  map[string]string
		amounts map[string]uint64
		hint    string
	}{
		{"fields.org", map[string]string{"user": "42"}, tokens, "each request needs it"}, // it is in the key
		{"fields.org", map[string]string{"user": "42", "org": ""}, tokens, "each request needs it"},
		{"fields.user", map[string]string{"org": "7"}, tokens, "or have the demand be `when: {user: \"*\"}`"},
		{"fields.user", map[string]string{"org": "7", "user": "\xff"}, tokens, ""},
		{"fields.user", map[string]string{"org": "7", "user": strings.Repeat("x", MaxValue+1)}, tokens, ""},
		{"fields", map[string]string{"org": "7", "user": "42", "usr": "42"}, tokens, "it knows org, user"},
		{"amounts.tokens", map[string]string{"org": "7", "user": "42"}, nil, "an estimate"},
		{"amounts.tokens", map[string]string{"org": "7", "user": "42"}, map[string]uint64{"tokens": 0}, "an estimate"},
		{"amounts", map[string]string{"org": "7", "user": "42"}, map[string]uint64{"tokens": 1, "token": 1}, "are charged by tokens"},
	} {
		var e *failure.Error
		if _, err := a.Select(c.fields, c.amounts); !errors.As(err, &e) || e.Field != c.field || e.Reason != failure.Invalid || !strings.Contains(e.Hint, c.hint) {
			t.Errorf("%v %v: %+v", c.fields, c.amounts, e)
		}
	}
}

func TestAdmissionExplain(t *testing.T) {
	a := parse(t, chat).Admission("chat")
	s, err := a.Select(map[string]string{"org": "7", "user": "42", "tier": "gold"}, map[string]uint64{"tokens": 5})
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := s.Explain(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"  The owner cannot be asked: an error, and nothing is admitted (rpm has no fallback).\n", "Key org:7\n", "  user:42/rpm: 1 of token-bucket, 600 in 1m\n    because tier is gold (line 11)\n    in any time shorter than 1m at most 1199, and once 600 more after a loss\n", "  spent: 5 of 1000000, a counter\n"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	if got := strings.Join(a.Amounts(), " "); got != "tokens" {
		t.Error(got)
	}
}

func TestParseAdmissionsSaysWhatIsWrong(t *testing.T) {
	under := func(demands string) string {
		return "admissions:\n  a:\n    key: org:{org}\n    fields: [org, user, model]\n    demands:\n    - {name: rpm, limit: 5/s}\n" + demands
	}
	demand := func(text string) string { return under("    - {" + text + "}\n") }
	for _, c := range []struct{ text, line, says string }{
		{demand("name: x, limit: 5/s, algorithm: leaky-bucket, max_delay: 1s"), "7", "`max_delay` does not go with a demand"},
		{"policies: {late: {limit: 5/s, algorithm: leaky-bucket, max_delay: 1s}}\n" + demand("name: x, policy: late"), "8", "`max_delay` of the policy `late` does not go with a demand"},
		{demand("name: x, limit: 5/s, fallback: \"local-cap:1/s\""), "7", "`fallback` of the demand `x` never decides: each request demands `rpm` (line 6) as well, which has none"},
		{demand("name: x, limit: 5/s, fallback: maybe"), "7", "`fallback: maybe` is none"},
		{demand("name: x, limit: 5/s, budget: 1s"), "7", "`budget` of the demand `x` goes with a fallback"},
		{demand("name: x, limit: 5/s, fallback: \"local-cap:1/s\", budget: 1h"), "7", "`budget` of the demand `x` is 1h0m0s; choose 5ms to 10s"},
		{demand("name: x, limit: 5/s, algorithm: leaky-bucket, fallback: \"last-known:1s\""), "7", "`fallback` of the demand `x` is last-known, which does not go with a leaky bucket"},
		{demand("name: x, slots: 5, fallback: \"local-cap:1/s\""), "7", "`fallback` goes with a `limit` only"},
		{demand("name: x, counter: 5, budget: 1s"), "7", "`budget` goes with a `limit` only"},
		{"admissions: []", "1", "`admissions` is a map of names"},
		{"admissions: {a: {}}", "1", "needs key, fields and demands"},
		{"policies: {a: {limit: 1/s}}\nadmissions: {a: {}}", "2", "the policy `a` is there a second time"},
		{"admissions: {a: {key: x, fields: [], demands: []}}", "1", "`demands` is a list of 1 to 64"},
		{"admissions: {a: {key: \"o:{org}\", fields: [], demands: [{name: a, limit: 1/s}]}}", "1", "names the field `org`, which is not among `fields`"},
		{"admissions: {a: {key: o, fields: [a b], demands: [{name: a, limit: 1/s}]}}", "1", "`a b` cannot be the name of a field"},
		{"admissions: {a: {key: o, fields: [a, a], demands: [{name: a, limit: 1/s}]}}", "1", "the field `a` is there a second time"},
		{"admissions: {a: {key: o, fields: [a], demands: [{name: n, limit: 1/s, when: {a: b}}]}}", "1", "would have no limit at all"},
		{demand("limit: 1/s"), "7", "a demand has no name"},
		{demand("name: b"), "7", "has to say one of limit, policy, counter and slots"},
		{demand("name: b, limit: 1/s, slots: 5"), "7", "has to say one of"},
		{demand("name: b, policy: nobody"), "7", "there is no policy `nobody`"},
		{demand("name: b, slots: 5, burst: 7"), "7", "`burst` goes with a `limit` only"},
		{demand("name: b, limit: 5/s, cost: 6"), "7", "is 6, and at most 5 can ever be available"},
		{demand("name: b, limit: 5/s, cost: -6"), "7", "`cost: -6` is neither"},
		{demand("name: b, limit: 5/s, clamp: 101"), "7", "`clamp: 101` is no count"},
		{demand("name: b, slots: 5, clamp: 10"), "7", "`clamp` does not go with slots"},
		{demand("name: b, limit: 5/week"), "7", "`limit` of the demand `b` is of a period"},
		{demand("name: b, limit: 5/s, when: {usr: x}"), "7", "has no field `usr`"},
		{demand("name: b, limit: 5/s, when: {user: []}"), "7", "`user` has 1 to 64 values"},
		{demand("name: admission, limit: 5/s"), "7", "is the name of what keeps the holds"},
		{demand("name: \"u:{user}{model}\", limit: 5/s"), "7", "has two fields without"},
		{demand("name: \"u:{user\", limit: 5/s"), "7", "has a `{` without a `}`"},
		{demand("name: \"u 1\", limit: 5/s"), "7", "has \" \"; use letters"},
		{demand("name: \"u%2f\", limit: 5/s"), "7", "has \"%\"; use letters"},
		{demand("name: \"{user}:{model}:{org}:{user}\", limit: 5/s"), "7", "may become 163 bytes"},
		{demand("name: rpm, slots: 5"), "7", "`rpm` is a slots, and on line 6 a limit"},
		{demand("name: rpm, limit: 6/s, when: {user: x}"), "7", "never counts: the one on line 6 is for all requests"},
		{demand("name: \"{user}\", limit: 5/s"), "7", "may become the same name of one key"},
		{under("    - {name: \"u/{user}\", limit: 5/s}\n    - {name: \"{model}/x\", limit: 5/s}\n"), "8", "`{model}/x` and `u/{user}` (line 7) may become the same name"},
		{under("  b: {key: \"{user}:7\", fields: [user], demands: [{name: rpm, limit: 6/s}]}\n"), "7", "may become the same name of one key, and do not say the same"},
	} {
		_, err := Parse("f", []byte(c.text))
		var got Problems
		if !errors.As(err, &got) {
			t.Errorf("%.90q: %v", c.text, err)
			continue
		}
		if s := got[0].String(); !strings.HasPrefix(s, "f:"+c.line+": ") || !strings.Contains(s, c.says) {
			t.Errorf("%.120q: %s\nwant line %s, %s", c.text, s, c.line, c.says)
		}
	}
	parse(t, under("  b: {key: \"org:{o}\", fields: [o], demands: [{name: other, limit: 6/s}]}\n"))
	parse(t, under("  b: {key: \"org:{org}\", fields: [org], demands: [{name: rpm, limit: 5/s}]}\n"))
	parse(t, under("    - {name: \"u-{user}\", limit: 5/s}\n    - {name: \"m-{model}\", limit: 5/s}\n"))
}

func TestAdmissionChanges(t *testing.T) {
	a := parse(t, chat)
	b := parse(t, strings.Replace(chat, "slots: 8", "slots: 9", 1))
	if c := a.Changes(b); fmt.Sprint(c.Added, c.Changed, c.Removed) != "[] [chat] []" || !a.Changes(a).None() {
		t.Errorf("%+v", c)
	}
	if c := a.Changes(parse(t, "policies: {}")); fmt.Sprint(c.Removed) != "[chat tokens]" {
		t.Errorf("%+v", c)
	}
	if b.Len() != 2 || a.Admission("nobody") != nil || new(Set).Admission("chat") != nil {
		t.Error("which policies there are is wrong")
	}
}

// hostile are values that try to become others.
var hostile = rapid.OneOf(rapid.SampledFrom([]string{"a", "b", "a/b", "a:b", "%", "%2f", "%%", "{user}", "}", "/", ":", " ", "\x00", "ü", "A", "a%3ab", strings.Repeat("x", 40), strings.Repeat("x", 41), strings.Repeat("x", 42)}), rapid.StringN(1, 60, 500))

// Whatever requests say in their fields, they have one object only if those fields are the same that
// stand in its key and its name; and all is as long as an object's key and name may be.
func TestHostileFieldsDoNotCollide(t *testing.T) {
	a := parse(t, `
admissions:
  a:
    key: org:{org}/{region}
    fields: [org, region, user, model]
    demands:
    - {name: rpm, limit: 1/s}
    - {name: "user:{user}", limit: 1/s}
    - {name: "user:{user}/{model}", limit: 1/s}
    - {name: "m-{model}x", limit: 1/s}
    - {name: "n-{model}.x:{user}", limit: 1/s}
`).Admission("a")
	all := map[string]string{} // by key and name, what they were made of
	one := func(fields map[string]string) error {
		s, err := a.Select(fields, nil)
		if err != nil {
			return err
		}
		for _, d := range s.Demands {
			object, of := s.Key+"\x00"+d.Name, d.Rule.Name.text
			for _, f := range a.Fields {
				if strings.Contains(a.Key.text+d.Rule.Name.text, "{"+f+"}") {
					of += fmt.Sprintf(" %q", fields[f])
				}
			}
			switch was, known := all[object]; {
			case known && was != of:
				return fmt.Errorf("%q is of %s and of %s", object, was, of)
			case len(s.Key) > maxKey || len(d.Name) > maxName:
				return fmt.Errorf("%q is too long", object)
			}
			all[object] = of
		}
		return nil
	}
	few := []string{"a", "a/a", "a:a", "a.x:a"}
	for i := range len(few) * len(few) * len(few) * len(few) {
		fields := map[string]string{}
		for _, f := range a.Fields {
			fields[f] = few[i%len(few)]
			i /= len(few)
		}
		if err := one(fields); err != nil {
			t.Fatal(err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		fields := map[string]string{}
		for _, f := range a.Fields {
			fields[f] = hostile.Draw(t, f)
		}
		if err := one(fields); err != nil {
			t.Fatal(err)
		}
	})
}

func BenchmarkSelect(b *testing.B) {
	set, err := Parse("", []byte(chat))
	if err != nil {
		b.Fatal(err)
	}
	a := set.Admission("chat")
	fields := map[string]string{"org": "7", "user": "42", "model": "small"}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := a.Select(fields, map[string]uint64{"tokens": 4000}); err != nil {
			b.Fatal(err)
		}
	}
}

// falling is an admission policy of which a request that says no model, or a large one, can be decided without its owner.
const falling = `
policies:
  shared: {limit: 50/1h, fallback: "last-known:30s", budget: 80ms}
admissions:
  chat:
    key: org:{org}
    fields: [org, user, model]
    demands:
    - {name: rpm, limit: 5000/1m, fallback: "local-cap:10/1m"}
    - {name: "user:{user}/rpm", policy: shared}
    - {name: running, when: {model: small}, slots: 8}
    - {name: tpm, when: {model: large}, limit: 9/1m, fallback: "local-cap:3/10s", budget: 50ms, cost: tokens, clamp: 50}
`

// TestAdmissionFalls: a request is decided without its owner if all that it demands is, within the shortest budget, and
// explain says by what bounds.
func TestAdmissionFalls(t *testing.T) {
	a := parse(t, falling).Admission("chat")
	for _, c := range []struct {
		model  string
		falls  bool
		budget time.Duration
		says   string
	}{
		{"", true, 80 * time.Millisecond, "  The owner cannot be asked within 80ms: each node decides by itself, and admits if all of these do, beside the bounds above,\n" +
			"    rpm: at most 10 in any time shorter than 1m (local-cap:10/1m), so 3 nodes 30, 5 nodes 50\n" +
			"    user:42/rpm: at most 50 in any time shorter than 30s (last-known:30s), so 3 nodes 150, 5 nodes 250\n" +
			"    There is no hold then, and nothing to settle. Answers say so (degraded).\n"},
		{"large", true, 50 * time.Millisecond, "    tpm: at most 3 in any time shorter than 10s (local-cap:3/10s), so 3 nodes 9, 5 nodes 15\n"},
		{"small", false, 0, "  The owner cannot be asked: an error, and nothing is admitted (running has no fallback).\n"},
	} {
		s, err := a.Select(map[string]string{"org": "7", "user": "42", "model": c.model}, map[string]uint64{"tokens": 5})
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		if err := s.Explain(&b); err != nil || !strings.HasSuffix(b.String(), c.says) && !strings.Contains(b.String(), c.says) {
			t.Errorf("model %q: %v\n%s", c.model, err, b.String())
		}
		if s.Falls() != c.falls || c.falls && s.Budget() != c.budget {
			t.Errorf("model %q: %t", c.model, s.Falls())
		}
	}
	other := parse(t, strings.Replace(falling, "local-cap:10/1m", "local-cap:11/1m", 1))
	if c := parse(t, falling).Changes(other); len(c.Changed) != 1 || c.Changed[0] != "chat" {
		t.Errorf("another fallback is a change: %+v", c)
	}
	other = parse(t, strings.Replace(falling, "budget: 80ms", "budget: 81ms", 1))
	if c := parse(t, falling).Changes(other); len(c.Changed) != 2 {
		t.Errorf("so is another budget of a policy: %+v", c)
	}
}
