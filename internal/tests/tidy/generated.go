package tidy

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

const (
	protoSum   = "proto/generated.sum"
	toolModule = "internal/tools/go.mod" // pins what generates
)

// ProtoSum returns the SHA-256, in hexadecimal, of what is in proto and of the versions of
// the tools that generate. Names and contents count.
func ProtoSum(t *Tree) (string, error) {
	paths := []string{toolModule}
	for _, p := range t.Paths {
		if within(p, "proto") && p != protoSum {
			paths = append(paths, p)
		}
	}
	slices.Sort(paths)
	sum := sha256.New()
	for _, p := range paths {
		text, err := fs.ReadFile(t.FS, p)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(sum, "%s %d\n", p, len(text))
		sum.Write(text)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// Generated checks that proto is as `go generate ./proto` has left it. It generates
// nothing: buf takes minutes to build.
func Generated(t *Tree) []Finding {
	wrong := func(what string) []Finding {
		return []Finding{{Rule: "generated", Path: protoSum, What: what}}
	}
	have, err := fs.ReadFile(t.FS, protoSum)
	if errors.Is(err, fs.ErrNotExist) && !slices.ContainsFunc(t.Paths, func(p string) bool { return within(p, "proto") }) {
		return nil
	}
	if err != nil {
		return wrong(err.Error())
	}
	want, err := ProtoSum(t)
	if err != nil {
		return wrong(err.Error())
	}
	if strings.TrimSpace(string(have)) != want {
		return wrong("proto or the versions of its tools have changed since `go generate ./proto`: run it")
	}
	return nil
}
