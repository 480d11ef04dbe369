package rls

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"pgregory.net/rapid"
)

// drawn is a request with everything that may be in it.
func drawn(t *rapid.T) *rlspb.RateLimitRequest {
	text := rapid.OneOf(rapid.SampledFrom([]string{"", "a", "1:a", "a_b", "*"}), rapid.String())
	req := &rlspb.RateLimitRequest{Domain: text.Draw(t, "domain"), HitsAddend: rapid.Uint32().Draw(t, "hits")}
	for range rapid.IntRange(0, 3).Draw(t, "descriptors") {
		d := &commonpb.RateLimitDescriptor{IsNegativeHits: rapid.Bool().Draw(t, "negative")}
		for range rapid.IntRange(0, 3).Draw(t, "entries") {
			d.Entries = append(d.Entries, &commonpb.RateLimitDescriptor_Entry{Key: text.Draw(t, "key"), Value: text.Draw(t, "value")})
		}
		if rapid.Bool().Draw(t, "own hits") {
			d.HitsAddend = wrapperspb.UInt64(rapid.Uint64().Draw(t, "hits"))
		}
		if rapid.Bool().Draw(t, "own limit") {
			d.Limit = &commonpb.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: rapid.Uint32().Draw(t, "requests"), Unit: typepb.RateLimitUnit(rapid.Int32().Draw(t, "unit"))}
			if rapid.Bool().Draw(t, "multiplier") {
				d.Limit.UnitMultiplier = wrapperspb.UInt32(rapid.Uint32().Draw(t, "multiplier"))
			}
		}
		req.Descriptors = append(req.Descriptors, d)
	}
	return req
}

// same says how what was read differs from what protobuf reads; "" = it does not.
func same(r *request, want *rlspb.RateLimitRequest) string {
	if r.domain != want.Domain || r.hits != want.HitsAddend || len(r.descriptors) != len(want.Descriptors) {
		return fmt.Sprintf("%+v, want %v", r, want)
	}
	for i, d := range r.descriptors {
		w := want.Descriptors[i]
		ok := d.hasHits == (w.HitsAddend != nil) && d.hits == w.HitsAddend.GetValue() && d.negative == w.IsNegativeHits &&
			(d.override != nil) == (w.Limit != nil) && len(d.entries) == len(w.Entries)
		for n := 0; ok && n < len(d.entries); n++ {
			ok = d.entries[n] == entry{w.Entries[n].Key, w.Entries[n].Value}
		}
		if o := d.override; ok && o != nil {
			ok = o.requests == w.Limit.RequestsPerUnit && int32(o.unit) == int32(w.Limit.Unit) && o.multiplier == w.Limit.UnitMultiplier.GetValue()
		}
		if !ok {
			return fmt.Sprintf("descriptor %d: %+v, want %v", i, d, w)
		}
	}
	return ""
}

// Requests are read as protobuf reads them.
func TestRequestAgreesWithProtobuf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawn(t)
		data, err := proto.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var got request
		if err := got.UnmarshalVT(data); err != nil {
			t.Fatal(err)
		}
		clear(data) // what was read does not refer to the buffer
		if got.size > maxRequest {
			return
		}
		if diff := same(&got, want); diff != "" {
			t.Fatal(diff)
		}
	})
}

// FuzzRequest: what is accepted is what protobuf makes of it.
func FuzzRequest(f *testing.F) {
	seed, err := proto.Marshal(&rlspb.RateLimitRequest{Domain: "d", HitsAddend: 3, Descriptors: []*commonpb.RateLimitDescriptor{{
		Entries: []*commonpb.RateLimitDescriptor_Entry{{Key: "k", Value: "v"}}, HitsAddend: wrapperspb.UInt64(5), IsNegativeHits: true,
		Limit: &commonpb.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 2, Unit: typepb.RateLimitUnit_DAY, UnitMultiplier: wrapperspb.UInt32(2)}}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add([]byte{})
	f.Add([]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Add([]byte{0x0b, 0x0c, 0x12, 0x00, 0x12, 0x02, 0x0a, 0x00})
	f.Add([]byte{0x0d, 1, 2, 3, 4, 0x09, 1, 2, 3, 4, 5, 6, 7, 8})
	f.Add([]byte("\xd8\xd8\xd8\xd800")) // a number beyond the last
	f.Fuzz(func(t *testing.T, data []byte) {
		var got request
		if got.UnmarshalVT(data) != nil || got.size > maxRequest {
			return
		}
		var want rlspb.RateLimitRequest
		if err := proto.Unmarshal(data, &want); err != nil {
			t.Fatalf("protobuf refuses it: %v", err)
		}
		if diff := same(&got, &want); diff != "" {
			t.Error(diff)
		}
	})
}

// Answers are written so that protobuf reads them.
func TestAnswerAgreesWithProtobuf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := &Limit{Name: rapid.String().Draw(t, "name"), RequestsPerUnit: rapid.Uint32().Draw(t, "requests"), Unit: rlspb.RateLimitResponse_RateLimit_DAY}
		multiplier := rapid.Uint32().Draw(t, "multiplier")
		l.seal(multiplier)
		st := status{code: codeOver, current: l.current, remaining: rapid.Uint32().Draw(t, "left"), reset: time.Duration(rapid.Int64Min(0).Draw(t, "reset")), hasReset: true}
		a := &answer{wire: appendHeader(st.append(appendVarint(nil, 1, uint64(codeOver))), "X", "7")}
		data := make([]byte, a.SizeVT())
		if n, err := a.MarshalToSizedBufferVT(data); n != len(data) || err != nil {
			t.Fatal(n, err)
		}
		var got rlspb.RateLimitResponse
		if err := proto.Unmarshal(data, &got); err != nil {
			t.Fatal(err)
		}
		s := got.Statuses[0]
		if got.OverallCode != codeOver || s.Code != codeOver || s.LimitRemaining != st.remaining || s.DurationUntilReset.AsDuration() != st.reset ||
			s.CurrentLimit.Name != l.Name || s.CurrentLimit.RequestsPerUnit != l.RequestsPerUnit || s.CurrentLimit.Unit != l.Unit ||
			s.CurrentLimit.UnitMultiplier.GetValue() != multiplier || got.ResponseHeadersToAdd[0].Key != "X" || got.ResponseHeadersToAdd[0].Value != "7" {
			t.Errorf("%v", &got)
		}
	})
}

// Two lists of strings never make the same key, whatever is in them.
func TestKeysAreInjective(t *testing.T) {
	part := rapid.OneOf(rapid.SampledFrom([]string{"", "1", "1:", "1:a", "a1:", ":", "*", "#", "2:a1"}), rapid.StringN(0, 12, 40))
	list := rapid.SliceOfN(part, 1, 7)
	key := func(parts []string) string {
		var b []byte
		for _, p := range parts {
			b = appendPart(b, asItIs, p)
		}
		return fit(b)
	}
	seen := map[string]string{}
	rapid.Check(t, func(t *rapid.T) {
		parts := list.Draw(t, "parts")
		k, text := key(parts), fmt.Sprintf("%q", parts)
		if before, ok := seen[k]; ok && before != text {
			t.Fatalf("%s and %s make %q", before, text, k)
		}
		seen[k] = text
		if len(k) > maxKey || !utf8.ValidString(k) {
			t.Fatalf("%d bytes, %q", len(k), k)
		}
	})
	long := key([]string{strings.Repeat("x", maxKey)})
	if other := key([]string{strings.Repeat("x", maxKey-1), "x"}); long == other || !strings.HasPrefix(long, "#") || len(long) != 65 {
		t.Errorf("%q %q", long, other)
	}
}

// Labels that come from requests are bounded.
func TestSeriesAreBounded(t *testing.T) {
	s := &Service{}
	m := newMetrics(prometheus.NewRegistry(), s)
	for i := range maxSeries + 100 {
		m.of("d", fmt.Sprintf("limit%d", i)).hits.Inc()
	}
	if len(m.series) != maxSeries || m.of("d", "one more") != m.other || m.of("d", "limit0") == m.other {
		t.Errorf("%d series", len(m.series))
	}
	if got := label(strings.Repeat("ä", maxLabel)); len(got) > maxLabel || !utf8.ValidString(got) {
		t.Errorf("a label of %d bytes", len(got))
	}
	if small(math.MaxUint64) != math.MaxUint32 {
		t.Error("a number of answers")
	}
}
