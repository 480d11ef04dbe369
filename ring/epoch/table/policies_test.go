package table

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"
)

func setPolicies(id string, expect uint64, text string) Command {
	packed, err := PackPolicies([]byte(text))
	if err != nil {
		panic(err)
	}
	return Command{ID: id, Policies: &SetPolicies{Expect: expect, Packed: packed}}
}

func TestPoliciesAreSetByVersion(t *testing.T) {
	tab := &Table{Cluster: "test", Level: PoliciesLevel, Epoch: 700}
	var p *Policies
	for _, step := range []struct {
		c       Command
		version uint64
		why     string
	}{
		{setPolicies("a", 5, "a"), 0, "the policies have version 0, and not 5"},
		{setPolicies("b", 0, "b"), 700, ""},
		{setPolicies("b", 0, "b"), 700, ""},  // it comes again
		{setPolicies("b2", 3, "b"), 700, ""}, // … from somebody else
		{setPolicies("c", 0, "c"), 700, "the policies have version 700, and not 0"},
		{setPolicies("d", 700, "d"), 701, ""},
		{setPolicies("e", 700, "e"), 701, "the policies have version 701, and not 700"},
		{Command{ID: "f", Policies: &SetPolicies{Expect: 701, Packed: make([]byte, MaxPacked+1)}}, 701, "at most 393216 are allowed"},
	} {
		next, err := p.After(tab, step.c)
		if p = next; p.Version != step.version || (err == nil) != (step.why == "") || err != nil && !strings.Contains(err.Error(), step.why) {
			t.Fatalf("%s: version %d, %v", step.c.ID, p.Version, err)
		}
	}
	if text, err := p.Text(); err != nil || string(text) != "d" {
		t.Errorf("%q, %v", text, err)
	}
	// A cluster that lost all it knew is in a later epoch.
	if next, err := (*Policies)(nil).After(&Table{Cluster: "test", Level: PoliciesLevel, Epoch: 9000}, setPolicies("x", 0, "x")); err != nil || next.Version != 9000 {
		t.Errorf("%+v, %v", next, err)
	}
	if _, err := p.After(&Table{Cluster: "test", Level: PoliciesLevel - 1, Epoch: 1}, setPolicies("x", 701, "x")); err == nil {
		t.Error("they are set although a process may come that does not know them")
	}
	if _, err := p.After(&Table{}, setPolicies("x", 701, "x")); err == nil {
		t.Error("they are set without a cluster")
	}
	if _, err := tab.Apply(setPolicies("x", 701, "x")); err == nil || setPolicies("x", 0, "").Level() != PoliciesLevel {
		t.Error("they change the table, or nodes of before are told of them")
	}
}

func TestPoliciesInSnapshots(t *testing.T) {
	tab, err := (&Table{}).Apply(Command{Init: &Init{Cluster: "test", UID: "u", Epoch: 7, Level: Level}})
	if err != nil {
		t.Fatal(err)
	}
	p, err := (*Policies)(nil).After(tab, setPolicies("a", 0, "policies: {}"))
	if err != nil {
		t.Fatal(err)
	}
	got, with, err := RestoreWith(tab.EncodeWith(p))
	if err != nil || got.Epoch != 7 || with.Version != 7 || with.ID != "a" || !bytes.Equal(with.Packed, p.Packed) {
		t.Errorf("%+v, %+v, %v", got, with, err)
	}
	if _, with, err := RestoreWith(tab.Encode()); err != nil || with != nil {
		t.Errorf("%+v, %v", with, err)
	}
	if bytes.Contains(tab.Encode(), []byte("policies")) {
		t.Error("a table without policies is written as no program of before can read it")
	}
	for _, bad := range []*Policies{{Version: 0, ID: "a"}, {Version: 1, Packed: make([]byte, MaxPacked+1)}} {
		if _, _, err := RestoreWith(tab.EncodeWith(bad)); err == nil {
			t.Errorf("policies of version %d with %d bytes were restored", bad.Version, len(bad.Packed))
		}
	}
}

func TestPackPolicies(t *testing.T) {
	text := bytes.Repeat([]byte("  per-user: {limit: 100/1m}\n"), MaxPolicies/28)
	packed, err := PackPolicies(text)
	if err != nil || len(packed) > MaxPacked/10 {
		t.Fatalf("%d bytes, %v", len(packed), err)
	}
	if back, err := (&Policies{Packed: packed}).Text(); err != nil || !bytes.Equal(back, text) {
		t.Error("another text came back", err)
	}
	if _, err := PackPolicies(make([]byte, MaxPolicies+1)); err == nil {
		t.Error("a text that is too long was packed")
	}
	noise := make([]byte, MaxPolicies)
	rnd := rand.New(rand.NewPCG(1, 1))
	for i := range noise {
		noise[i] = byte(rnd.Uint32())
	}
	if _, err := PackPolicies(noise); err == nil {
		t.Error("a text was packed that does not fit an entry of the log")
	}
	for _, bad := range [][]byte{{0xff}, packed[:len(packed)/2], pack(t, make([]byte, MaxPolicies+1))} {
		if _, err := (&Policies{Packed: bad}).Text(); err == nil {
			t.Errorf("%d damaged bytes were unpacked", len(bad))
		}
	}
}

// pack packs a text that may be too long.
func pack(t *testing.T, text []byte) []byte {
	var b bytes.Buffer
	w := newPacker(&b)
	if _, err := w.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
