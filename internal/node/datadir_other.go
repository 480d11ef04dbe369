//go:build !unix

package node

// lockDir trusts the operator on platforms without flock.
func lockDir(string) (release func() error, err error) {
	return func() error { return nil }, nil
}

func shareDir(string) (release func() error, err error) {
	return func() error { return nil }, nil
}
