// Package points builds the program with its fail points. A point is a comment
// of go.etcd.io/gofail at a step of the protocol,
//
//	// gofail: var handoffFlipFrozen struct{}
//
// and nothing but a comment in a normal build. Here, copies of the files that have
// points are turned into code that asks gofail's runtime at each of them, and the
// go command is told to compile the copies (-overlay): the work tree stays as it
// is.
//
// # Points
//
// A name is that of the package and of the step, a word each. The step comes after
// what the name says, unless it says otherwise.
//
//	handoffFlipFrozen      rows that are handed over are frozen; nothing is flushed
//	handoffFlipFlushed     … are with all that are to have them; the Flip is proposed next
//	handoffFlipAnswered    … are the other's, or not: the proposal has its answer
//	handoffSyncFlushed     answers wait for a new standby, which has all; the Sync is proposed next
//	handoffSyncAnswered    the Sync has its answer
//	handoffUnsyncPropose   before the Unsync of a standby is proposed
//	handoffUnsyncAnswered  the Unsync has its answer
//	handoffCopyPart        in the midst of a copy, again and again
//	handoffTargetBegin     a target, before it forgets what it has of rows
//	handoffTargetInstall   a target, before it takes a record in
//	handoffTargetInstalled … after that, before it counts as taken in
//	feedAckSend            a target, before it acknowledges a batch
//	epochProposeReceived   the leader, before it proposes what another node asked for
//	epochApplied           the leader, when a command is committed and applied there; with
//	                       return("flip") the answer to each Flip is raft.ErrLeadershipLost
//	epochLearn             before a node goes by the next table; it stays behind
//	epochRenewSend         before a node sends a renewal of its lease
//	rpcDecided             an operation is decided, and its record on its way; before the wait
//	                       for copies
//	rpcConfirmed           an answer may be told, and does not leave yet
//	forwardSend            a node has calls for another one, and sends them next, in one message
//	forwardManyConfirmed   answers to calls that another node passed on may be told, and do
//	                       not leave yet
//	homePlant              the home of an object has read it, and is about to plant its parts
//	homePlanted            all parts are planted, and not served yet
//	homeReaped             the home has read all parts of a split that is being closed
//	homeUnited             the home has put the object together, and does not serve it yet
//	nodeRetire             a node that stops lets nothing in any more, and has its lease
//	nodeStop               … has ended its streams, and is still in raft
//
// # Terms
//
// What a point does is set by its terms: sleep("1.5s"), panic, print, return("flip")
// for a point with a type, 1*sleep("1s") for the first time only, and 1*off->panic
// for the second. They come from the environment (GOFAIL_FAILPOINTS, by name), or
// are PUT to http://$GOFAIL_HTTP/name, where GET of name/count says how often a
// point did something.
//
// A point that sleeps holds up all that come to it, whatever its terms count,
// until other terms are PUT or the point is DELETEd; those that are held up already
// stay so for their time.
//
// # Non-guarantees
//
// Gofail reads its counts without a lock: a build with points and the race detector
// reports that.
package points

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"go.etcd.io/gofail/code"
)

// Point is a fail point.
type Point struct {
	Name string
	File string // relative to the root
}

// mark is what the comment of a point begins with, in a line of its own.
const mark = "// gofail:"

// bindings is the file, beside the sources of a package, that declares its points.
// It is there in the overlay only.
const bindings = "points.fail.go"

// Overlay writes into dir what a build with points compiles instead of the files
// below root, both absolute, and a file for the flag -overlay of the go command,
// whose path it returns. Points are in the order of their files.
func Overlay(root, dir string) (overlay string, points []Point, err error) {
	replace := map[string]string{}
	packages := map[string][]*code.Failpoint{} // by directory
	names := map[string]string{}               // of the packages
	err = sources(root, func(path string, text []byte) error {
		var out bytes.Buffer
		found, err := code.ToFailpoints(&out, bytes.NewReader(text))
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if len(found) == 0 {
			return nil
		}
		to := filepath.Join(dir, strconv.Itoa(len(replace))+".go")
		replace[path] = to
		pkg, err := parser.ParseFile(token.NewFileSet(), path, text, parser.PackageClauseOnly)
		if err != nil {
			return err
		}
		in := filepath.Dir(path)
		packages[in], names[in] = append(packages[in], found...), pkg.Name.Name
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		for _, p := range found {
			points = append(points, Point{p.Name(), rel})
		}
		return os.WriteFile(to, out.Bytes(), 0o600)
	})
	if err != nil {
		return "", nil, err
	}
	for in, found := range packages {
		var out bytes.Buffer
		if err := code.NewBinding(names[in], found).Write(&out); err != nil {
			return "", nil, err
		}
		to := filepath.Join(dir, strconv.Itoa(len(replace))+".go")
		replace[filepath.Join(in, bindings)] = to
		if err := os.WriteFile(to, out.Bytes(), 0o600); err != nil {
			return "", nil, err
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", nil, err
	}
	overlay = filepath.Join(dir, "overlay.json")
	return overlay, points, os.WriteFile(overlay, text, 0o600)
}

// sources calls each with the Go files below root that may have points.
func sources(root string, each func(path string, text []byte) error) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata"):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for line := range bytes.Lines(text) {
			if bytes.HasPrefix(bytes.TrimSpace(line), []byte(mark)) {
				return each(path, text)
			}
		}
		return nil
	})
}

// Build builds keystead with its points, of the sources below root, to the file
// out.
func Build(ctx context.Context, root, out string) error {
	dir, err := os.MkdirTemp("", "keystead-points-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if root, err = filepath.Abs(root); err != nil {
		return err
	}
	if out, err = filepath.Abs(out); err != nil {
		return err
	}
	overlay, _, err := Overlay(root, dir)
	if err != nil {
		return err
	}
	build := exec.CommandContext(ctx, "go", "build", "-overlay", overlay, "-o", out, "./cmd/keystead")
	build.Dir = root
	if text, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("building keystead with fail points: %w\n%s", err, text)
	}
	return nil
}
