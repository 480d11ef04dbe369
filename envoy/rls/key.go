package rls

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"time"
)

// A descriptor is the object (key, name) in Keystead.
//
// The key is the domain and then key and value of each entry, each with its
// length in bytes before it and a colon between: domain "web" and the entry
// (path, /a) make "3:web4:path2:/a". A length says where the next
// one begins, so two lists of strings never make the same key. A value that a
// wildcard with share_threshold stands for is written as the pattern, with '*' in
// place of the colon, which no value has there.
//
// Where that is longer than a key may be, the key is "#" and the SHA-256 of it in
// hex. No other key begins with "#"; two long ones are the same only if SHA-256
// collides.
//
// The name is the algorithm, or "aligned", and the period. A limit whose number changes goes on
// from what was spent; one whose unit or algorithm changes begins anew.

// maxKey is the longest key of Keystead's API, in bytes.
const maxKey = 512

// appendPart adds a string to a key.
func appendPart(key []byte, mark byte, part string) []byte {
	key = strconv.AppendInt(key, int64(len(part)), 10)
	key = append(key, mark)
	return append(key, part...)
}

// The marks between a length and its string.
const (
	asItIs    = ':'
	asPattern = '*'
)

// fit returns the key that goes to Keystead.
func fit(key []byte) string {
	if len(key) <= maxKey {
		return string(key)
	}
	sum := sha256.Sum256(key)
	return "#" + hex.EncodeToString(sum[:])
}

// objectName returns the name of the objects of a limit.
func objectName(a Algorithm, aligned bool, period time.Duration) string {
	name := a.String()
	if aligned {
		name = "aligned"
	}
	return "envoy.rls/" + name + "/" + strconv.FormatInt(int64(period/time.Second), 10) + "s"
}
