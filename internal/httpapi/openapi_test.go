package httpapi

import (
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// services returns those of the public API: what the .proto files below keystead have, but
// what nodes say to each other.
func services(t *testing.T) (all []protoreflect.ServiceDescriptor) {
	t.Helper()
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		if pkg := string(f.Package()); strings.HasPrefix(pkg, "keystead.") && pkg != "keystead.peer.v1" {
			for i := range f.Services().Len() {
				all = append(all, f.Services().Get(i))
			}
		}
		return true
	})
	if len(all) < 6 {
		t.Fatalf("%d services", len(all))
	}
	return all
}

// Every method of every service is there, over a socket: it answers, or it says why not, in
// words of its own. A stream says that it is one.
func TestEveryMethodIsReachable(t *testing.T) {
	h := newHouse(t)
	for _, s := range services(t) {
		for i := range s.Methods().Len() {
			m := s.Methods().Get(i)
			a := h.call("POST", pathOf(m), "{}", "Keystead-Timeout: 1s")
			stream := m.IsStreamingClient() || m.IsStreamingServer()
			if stream != (a.status == http.StatusNotImplemented) || a.status == http.StatusNotFound || a.status == http.StatusInternalServerError {
				t.Errorf("%s: %s", pathOf(m), a)
			}
			if n := h.count("keystead_rpc_calls_total", "method="+string(m.Name())); stream != (n == 0) {
				t.Errorf("%s: %v calls are counted", m.FullName(), n)
			}
			if !json.Valid([]byte(a.body)) {
				t.Errorf("%s answers %s", pathOf(m), a.body)
			}
		}
	}
}

// What is read by GET changes nothing: proxies and browsers repeat it as they like.
func TestReadsOnlyRead(t *testing.T) {
	h := newHouse(t)
	reads := regexp.MustCompile(`^(Get|BatchGet|List|Inspect|Verify|Await)`)
	some := 0
	for _, r := range h.web.routes {
		if r.reads {
			some++
		}
		if r.reads && (!reads.MatchString(string(r.desc.Name())) || r.key != nil) {
			t.Errorf("%s is answered to GET", r.path)
		}
	}
	if some < 9 {
		t.Errorf("%d calls are answered to GET", some)
	}
}

// The document has every method that is no stream, with every field of its messages, and
// nothing else.
func TestOpenAPI(t *testing.T) {
	h := newHouse(t)
	a := h.call("GET", openAPIPath, "")
	var doc struct {
		OpenAPI    string `json:"openapi"`
		Paths      map[string]map[string]openOperation
		Components struct{ Schemas map[string]openSchema }
	}
	if err := json.Unmarshal([]byte(a.body), &doc); err != nil || a.status != http.StatusOK || doc.OpenAPI != "3.1.0" {
		t.Fatal(err, a.status, doc.OpenAPI)
	}
	methods := 0
	for _, s := range services(t) {
		for i := range s.Methods().Len() {
			m := s.Methods().Get(i)
			if m.IsStreamingClient() || m.IsStreamingServer() {
				continue
			}
			methods++
			op, ok := doc.Paths[pathOf(m)]["post"]
			if !ok {
				t.Errorf("no %s", pathOf(m))
				continue
			}
			checkFields(t, doc.Components.Schemas, op.RequestBody.Content[jsonType].Schema.Ref, m.Input(), true)
			checkFields(t, doc.Components.Schemas, op.Responses["200"].Content[jsonType].Schema.Ref, m.Output(), false)
		}
	}
	if len(doc.Paths) != methods {
		t.Errorf("%d paths for %d methods", len(doc.Paths), methods)
	}
}

type openOperation struct {
	RequestBody openBody
	Responses   map[string]openBody
}

type openBody struct {
	Content map[string]struct{ Schema openSchema }
}

type openSchema struct {
	Ref        string `json:"$ref"`
	Properties map[string]openSchema
	Items      *openSchema
}

// checkFields compares the schema of a message with its descriptor. A request may have a rate
// for limit and period.
func checkFields(t *testing.T, all map[string]openSchema, ref string, d protoreflect.MessageDescriptor, asked bool) {
	t.Helper()
	name := strings.TrimPrefix(ref, "#/components/schemas/")
	if "keystead."+name != string(d.FullName()) {
		t.Errorf("%s is %q", d.FullName(), ref)
		return
	}
	var want []string
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		field := strings.TrimSuffix(string(f.Name()), "_ns")
		want = append(want, field)
		if f.Kind() == protoreflect.BytesKind && d.Name() != "RequestId" {
			want = append(want, field+"_text")
		}
		if f.Message() == nil {
			continue
		}
		s := all[name].Properties[field]
		if f.IsList() && s.Items != nil {
			s = *s.Items
		}
		checkFields(t, all, s.Ref, f.Message(), asked)
	}
	have := slices.Sorted(keysOf(all[name].Properties))
	if asked && slices.Contains(want, "limit") && slices.Contains(want, "period") {
		want = append(want, rateName)
	}
	slices.Sort(want)
	if !slices.Equal(have, want) {
		t.Errorf("%s has %v, want %v", name, have, want)
	}
}

// Names that would say two things are found when the server is made.
func TestNames(t *testing.T) {
	for name, want := range map[string]string{
		"Check": "check", "BatchCheck": "batch-check", "CompareAndSet": "compare-and-set", "GetRing": "get-ring", "ID": "id", "GetHTTPPort": "get-http-port", "": "",
	} {
		if got := kebab(name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	for name, want := range map[string]string{"retry_after": "retryAfter", "key": "key", "a_b_c": "aBC"} {
		if got := lowerCamel(name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}
