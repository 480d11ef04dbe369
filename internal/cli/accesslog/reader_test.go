package accesslog

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// logLine is a synthetic line of a client.
func logLine(client string) string {
	return client + ` - - ` + stamp + ` "GET /page?q=1 HTTP/1.1" 200 5120 "http://from.example/list" ` +
		`"Mozilla/5.0 (X11; Linux x86_64; rv:120.0) Gecko/20100101 Firefox/120.0"`
}

// readAll returns the clients of a log.
func readAll(r *Reader) (clients []string, err error) {
	for {
		e, err := r.Next()
		if err != nil {
			if err == io.EOF {
				err = nil
			}
			return clients, err
		}
		clients = append(clients, string(e.ClientIP))
	}
}

// longLine is a line of n bytes.
func longLine(n int) string {
	s := logLine("long")
	return s[:len(s)-1] + strings.Repeat("x", n-len(s)) + `"`
}

func zip(members ...string) string {
	var b bytes.Buffer
	for _, m := range members {
		w := gzip.NewWriter(&b)
		if _, err := io.WriteString(w, m); err != nil {
			panic(err)
		}
		if err := w.Close(); err != nil {
			panic(err)
		}
	}
	return b.String()
}

func TestReader(t *testing.T) {
	a, b, c := logLine("a"), logLine("b"), logLine("c")
	tests := []struct {
		name    string
		log     string
		clients []string
		lines   int64
		empty   int64
		broken  []BrokenLine
	}{
		{name: "nothing"},
		{name: "one byte", log: "x", lines: 1, broken: []BrokenLine{{1, errStart.Error(), "x"}}},
		{name: "lines", log: a + "\n" + b + "\n", clients: []string{"a", "b"}, lines: 2},
		{name: "last line without end", log: a + "\n" + b, clients: []string{"a", "b"}, lines: 2},
		{name: "CRLF", log: a + "\r\n" + b + "\r\n" + c + "\r", clients: []string{"a", "b", "c"}, lines: 3},
		{name: "empty lines", log: "\n" + a + "\n\r\n\n" + b + "\n\n", clients: []string{"a", "b"}, lines: 6, empty: 4},
		{name: "broken lines", log: a + "\nh - - nothing \x1b[2J\u00e4\n" + b, clients: []string{"a", "b"}, lines: 3,
			broken: []BrokenLine{{2, errTime.Error(), `h - - nothing \x1b[2J\xc3\xa4`}}},
		{name: "only so many samples", log: strings.Repeat("x\n", 7), lines: 7, broken: []BrokenLine{
			{1, errStart.Error(), "x"}, {2, errStart.Error(), "x"}, {3, errStart.Error(), "x"}, {4, errStart.Error(), "x"}, {5, errStart.Error(), "x"}, {}, {}}},
		{name: "longest line", log: longLine(MaxLine) + "\r\n" + a, clients: []string{"long", "a"}, lines: 2},
		{name: "longest line at the end", log: longLine(MaxLine), clients: []string{"long"}, lines: 1},
		{name: "too long by one", log: longLine(MaxLine+1) + "\n" + a, clients: []string{"a"}, lines: 2,
			broken: []BrokenLine{{1, errTooLong.Error(), longLine(300)[:80]}}},
		{name: "far too long", log: longLine(5*MaxLine) + "\n" + a, clients: []string{"a"}, lines: 2,
			broken: []BrokenLine{{1, errTooLong.Error(), longLine(300)[:80]}}},
		{name: "far too long at the end", log: a + "\n" + longLine(5*MaxLine), clients: []string{"a"}, lines: 2,
			broken: []BrokenLine{{2, errTooLong.Error(), longLine(300)[:80]}}},
		{name: "gzip", log: zip(a + "\n" + b), clients: []string{"a", "b"}, lines: 2},
		{name: "gzip of several members", log: zip(a+"\n"+b[:9], b[9:]+"\n", "", c), clients: []string{"a", "b", "c"}, lines: 3},
		{name: "gzip of nothing", log: zip("")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, wrap := range []func(io.Reader) io.Reader{
				func(r io.Reader) io.Reader { return r }, iotest.OneByteReader, iotest.DataErrReader,
			} {
				r := NewReader(wrap(strings.NewReader(tt.log)))
				clients, err := readAll(r)
				if err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(clients, tt.clients) {
					t.Errorf("clients %q, want %q", clients, tt.clients)
				}
				if r.Lines() != tt.lines || r.Empty() != tt.empty || r.Broken() != int64(len(tt.broken)) || r.Entries() != int64(len(tt.clients)) {
					t.Errorf("%d lines, %d empty, %d broken, %d entries; want %d, %d, %d, %d", r.Lines(), r.Empty(), r.Broken(), r.Entries(),
						tt.lines, tt.empty, len(tt.broken), len(tt.clients))
				}
				if want := tt.broken[:min(len(tt.broken), MaxSamples)]; !slices.Equal(r.Samples(), want) {
					t.Errorf("samples %+v, want %+v", r.Samples(), want)
				}
			}
		})
	}
}

func TestReaderFails(t *testing.T) {
	packed := zip(strings.Repeat(logLine("a")+"\n", 50))
	broke := errors.New("the disk broke")
	tests := []struct {
		name    string
		src     io.Reader
		entries int64
		want    error
	}{
		{name: "at once", src: iotest.ErrReader(broke), want: broke},
		{name: "after a line and a half", src: io.MultiReader(strings.NewReader(logLine("a")+"\n"+logLine("b")), iotest.ErrReader(broke)), entries: 1, want: broke},
		{name: "in a line that is too long", src: io.MultiReader(strings.NewReader(longLine(3*MaxLine)), iotest.ErrReader(broke)), want: broke},
		{name: "gzip cut off", src: strings.NewReader(packed[:len(packed)-4]), entries: 50, want: io.ErrUnexpectedEOF},
		{name: "gzip cut off in its header", src: strings.NewReader(packed[:2]), want: io.ErrUnexpectedEOF},
		{name: "gzip damaged", src: strings.NewReader(packed[:len(packed)-8] + "12345678"), entries: 50, want: gzip.ErrChecksum},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := NewReader(tt.src)
			_, err := readAll(r)
			if !errors.Is(err, tt.want) {
				t.Fatalf("error %v, want %v", err, tt.want)
			}
			if r.Entries() != tt.entries {
				t.Errorf("%d entries, want %d", r.Entries(), tt.entries)
			}
			if _, again := r.Next(); again != err {
				t.Errorf("the next call says %v, not %v again", again, err)
			}
		})
	}
}

func TestReaderAllocatesNothingPerLine(t *testing.T) {
	const lines = 2000
	log := strings.Repeat(logLine("203.0.113.77")+"\n", lines)
	by, err := ParseBy("client_ip,path")
	if err != nil {
		t.Fatal(err)
	}
	key := make([]byte, 0, 64)
	allocs := testing.AllocsPerRun(5, func() {
		for r := NewReader(strings.NewReader(log)); ; {
			e, err := r.Next()
			if err != nil {
				return
			}
			key = by.AppendKey(key[:0], e)
		}
	})
	if allocs > 20 {
		t.Errorf("%v allocations for %d lines", allocs, lines)
	}
}

func BenchmarkReader(b *testing.B) {
	var log bytes.Buffer
	for i := range 10_000 {
		fmt.Fprintln(&log, logLine(fmt.Sprintf("198.51.%d.%d", i/100%100, i%100)))
	}
	by, err := ParseBy("client_ip")
	if err != nil {
		b.Fatal(err)
	}
	var key []byte
	b.SetBytes(int64(log.Len()))
	b.ReportAllocs()
	for b.Loop() {
		for r := NewReader(bytes.NewReader(log.Bytes())); ; {
			e, err := r.Next()
			if err != nil {
				break
			}
			key = by.AppendKey(key[:0], e)
		}
	}
}

// A file that is something else is not read to its end.
func TestReaderOfSomethingElse(t *testing.T) {
	r := NewReader(strings.NewReader(strings.Repeat("x\n", MaxStrange+10)))
	if _, err := r.Next(); !errors.Is(err, ErrStrange) || r.Broken() != MaxStrange || r.Lines() != MaxStrange {
		t.Errorf("error %v after %d lines", err, r.Lines())
	}
	r = NewReader(strings.NewReader(logLine("a") + "\n" + strings.Repeat("x\n", MaxStrange+10)))
	if clients, err := readAll(r); err != nil || len(clients) != 1 || r.Broken() != MaxStrange+10 {
		t.Errorf("error %v, %d entries, %d broken", err, len(clients), r.Broken())
	}
}
