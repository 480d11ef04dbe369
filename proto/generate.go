// Package proto holds the API of Keystead as .proto files and the Go code made
// from them. Regenerate with `go generate ./proto`.
package proto

//go:generate go tool -modfile=../internal/tools/go.mod buf lint
//go:generate go tool -modfile=../internal/tools/go.mod buf generate
//go:generate go run ../internal/tests/tidy/protosum
