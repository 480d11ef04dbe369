package heldset

import "testing"

// The hash is part of the API: other languages compute it, too.
func TestHashIsWhatTheAPISays(t *testing.T) {
	for _, x := range []struct {
		key, name string
		token     uint64
		hash      uint64
	}{
		{"db", "semaphore", 1, 0x3cd9833dec9e2a3d},
		{"", "", 0, 0xf1b8b8579eb6535},
		{"schlüssel", "n", 1<<63 - 1, 0x73dcf2dcfd1aa8f1},
	} {
		if h := Hash(x.key, x.name, x.token); h != x.hash {
			t.Errorf("%q %q %d: %#x, not %#x", x.key, x.name, x.token, h, x.hash)
		}
	}
}

func TestDigestKnowsNoOrder(t *testing.T) {
	a, b, c := Hash("k", "n", 1), Hash("k", "n", 2), Hash("n", "k", 1)
	if a == b || a == c || Digest([]uint64{a, b, c}) != Digest([]uint64{c, a, b}) || Digest([]uint64{a, b}) == Digest([]uint64{a, c}) {
		t.Errorf("%x %x %x", a, b, c)
	}
}
