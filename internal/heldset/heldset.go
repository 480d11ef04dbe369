// Package heldset names what a session holds, for clients and nodes alike: each grant by a
// hash of its key, name and token, and all of them by one digest.
//
// # Guarantee
//
// Two sets have the same digest if they are the same, in whatever order; and hardly
// otherwise: by chance once in 2^64. The hash is part of the API (keystead.session.v1).
//
// # Picture
//
//	key ── xxhash64 ─▶ mix ─▶ + ◀─ xxhash64 ── name
//	                          mix ─▶ + token ─▶ mix ─▶ hash ─▶ XOR ─▶ digest
//
// # Non-guarantee
//
// A client that chooses its keys and tokens can find sets with one digest. It deceives itself.
package heldset

import "github.com/cespare/xxhash/v2"

// Hash names a grant.
func Hash(key, name string, token uint64) uint64 {
	return mix(mix(mix(xxhash.Sum64String(key))+xxhash.Sum64String(name)) + token)
}

func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xBF58476D1CE4E5B9
	x ^= x >> 27
	x *= 0x94D049BB133111EB
	return x ^ x>>31
}

// Digest names a set by the hashes of what is in it.
func Digest(hashes []uint64) (digest uint64) {
	for _, h := range hashes {
		digest ^= h
	}
	return digest
}
