//go:build system

package system

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// pythonImports imports the generated modules in the directory that it is given.
const pythonImports = `import importlib, pathlib, sys
top = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(top))
for path in sorted(top.rglob("*.py")):
    importlib.import_module(".".join(path.relative_to(top).with_suffix("").parts))
`

// javaLibraries is what generated Java needs, where Debian's packages have it.
const javaLibraries = "/usr/share/java/protobuf.jar:/usr/share/java/grpc-api.jar:/usr/share/java/grpc-stub.jar:" +
	"/usr/share/java/grpc-protobuf.jar:/usr/share/java/guava.jar:/usr/share/java/geronimo-annotation-1.3-spec.jar"

// TestGenerate has the templates of examples/generate make code, and what reads that code
// take it. They name plugins of this machine: nothing is asked of a registry of buf.
func TestGenerate(t *testing.T) {
	t.Parallel()
	top, err := filepath.Abs(filepath.Join("..", "..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	modules := t.TempDir()
	must := func(cmd *exec.Cmd) bool {
		t.Helper()
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", filepath.Base(cmd.Path), err, out)
		}
		return err == nil
	}
	if !must(exec.CommandContext(t.Context(), "npm", "install", "--prefix", modules, "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock",
		"--loglevel=error", "@bufbuild/protoc-gen-es@2.13.0", "@bufbuild/protobuf@2.13.0", "typescript@5.9.3")) {
		return
	}
	bin := filepath.Join(modules, "node_modules", ".bin")
	for language, l := range map[string]struct {
		files []string
		check func(ctx context.Context, dir string) *exec.Cmd
	}{
		"python": {[]string{"lock_pb2.py", "lock_pb2_grpc.py"}, func(ctx context.Context, dir string) *exec.Cmd {
			return exec.CommandContext(ctx, "/usr/bin/python3", "-c", pythonImports, dir)
		}},
		"java": {[]string{"Lock.java", "LockServiceGrpc.java"}, func(ctx context.Context, dir string) *exec.Cmd {
			return exec.CommandContext(ctx, "javac", append([]string{"-proc:none", "-nowarn", "-cp", javaLibraries, "-d", t.TempDir()}, below(t, dir, ".java")...)...)
		}},
		"typescript": {[]string{"lock_pb.ts"}, func(ctx context.Context, dir string) *exec.Cmd {
			return exec.CommandContext(ctx, filepath.Join(bin, "tsc"), append([]string{"--noEmit", "--strict", "--target", "es2022", "--module", "nodenext"}, below(t, dir, ".ts")...)...)
		}},
	} {
		to := filepath.Join(modules, "generated-"+language) // beside the packages that TypeScript needs
		buf := exec.CommandContext(t.Context(), "go", "tool", "-modfile=../internal/tools/go.mod", "buf", "generate",
			"--template", filepath.Join(top, "examples", "generate", language+".yaml"), "--output", to)
		buf.Dir = filepath.Join(top, "proto")
		buf.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
		if !must(buf) {
			continue
		}
		for _, file := range l.files {
			if _, err := os.Stat(filepath.Join(to, "keystead", "lock", "v1", file)); err != nil {
				t.Errorf("%s: %v", language, err)
			}
		}
		must(l.check(t.Context(), to))
	}
}

// below returns the files of a directory and all below it whose names end so.
func below(t *testing.T, dir, ending string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ending) {
			files = append(files, path)
		}
		return err
	})
	if err != nil || len(files) == 0 {
		t.Errorf("%d files of %s in %s: %v", len(files), ending, dir, err)
	}
	return files
}
