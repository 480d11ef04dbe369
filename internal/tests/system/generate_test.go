//go:build system

package system

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestGenerate has the templates of examples/generate make code. They name plugins of
// this machine: nothing is asked of a registry of buf.
func TestGenerate(t *testing.T) {
	t.Parallel()
	top, err := filepath.Abs(filepath.Join("..", "..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	modules := t.TempDir()
	npm := exec.CommandContext(t.Context(), "npm", "install", "--prefix", modules, "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock",
		"--loglevel=error", "@bufbuild/protoc-gen-es@2.13.0")
	if out, err := npm.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for language, files := range map[string][]string{
		"python":     {"lock_pb2.py", "lock_pb2_grpc.py"},
		"java":       {"Lock.java", "LockServiceGrpc.java"},
		"typescript": {"lock_pb.ts"},
	} {
		to := t.TempDir()
		buf := exec.CommandContext(t.Context(), "go", "tool", "-modfile=../internal/tools/go.mod", "buf", "generate",
			"--template", filepath.Join(top, "examples", "generate", language+".yaml"), "--output", to)
		buf.Dir = filepath.Join(top, "proto")
		buf.Env = append(os.Environ(), "PATH="+filepath.Join(modules, "node_modules", ".bin")+":"+os.Getenv("PATH"))
		if out, err := buf.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", language, err, out)
			continue
		}
		for _, file := range files {
			if _, err := os.Stat(filepath.Join(to, "keystead", "lock", "v1", file)); err != nil {
				t.Errorf("%s: %v", language, err)
			}
		}
	}
}
