package httpapi

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

const openAPIPath = "/openapi.json"

// object is one of JSON; its names are written in order of the alphabet.
type object = map[string]any

// answerOpenAPI answers with the document of what there is.
func (s *Server) answerOpenAPI(w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		return &problem{Status: http.StatusMethodNotAllowed, Detail: "GET is the method of " + openAPIPath}
	}
	h := w.Header()
	h.Set("Content-Type", jsonType)
	h.Set("Content-Length", strconv.Itoa(len(s.openapi)))
	s.deadline(w)
	_, _ = w.Write(s.openapi)
	return nil
}

// usage is in which direction messages go: it decides what is said of their fields.
type usage struct{ asked, answered map[*shape]bool }

// document returns the OpenAPI document (3.1) of routes.
func document(routes map[string]*route) []byte {
	u := usage{map[*shape]bool{}, map[*shape]bool{}}
	paths := object{}
	for path, r := range routes {
		reach(r.asked, u.asked)
		reach(r.answered, u.answered)
		item := object{"post": r.operation(false)}
		if r.reads {
			item["get"] = r.operation(true)
		}
		paths[path] = item
	}
	schemas := object{"Problem": problemSchema()}
	for _, all := range []map[*shape]bool{u.asked, u.answered} {
		for s := range all {
			schemas[schemaName(s)] = u.schema(s)
		}
	}
	doc, err := json.MarshalIndent(object{
		"openapi": "3.1.0",
		"info": object{
			"title": "Keystead", "version": "v1",
			"description": "Exact rate limits, counters, locks and ids: the gRPC API as HTTP with JSON.",
		},
		"paths":      paths,
		"components": object{"schemas": schemas, "responses": object{"Problem": problemResponse()}, "parameters": headers()},
	}, "", " ")
	if err != nil {
		panic(err) // maps, strings and numbers
	}
	return append(doc, '\n')
}

// reach notes a message and all that it holds.
func reach(s *shape, in map[*shape]bool) {
	if in[s] {
		return
	}
	in[s] = true
	for _, f := range s.fields {
		if f.message != nil {
			reach(f.message, in)
		}
	}
}

func schemaName(s *shape) string {
	name := strings.TrimPrefix(string(s.desc.FullName()), "keystead.")
	return name
}

func ref(s *shape) object { return object{"$ref": "#/components/schemas/" + schemaName(s)} }

func headers() object {
	header := func(name, about string) object {
		return object{"name": name, "in": "header", "description": about, "schema": object{"type": "string"}}
	}
	return object{
		timeoutHeader: header(timeoutHeader, "How long the call may take: 2s, 250ms, 1m30s. Default: 5s, and what it waits."),
		idempotencyHeader: header(idempotencyHeader,
			"A name for this request, at most 64 bytes: sent again with it, the request acts once. The same as idempotency_key in the body."),
	}
}

// operation describes a method, by GET or by POST.
func (t *route) operation(get bool) object {
	service := string(t.desc.Parent().Name())
	id, tag := service+"_"+string(t.desc.Name()), strings.ToLower(strings.TrimSuffix(service, "Service"))
	params := []any{object{"$ref": "#/components/parameters/" + timeoutHeader}}
	if t.key != nil && !get {
		params = append(params, object{"$ref": "#/components/parameters/" + idempotencyHeader})
	}
	op := object{
		"tags": []string{tag},
		"responses": object{
			"200":     object{"description": "The answer.", "content": object{jsonType: object{"schema": ref(t.answered)}}},
			"default": object{"$ref": "#/components/responses/Problem"},
		},
	}
	if get {
		id += "_get"
		params = append(params, t.asked.queryParameters()...)
	} else {
		op["requestBody"] = object{"required": len(t.asked.fields) > 0, "content": object{jsonType: object{"schema": ref(t.asked)}}}
	}
	op["operationId"], op["parameters"] = id, params
	return op
}

// queryParameters describes the fields of a request as parameters of a GET.
func (s *shape) queryParameters() (params []any) {
	for _, f := range s.fields {
		if !f.simple() {
			continue
		}
		params = append(params, object{"name": f.name, "in": "query", "schema": f.schema(usage{}, true)})
	}
	return params
}

// schema describes a message.
func (u usage) schema(s *shape) object {
	properties, always := object{}, []string{}
	for _, f := range s.fields {
		properties[f.name] = f.schema(u, u.asked[s])
		if !f.desc.HasPresence() && !f.text && (f.enum == nil || f.desc.IsList()) {
			always = append(always, f.name)
		}
	}
	out := object{"type": "object", "properties": properties}
	if u.asked[s] {
		out["additionalProperties"] = false
		if s.rate != nil {
			properties[rateName] = object{"type": "string", "description": "limit and period in one.", "examples": []string{"20/1m"}}
		}
	} else if len(always) > 0 {
		out["required"] = always
	}
	return out
}

// schema describes a field: as it may be sent if it is asked, and as it is written if not.
func (f *field) schema(u usage, asked bool) object {
	one := f.oneSchema(asked)
	if f.desc.IsList() {
		return object{"type": "array", "items": one}
	}
	return one
}

func (f *field) oneSchema(asked bool) object {
	k := f.desc.Kind()
	switch {
	case f.duration && asked:
		return object{"type": "string", "description": "A duration.", "examples": []string{"10s", "250ms", "7d"}}
	case f.duration:
		return object{"type": "string", "description": "A duration in seconds.", "pattern": `^-?[0-9]+(\.[0-9]{1,9})?s$`, "examples": []string{"0.25s"}}
	case f.message != nil:
		return ref(f.message)
	case f.enum != nil:
		return object{"type": "string", "enum": f.enum.known}
	case integer64(k):
		return integerSchema(k, asked)
	}
	switch k {
	case protoreflect.BoolKind:
		return object{"type": "boolean"}
	case protoreflect.BytesKind:
		if f.text {
			return object{"type": "string", "description": "The same bytes as text, if they are UTF-8."}
		}
		return object{"type": "string", "contentEncoding": "base64"}
	case protoreflect.StringKind:
		return object{"type": "string"}
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return object{"type": "number"}
	}
	return object{"type": "integer", "format": k.String()}
}

// integerSchema describes 64 bits, which are written as strings: a number of JSON is read
// with 53 by many.
func integerSchema(k protoreflect.Kind, asked bool) object {
	signed := k == protoreflect.Int64Kind || k == protoreflect.Sint64Kind || k == protoreflect.Sfixed64Kind
	out := object{"type": "string", "format": "uint64", "pattern": "^[0-9]+$"}
	if signed {
		out["format"], out["pattern"] = "int64", "^-?[0-9]+$"
	}
	if asked {
		out["type"] = []string{"string", "integer"}
	}
	return out
}

func problemResponse() object {
	return object{
		"description": "Why the call was not answered (RFC 9457).",
		"content":     object{problemType: object{"schema": object{"$ref": "#/components/schemas/Problem"}}},
		"headers":     object{"Retry-After": object{"description": "Seconds until trying again helps.", "schema": object{"type": "integer"}}},
	}
}

func problemSchema() object {
	text := func(about string) object { return object{"type": "string", "description": about} }
	return object{
		"type": "object", "required": []string{"title", "status", "detail"},
		"properties": object{
			"title": text("That of the status."), "status": object{"type": "integer"}, "detail": text("What went wrong."),
			"reason": text("Why, for machines."), "hint": text("What to do about it."), "field": text("The field at fault."),
			"retry_after": text("When trying again helps, in seconds: 0.25s."), "owner": text("With NOT_OWNER: the node that owns the key."),
			"owner_addr": text("Where its gRPC listens."), "epoch": text("The epoch that says so."),
		},
	}
}
