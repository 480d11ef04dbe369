package system

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The example loses a deposit without a fence, and none with one.
func TestPausedHolder(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "paused-holder")
	if out, err := exec.Command("go", "build", "-o", program, "github.com/keystead/keystead/examples/paused-holder").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.Command(program, "--keystead", shared).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const want = `Without a fence:
  the first has the lock and reads 0
  the first is stopped, just before it writes
  the second has the lock and reads 0
  the second has written
  the first goes on
  the first has written
  200 was paid in, and 100 is there
With one:
  the first has the lock and reads 0
  the first is stopped, just before it writes
  the second has the lock and reads 0
  the second has written
  the first goes on
  the first is refused: its token is older. It begins anew
  the first has the lock and reads 100
  the first has written
  200 was paid in, and 200 is there
`
	if string(out) != want {
		t.Errorf("it says:\n%s", strings.TrimSpace(string(out)))
	}
}
