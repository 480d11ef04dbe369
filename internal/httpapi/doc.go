// Package httpapi serves the API as HTTP with JSON, on a port of its own. It knows no
// service by name: paths, fields and the OpenAPI document are made of the descriptors of
// the services that are offered to it.
//
//	POST /v1/limit/check       LimitService.Check, the request as a JSON object
//	GET  /v1/counter/get?key=k calls without side effects, fields as query parameters
//	GET  /openapi.json         what there is, OpenAPI 3.1
//
// A call is handed to the same chain as one over gRPC (API.Call): its bounds, its
// metrics, and whatever else is asked of callers. What is bounded here is what comes
// before: connections, headers, bodies, and the time that they take. A caller that closes
// its connection cancels its call, also when it has sent more before (conn).
//
// # How a message looks in JSON
//
// As protobuf writes it (64-bit integers are strings, bytes are base64), but for:
//
//   - Names are those of the .proto files. lowerCamelCase is read as well.
//   - A field x_ns is x, a duration: "10s", "1.5s", "250ms", "7d". It is written in
//     seconds: "0.25s".
//   - A field x of bytes is x_text as well, as text: read, and written, if it is UTF-8.
//   - limit and period of a request may be one field, rate: "20/1m".
//   - A value of an enum has no prefix: "TOKEN_BUCKET", "token_bucket". It is left out
//     where it is unspecified. All else that is not set is written: false, "0", "".
//   - A field that is not known is an error, which names the nearest that is.
//
// Errors are problem details (RFC 9457) with reason, hint, field and retry_after. An
// answer such as "over the limit" is no error: 200, and allowed is false.
//
// # What is not offered
//
// Streams (StreamCheck, Watch): use batches, and poll. HTTP/2, TLS and CORS: a proxy
// has them. A request from a web page is refused (notOfPages).
package httpapi
