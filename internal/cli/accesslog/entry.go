package accesslog

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"time"
)

// Entry is one line of a log. Its texts are those of the line, escape sequences
// included, and share its memory: those of a Reader are valid until the next
// line is read. A field that the log gives as "-" is "-" here.
type Entry struct {
	ClientIP []byte    // first field: an address, or a name if the server looks names up
	Ident    []byte    // RFC 1413 identity, nearly always "-"
	User     []byte    // of HTTP authentication
	Time     time.Time // in UTC
	// Method, Path, Query and Proto are empty if the request is not one of
	// HTTP. Path is the target up to "?", Query what follows it, and Proto is
	// empty for HTTP/0.9.
	Method, Path, Query, Proto []byte
	Status                     int    // 0 if the log gives "-"
	Bytes                      int64  // sent, headers not counted; 0 if the log gives "-"
	Referer, UserAgent         []byte // empty in the common log format
}

// Why a line is broken.
var (
	errStart   = errors.New("it does not begin with: address identity user")
	errTime    = errors.New("no time as in [02/Mar/2024:23:59:58 +0100] after the user")
	errVhost   = errors.New("a virtual host stands before the address (vhost_combined); cut it off")
	errRequest = errors.New("no request in quotes, status and size after the time")
	errTooLong = errors.New("it is longer than 64 KiB")
)

// Parse takes one line, without its end, apart. An error says why the line does
// not have the shape of the common log format; e is then of no use. A request
// that is not HTTP is no error (see Entry), nor is whatever follows the size:
// a referer or user agent that is missing, or cut short, is taken as it is.
func Parse(line []byte, e *Entry) error {
	*e = Entry{}
	var rest []byte
	var ok bool
	if e.ClientIP, rest, ok = bytes.Cut(line, space); !ok || len(e.ClientIP) == 0 {
		return errStart
	}
	if e.Ident, rest, ok = bytes.Cut(rest, space); !ok || len(e.Ident) == 0 {
		return errStart
	}
	if rest, ok = e.cutTime(rest); !ok {
		return errTime
	}
	if bytes.IndexByte(e.User, ' ') >= 0 {
		if _, err := netip.ParseAddr(string(e.Ident)); err == nil {
			return errVhost
		}
	}
	if rest, ok = e.cutRequest(rest); !ok {
		return errRequest
	}
	if e.Referer, rest, ok = cutQuoted(rest); ok {
		e.UserAgent, _, _ = cutQuoted(rest)
	}
	return nil
}

var space = []byte{' '}

// stampLen is the length of "02/Mar/2024:23:59:58 +0100".
const stampLen = 26

// cutTime takes user and time off b. A user name may hold spaces and brackets,
// so the time is known by its form.
func (e *Entry) cutTime(b []byte) (rest []byte, ok bool) {
	for from := 0; ; {
		i := bytes.IndexByte(b[from:], '[')
		if i < 0 {
			return nil, false
		}
		i += from
		if end := i + 1 + stampLen; i > 0 && b[i-1] == ' ' && end < len(b) && b[end] == ']' {
			if e.Time, ok = parseTime(b[i+1 : end]); ok {
				e.User = b[:i-1]
				return b[end+1:], true
			}
		}
		from = i + 1
	}
}

// parseTime reads "02/Mar/2024:23:59:58 +0100".
func parseTime(b []byte) (time.Time, bool) {
	if b[2] != '/' || b[6] != '/' || b[11] != ':' || b[14] != ':' || b[17] != ':' || b[20] != ' ' {
		return time.Time{}, false
	}
	bad := 0
	number := func(b []byte) (n int) {
		for _, c := range b {
			if c < '0' || c > '9' {
				bad++
			}
			n = 10*n + int(c) - '0'
		}
		return n
	}
	month := monthOf(b[3:6])
	day, year := number(b[:2]), number(b[7:11])
	hour, minute, second := number(b[12:14]), number(b[15:17]), number(b[18:20])
	zoneHour, zoneMinute := number(b[22:24]), number(b[24:26])
	if bad > 0 || month == 0 || hour > 23 || minute > 59 || second > 60 || zoneHour > 23 || zoneMinute > 59 {
		return time.Time{}, false
	}
	t := time.Date(year, month, day, hour, minute, min(second, 59), 0, time.UTC)
	if t.Day() != day { // the month has no such day
		return time.Time{}, false
	}
	zone := time.Duration(zoneHour)*time.Hour + time.Duration(zoneMinute)*time.Minute
	switch b[21] {
	case '+':
		return t.Add(-zone), true
	case '-':
		return t.Add(zone), true
	}
	return time.Time{}, false
}

func monthOf(b []byte) time.Month {
	switch string(b) {
	case "Jan":
		return time.January
	case "Feb":
		return time.February
	case "Mar":
		return time.March
	case "Apr":
		return time.April
	case "May":
		return time.May
	case "Jun":
		return time.June
	case "Jul":
		return time.July
	case "Aug":
		return time.August
	case "Sep":
		return time.September
	case "Oct":
		return time.October
	case "Nov":
		return time.November
	case "Dec":
		return time.December
	}
	return 0
}

// cutRequest takes request, status and size off b. The request ends at the
// first unescaped quote that status and size follow, so a server that does not
// escape quotes is understood too.
func (e *Entry) cutRequest(b []byte) (rest []byte, ok bool) {
	if len(b) < 2 || b[0] != ' ' || b[1] != '"' {
		return nil, false
	}
	b = b[2:]
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			if rest, ok = e.cutResult(b[i+1:]); ok {
				e.setRequest(b[:i])
				return rest, true
			}
		}
	}
	return nil, false
}

// cutResult takes status and size off b.
func (e *Entry) cutResult(b []byte) (rest []byte, ok bool) {
	status, b, ok := cutNumber(b)
	if !ok || status > 999 {
		return nil, false
	}
	size, b, ok := cutNumber(b)
	if !ok {
		return nil, false
	}
	e.Status, e.Bytes = int(status), size
	return b, true
}

// cutNumber takes a space and a number, or "-" for 0, off b. A space or the end
// of b must follow.
func cutNumber(b []byte) (n int64, rest []byte, ok bool) {
	if len(b) < 2 || b[0] != ' ' {
		return 0, nil, false
	}
	b = b[1:]
	if b[0] == '-' {
		return 0, b[1:], len(b) == 1 || b[1] == ' '
	}
	const maxDigits = 18 // fits in int64
	i := 0
	for ; i < len(b) && i < maxDigits && '0' <= b[i] && b[i] <= '9'; i++ {
		n = 10*n + int64(b[i]-'0')
	}
	return n, b[i:], i > 0 && (i == len(b) || b[i] == ' ')
}

// setRequest takes "METHOD TARGET PROTO" apart, and leaves the fields empty if
// it is something else: "-", a TLS handshake, a method alone.
func (e *Entry) setRequest(b []byte) {
	method, target, ok := bytes.Cut(b, space)
	if !ok || !isToken(method) {
		return
	}
	var proto []byte
	if i := bytes.LastIndexByte(target, ' '); i >= 0 {
		if target, proto = target[:i], target[i+1:]; !bytes.HasPrefix(proto, httpSlash) {
			return
		}
	} else if len(target) > 0 && target[0] != '/' {
		return // HTTP/0.9 knows paths only
	}
	if len(target) == 0 {
		return
	}
	e.Method, e.Proto = method, proto
	e.Path, e.Query, _ = bytes.Cut(target, question)
}

var (
	httpSlash = []byte("HTTP/")
	question  = []byte{'?'}
)

// isToken reports whether b may be a method (RFC 9110 §5.6.2).
func isToken(b []byte) bool {
	for _, c := range b {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0:
		default:
			return false
		}
	}
	return len(b) > 0
}

// cutQuoted takes a space and a quoted text off b. A text without a closing
// quote goes to the end of the line.
func cutQuoted(b []byte) (text, rest []byte, ok bool) {
	if len(b) < 2 || b[0] != ' ' || b[1] != '"' {
		return nil, nil, false
	}
	b = b[2:]
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			if i+1 == len(b) || b[i+1] == ' ' {
				return b[:i], b[i+1:], true
			}
		}
	}
	return b, nil, true
}
