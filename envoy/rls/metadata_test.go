package rls_test

import (
	"encoding/json"
	"testing"

	"github.com/keystead/keystead/internal/node"
)

const described = `
domain: d
descriptors:
- key: a
  rate_limit: {unit: hour, requests_per_unit: 10}
- key: q
  value: one
  quota_mode: true
  rate_limit: {unit: hour, requests_per_unit: 1}
  metadata:
    service: {name: one, weight: 2.5, tags: [x, 1, true, null, {y: 2026-01-01}]}
    first: one
- key: q
  value: two
  quota_mode: true
  rate_limit: {unit: hour, requests_per_unit: 2}
  metadata: &two
    service: {name: two, zone: b, on: yes, 7: seven}
    second: two
- key: m
  detailed_metric: true
  rate_limit: {unit: hour, requests_per_unit: 9}
  metadata:
    <<: *two
    second: merged
- key: free
  rate_limit: {unlimited: true}
  metadata: {free: true}
- key: shadow
  shadow_mode: true
  rate_limit: {unit: hour, requests_per_unit: 0}
  metadata: {shadow: true}
- key: none
  rate_limit: {unit: hour, requests_per_unit: 9}
  metadata:
`

// The metadata of an answer has the request, and what the descriptors say that are
// not over their limit.
func TestMetadata(t *testing.T) {
	t.Parallel()
	s := serve(t, described, func(c *node.Config) { c.RLS.Metadata = true })
	for i, tc := range []struct {
		ask  []string
		hits uint32
		want string
	}{
		{[]string{"a=1", "none=1 +2"}, 3, `{"descriptors":[{"entries":["a=1"]},{"entries":["none=1"],"hitsAddend":2}],"domain":"d","hitsAddend":3}`},
		{[]string{"q=one", "q=two"}, 0, `{"descriptors":[{"entries":["q=one"]},{"entries":["q=two"]}],"domain":"d","metadata":{` +
			`"first":"one","second":"two","service":{"7":"seven","name":"one","on":true,"tags":["x",1,true,null,{"y":"2026-01-01"}],"weight":2.5,"zone":"b"}}}`},
		{[]string{"q=one", "q=two"}, 0, `{"descriptors":[{"entries":["q=one"]},{"entries":["q=two"]}],"domain":"d","metadata":{` +
			`"second":"two","service":{"7":"seven","name":"two","on":true,"zone":"b"}}}`},
		{[]string{"q=one", "q=two"}, 0, `{"descriptors":[{"entries":["q=one"]},{"entries":["q=two"]}],"domain":"d"}`},
		{[]string{"m=x"}, 0, `{"descriptors":[{"entries":["m=x"]}],"domain":"d","metadata":{"second":"merged","service":{"7":"seven","name":"two","on":true,"zone":"b"}}}`},
		{[]string{"a=1 @2/DAY", "a=1 @0/YEAR"}, 0, `{"descriptors":[{"entries":["a=1"],"limit":"requests_per_unit:2 unit:DAY"},{"entries":["a=1"],"limit":"unit:YEAR"}],"domain":"d"}`},
		{[]string{"free=1", "shadow=1"}, 0, `{"descriptors":[{"entries":["free=1"]},{"entries":["shadow=1"]}],"domain":"d","metadata":{"shadow":true}}`},
	} {
		r, err := s.ask(t, "d", tc.hits, tc.ask...)
		if err != nil {
			t.Fatal(err)
		}
		got, err := json.Marshal(r.DynamicMetadata.AsMap())
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != tc.want {
			t.Errorf("request %d:\n got %s\nwant %s", i+1, got, tc.want)
		}
	}
}
