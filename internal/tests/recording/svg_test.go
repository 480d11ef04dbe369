package main

import (
	"bufio"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const red, onBlue, plain = "\x1b[31m", "\x1b[30;48;5;39m", "\x1b[0m"

func TestRuns(t *testing.T) {
	got := runs("a" + onBlue + "A" + plain + onBlue + "B" + plain + red + "bad" + plain)
	want := []run{{"a", "", ""}, {"AB", "", "#00afff"}, {"bad", "#ff7b72", ""}}
	if !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
}

// What a terminal is sent is cut into drawings, also where it comes in pieces.
func TestDrawings(t *testing.T) {
	const sent = "\x1b[?1049h\x1b[?25l\x1b[Hone\x1b[K\r\ntwo\x1b[K\r\n\x1b[J\x1b[H" + red + "three" + plain + "\x1b[K\r\n\x1b[J\x1b[Hhalf"
	var got []string
	s := bufio.NewScanner(oneByte{strings.NewReader(sent)})
	s.Split(whole)
	for s.Scan() {
		got = append(got, s.Text())
	}
	if want := []string{"one\ntwo", red + "three" + plain}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

type oneByte struct{ r io.Reader }

func (o oneByte) Read(p []byte) (int, error) { return o.r.Read(p[:1]) }

// A film is well-formed, and says when the counter waited.
func TestFilm(t *testing.T) {
	f := &film{victim: "n<2>", killed: 2 * time.Second, rings: []picture{{0, onBlue + "A" + plain + " <x>"}, {4 * time.Second, "two"}}}
	for i := range 40 {
		at := time.Duration(i) * 100 * time.Millisecond
		if i >= 20 {
			at += 1900 * time.Millisecond
		}
		a := answer{at: at, took: time.Millisecond, value: int64(i)}
		if i == 20 {
			a.took = 1900 * time.Millisecond
		}
		f.adds = append(f.adds, a)
	}
	text := f.svg()
	wellFormed(t, text)
	for _, want := range []string{"kill -9 n&lt;2&gt;", "19  … no answer for 1.0 s", "the longest add took 1.9 s", `fill="#00afff"`, "&lt;x&gt;"} {
		if !strings.Contains(text, want) {
			t.Errorf("it lacks %q", want)
		}
	}
}

// The recording in the documents is one of this program, and small.
func TestRecorded(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "failover.svg"))
	if err != nil {
		t.Fatal(err)
	}
	wellFormed(t, string(text))
	if len(text) > 200<<10 || strings.Contains(string(text), "<script") || !strings.Contains(string(text), "none is lost or counted twice") {
		t.Errorf("%d bytes", len(text))
	}
}

func wellFormed(t *testing.T, text string) {
	t.Helper()
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}
