package accesslog

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// show writes an entry in full, one field after the other.
func show(e *Entry) string {
	return fmt.Sprintf("%s|%s|%s|%s|%s %s %s %s|%d %d|%s|%s", e.ClientIP, e.Ident, e.User, e.Time.Format(time.RFC3339),
		e.Method, e.Path, e.Query, e.Proto, e.Status, e.Bytes, e.Referer, e.UserAgent)
}

const stamp = `[02/Mar/2024:23:59:58 +0100]`

func TestParse(t *testing.T) {
	const start, at = "203.0.113.9 - - " + stamp, "203.0.113.9|-|-|2024-03-02T22:59:58Z|"
	tests := []struct {
		name string
		line string
		want string
		err  error
	}{
		{name: "common", line: start + ` "GET /a HTTP/1.1" 200 17`, want: at + "GET /a  HTTP/1.1|200 17||"},
		{name: "combined", line: start + ` "GET /a?b=c?d HTTP/1.1" 404 - "http://from/" "agent (x)/1"`,
			want: at + "GET /a b=c?d HTTP/1.1|404 0|http://from/|agent (x)/1"},
		{name: "no headers", line: start + ` "HEAD / HTTP/2.0" 304 0 "-" "-"`, want: at + "HEAD /  HTTP/2.0|304 0|-|-"},
		{name: "more fields", line: start + ` "GET /a HTTP/1.1" 200 17 "r" "u" "198.51.100.1" 0.004`,
			want: at + "GET /a  HTTP/1.1|200 17|r|u"},
		{name: "other fields", line: start + ` "GET /a HTTP/1.1" 200 17 0.004 "x"`, want: at + "GET /a  HTTP/1.1|200 17||"},
		{name: "IPv6", line: `2001:db8::7 - - ` + stamp + ` "GET / HTTP/1.1" 200 1`,
			want: "2001:db8::7|-|-|2024-03-02T22:59:58Z|GET /  HTTP/1.1|200 1||"},
		{name: "name and user", line: `host.example ident alice ` + stamp + ` "GET / HTTP/1.1" 200 1`,
			want: "host.example|ident|alice|2024-03-02T22:59:58Z|GET /  HTTP/1.1|200 1||"},
		{name: "user with space and bracket", line: `h - al [ice] b ` + stamp + ` "GET / HTTP/1.1" 200 1`,
			want: "h|-|al [ice] b|2024-03-02T22:59:58Z|GET /  HTTP/1.1|200 1||"},
		{name: "zone to the west", line: `h - - [31/Dec/2023:23:30:00 -0130] "GET / HTTP/1.1" 200 1`,
			want: "h|-|-|2024-01-01T01:00:00Z|GET /  HTTP/1.1|200 1||"},
		{name: "leap second", line: `h - - [31/Dec/2016:23:59:60 +0000] "GET / HTTP/1.1" 200 1`,
			want: "h|-|-|2016-12-31T23:59:59Z|GET /  HTTP/1.1|200 1||"},

		{name: "escaped quotes", line: start + ` "GET /\"x\" HTTP/1.1" 200 1 "a\"b" "c \"d\" e"`,
			want: at + `GET /\"x\"  HTTP/1.1|200 1|a\"b|c \"d\" e`},
		{name: "hexadecimal escapes", line: start + ` "GET /\x22\xe4 HTTP/1.1" 200 1 "\x22" "\\"`,
			want: at + `GET /\x22\xe4  HTTP/1.1|200 1|\x22|\\`},
		{name: "quotes not escaped", line: start + ` "GET /"a" 2 HTTP/1.1" 200 1 "r"s" "u"`, want: at + `GET /"a" 2  HTTP/1.1|200 1|r"s|u`},
		{name: "cut in the user agent", line: start + ` "GET / HTTP/1.1" 200 1 "-" "Mozilla/5.0 (compat`,
			want: at + `GET /  HTTP/1.1|200 1|-|Mozilla/5.0 (compat`},
		{name: "cut in the referer", line: start + ` "GET / HTTP/1.1" 200 1 "htt`, want: at + `GET /  HTTP/1.1|200 1|htt|`},

		{name: "no request", line: start + ` "-" 408 - "-" "-"`, want: at + "   |408 0|-|-"},
		{name: "empty request", line: start + ` "" 400 0`, want: at + "   |400 0||"},
		{name: "method alone", line: start + ` "GET" 400 226`, want: at + "   |400 226||"},
		{name: "method and space", line: start + ` "GET " 400 226`, want: at + "   |400 226||"},
		{name: "no target", line: start + ` "GET HTTP/1.1" 400 226`, want: at + "   |400 226||"},
		{name: "no target but the space", line: start + ` "GET  HTTP/1.1" 400 226`, want: at + "   |400 226||"},
		{name: "handshake", line: start + ` "\x16\x03\x01\x02 \x01\xfc" 400 157`, want: at + "   |400 157||"},
		{name: "raw handshake", line: start + " \"\x16\x03\x01 \x00\" 400 157", want: at + "   |400 157||"},
		{name: "HTTP/0.9", line: start + ` "GET /old" 200 1`, want: at + "GET /old  |200 1||"},
		{name: "words", line: start + ` "hello my friend" 400 1`, want: at + "   |400 1||"},
		{name: "space in target", line: start + ` "GET /a b HTTP/1.1" 200 1`, want: at + "GET /a b  HTTP/1.1|200 1||"},
		{name: "proxy", line: start + ` "CONNECT a.example:443 HTTP/1.1" 405 1`, want: at + "CONNECT a.example:443  HTTP/1.1|405 1||"},
		{name: "asterisk", line: start + ` "OPTIONS * HTTP/1.0" 200 -`, want: at + "OPTIONS *  HTTP/1.0|200 0||"},
		{name: "status unknown", line: start + ` "GET / HTTP/1.1" - -`, want: at + "GET /  HTTP/1.1|0 0||"},
		{name: "status 000", line: start + ` "GET / HTTP/1.1" 000 0`, want: at + "GET /  HTTP/1.1|0 0||"},

		{name: "words only", line: "hello", err: errStart},
		{name: "space first", line: " - - " + stamp, err: errStart},
		{name: "address only", line: "203.0.113.9 ", err: errStart},
		{name: "no user", line: "203.0.113.9 - " + stamp + ` "GET / HTTP/1.1" 200 1`, err: errTime},
		{name: "no time", line: `203.0.113.9 - - "GET / HTTP/1.1" 200 1`, err: errTime},
		{name: "other time", line: `h - - [2024-03-02T23:59:58+01:00] "GET / HTTP/1.1" 200 1`, err: errTime},
		{name: "no such month", line: `h - - [02/Mai/2024:23:59:58 +0100] "GET / HTTP/1.1" 200 1`, err: errTime},
		{name: "no such day", line: `h - - [30/Feb/2024:23:59:58 +0100] "GET / HTTP/1.1" 200 1`, err: errTime},
		{name: "no such hour", line: `h - - [02/Mar/2024:24:00:00 +0100] "GET / HTTP/1.1" 200 1`, err: errTime},
		{name: "no such zone", line: `h - - [02/Mar/2024:23:59:58 ~0100] "GET / HTTP/1.1" 200 1`, err: errTime},
		{name: "letters in the time", line: `h - - [0x/Mar/2024:23:59:58 +0100] "GET / HTTP/1.1" 200 1`, err: errTime},
		{name: "cut in the time", line: `h - - [02/Mar/2024:23:59:58 +0100`, err: errTime},
		{name: "ends with the time", line: start, err: errRequest},
		{name: "cut in the request", line: start + ` "GET / HT`, err: errRequest},
		{name: "ends with a backslash", line: start + ` "GET / HT\`, err: errRequest},
		{name: "no status", line: start + ` "GET / HTTP/1.1"`, err: errRequest},
		{name: "no size", line: start + ` "GET / HTTP/1.1" 200`, err: errRequest},
		{name: "words for status", line: start + ` "GET / HTTP/1.1" ok 1`, err: errRequest},
		{name: "status of four", line: start + ` "GET / HTTP/1.1" 2000 1`, err: errRequest},
		{name: "size with letters", line: start + ` "GET / HTTP/1.1" 200 1k`, err: errRequest},
		{name: "size beyond 64 bits", line: start + ` "GET / HTTP/1.1" 200 99999999999999999999`, err: errRequest},
		{name: "virtual host first", line: `www.example:80 ` + start + ` "GET / HTTP/1.1" 200 1`, err: errVhost},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var e Entry
			err := Parse([]byte(tt.line), &e)
			if err != tt.err {
				t.Fatalf("error %v, want %v", err, tt.err)
			}
			if err == nil && show(&e) != tt.want {
				t.Errorf("got  %s\nwant %s", show(&e), tt.want)
			}
		})
	}
}

func TestMonths(t *testing.T) {
	for m := time.January; m <= time.December; m++ {
		if got := monthOf([]byte(m.String()[:3])); got != m {
			t.Errorf("%s is read as %d", m, got)
		}
	}
}

func TestBy(t *testing.T) {
	entry := Entry{ClientIP: []byte("203.0.113.9"), User: []byte(`a|b\`), Method: []byte("GET"), Path: []byte("/x"),
		Status: 404, UserAgent: []byte("agent"), Referer: []byte("http://from/")}
	tests := []struct{ by, want, err string }{
		{by: "client_ip", want: "203.0.113.9"},
		{by: "user", want: `a|b\`},
		{by: "method", want: "GET"},
		{by: "path", want: "/x"},
		{by: "status", want: "404"},
		{by: "user_agent", want: "agent"},
		{by: "referer", want: "http://from/"},
		{by: "client_ip,path", want: "203.0.113.9|/x"},
		{by: " path , user,status", want: `/x|a\|b\\|404`},
		{by: "", err: "name a field: choose from client_ip, user, method, path, status, user_agent, referer"},
		{by: "path,", err: "name a field"},
		{by: "host", err: `there is no field "host": choose from client_ip, user,`},
		{by: "path,path", err: "the field path is named twice"},
	}
	for _, tt := range tests {
		t.Run(tt.by, func(t *testing.T) {
			by, err := ParseBy(tt.by)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("error %v, want one with %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := by.Key(&entry); got != tt.want {
				t.Errorf("key %q, want %q", got, tt.want)
			}
			if got, want := by.String(), strings.ReplaceAll(tt.by, " ", ""); got != want {
				t.Errorf("String() = %q, want %q", got, want)
			}
		})
	}
}

func TestKeyOfMissingFields(t *testing.T) {
	by, err := ParseBy(strings.Join(Fields(), ","))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := by.Key(&Entry{ClientIP: []byte("h")}), "h|-|-|-|-|-|-"; got != want {
		t.Errorf("key %q, want %q", got, want)
	}
}

// split takes a joined key apart again.
func split(key string) []string {
	parts := []string{""}
	for i := 0; i < len(key); i++ {
		switch key[i] {
		case '|':
			parts = append(parts, "")
			continue
		case '\\':
			i++
		}
		parts[len(parts)-1] += key[i : i+1]
	}
	return parts
}

func FuzzParse(f *testing.F) {
	start := "203.0.113.9 - - " + stamp
	for _, s := range []string{
		start + ` "GET /a?b HTTP/1.1" 200 17 "http://from/" "agent"`,
		start + ` "GET /\"a\" HTTP/1.1" 200 - "\x22" "a\\"`,
		start + ` "-" 408 0`, start + ` "\x16\x03" 400 1 "`, `a b [c ` + stamp + ` "" - -`, `[[[[ ] " " \`,
	} {
		f.Add([]byte(s))
	}
	all, err := ParseBy(strings.Join(Fields(), ","))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		var e Entry
		before := bytes.Clone(line)
		err := Parse(line, &e)
		if !bytes.Equal(line, before) {
			t.Fatal("the line was changed")
		}
		if err != nil {
			return
		}
		if len(e.ClientIP) == 0 || len(e.Ident) == 0 || e.Time.IsZero() || e.Status < 0 || e.Status > 999 || e.Bytes < 0 {
			t.Fatalf("accepted without a needed part: %s", show(&e))
		}
		texts := [][]byte{e.ClientIP, e.Ident, e.User, e.Method, e.Path, e.Query, e.Proto, e.Referer, e.UserAgent}
		for _, text := range texts {
			if !bytes.Contains(line, text) {
				t.Fatalf("%q is not in the line", text)
			}
		}
		// A joined key gives its fields back.
		var want []string
		for i := range fields {
			want = append(want, string(appendField(nil, i, &e)))
		}
		if got := split(all.Key(&e)); !slices.Equal(got, want) {
			t.Fatalf("key %q splits into %q, want %q", all.Key(&e), got, want)
		}
		// What follows a complete line changes nothing before it.
		var again Entry
		if err := Parse(append(before, ` "x`...), &again); err != nil || string(again.ClientIP) != string(e.ClientIP) || again.Status != e.Status {
			t.Fatalf("with more behind it: %v, %s", err, show(&again))
		}
	})
}
