package judge

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/anishathalye/porcupine"
)

// Keep writes a history into a directory, which is made: result.json,
// events.json, calls.json (all calls and writes), orders.json if there were any, and
// for each object that a model found illegal its operations as text and as a page of
// porcupine's visualization.
func Keep(dir string, c Case, r Result) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	files := map[string]any{"result.json": r, "events.json": c.Events, "calls.json": c.Record}
	if len(c.Orders) > 0 {
		files["orders.json"] = c.Orders
	}
	for name, v := range files {
		data, err := json.MarshalIndent(v, "", " ")
		if err != nil {
			return fmt.Errorf("judge: %s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return err
		}
	}
	for _, f := range r.Findings {
		if f.Violation == nil {
			continue
		}
		base := filepath.Join(dir, strings.ReplaceAll(f.Object, string(filepath.Separator), "_"))
		if err := os.WriteFile(base+".txt", []byte(f.Violation.Error()), 0o644); err != nil {
			return err
		}
		if err := porcupine.VisualizePath(f.Violation.Model, f.Violation.Info, base+".html"); err != nil {
			return err
		}
	}
	return nil
}
