package httpapi

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/keystead/keystead/internal/failure"
)

// Bounds of bodies.
const (
	bodyTimeout = 10 * time.Second // to send a body
	// pieceTimeout is how long each pieceSize bytes of a body may take, but for its first
	// smallBody bytes: who sends slowly does not hold much for long.
	pieceTimeout = 2 * time.Second
	pieceSize    = 64 << 10

	// answerTimeout is how long a caller may take to read an answer, and readTimeout each
	// pieceSize bytes of a longer one: who reads slowly does not hold much for long.
	answerTimeout = 30 * time.Second
	readTimeout   = 5 * time.Second

	// smallBody is up to how many bytes a body takes nothing from maxBodies: what most
	// calls have. MaxConns bounds those.
	smallBody = 4 << 10
	// maxBodies is how many bytes of memory large requests and answers have at a time, all
	// together. It counts what was read, whatever was announced.
	maxBodies = 256 << 20

	// itemRoom is how many bytes an item of a batch takes from maxBodies while it is done, for
	// itself and its answer. That is about what it takes of memory at most: two bytes of JSON
	// can be answered by an error with its reason and hint. smallBatch items take nothing.
	itemRoom   = 1 << 10
	smallBatch = 8

	// bodyFactor is how many bytes of JSON may stand for a byte of a message on the wire.
	// Numbers and names of fields are what JSON makes longer.
	bodyFactor = 4
	// textFactor is the same where a field of bytes may stand as text: a control character is
	// six bytes then.
	textFactor = 6
)

// room is what a request has taken from maxBodies.
type room struct {
	s    *Server
	held int64
}

// take has the request hold so much instead of what it holds, unless there is not so much.
func (r *room) take(size int64) error {
	more := size - r.held
	//guard:http-counts-what-is-read
	if r.s.bodies.Add(more) > maxBodies && more > 0 {
		r.s.bodies.Add(-more)
		return &failure.Error{Reason: failure.Overloaded, RetryAfter: 100 * time.Millisecond,
			Message: "as many bytes of requests and answers are under way as this node allows; nothing happened", Hint: "try again later, or send smaller batches"}
	}
	r.held = size
	return nil
}

// must has the request hold so much, whatever there is: it has been done.
func (r *room) must(size int64) {
	r.s.bodies.Add(size - r.held)
	r.held = size
}

// forItems has the request hold what its items take until they are answered.
func (r *room) forItems(n int) error {
	if n <= smallBatch {
		n = 0
	}
	return r.take(int64(n) * itemRoom)
}

// body is a body while it is read.
type body struct {
	*room
	from *http.Request
	conn *http.ResponseController
	end  time.Time // of all of it
	most int64
	data []byte
}

// readAll reads a body into b.data, which holds room for it.
func (b *body) readAll() error {
	want := b.from.ContentLength // how many bytes there can be
	if want < 0 {
		want = b.most + 1
	}
	for int64(len(b.data)) < want {
		if err := b.grow(want); err != nil {
			return err
		}
		err := b.readPiece(int(want))
		if int64(len(b.data)) > b.most {
			return tooLarge(b.most)
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			return &failure.Error{Reason: failure.Deadline, Hint: "send it faster, or less at once",
				Message: fmt.Sprintf("the body did not arrive within %s, each %d KiB of it within %s; nothing happened", bodyTimeout, pieceSize>>10, pieceTimeout)}
		default:
			return failure.Invalidf("", "the body did not arrive whole: %s", err)
		}
	}
	return nil
}

// grow makes room for more, if there is none.
func (b *body) grow(want int64) error {
	if len(b.data) < cap(b.data) {
		return nil
	}
	size := min(max(2*int64(cap(b.data)), pieceSize), want)
	if err := b.take(size); err != nil {
		return err
	}
	b.data = append(make([]byte, 0, size), b.data...)
	return nil
}

// readPiece reads up to a piece more, as long as there is room for it.
func (b *body) readPiece(want int) error {
	if len(b.data) >= smallBody {
		end := time.Now().Add(b.s.pieceTimeout)
		if end.After(b.end) {
			end = b.end
		}
		_ = b.conn.SetReadDeadline(end)
	}
	for upTo := min(len(b.data)+pieceSize, cap(b.data), want); len(b.data) < upTo; {
		n, err := b.from.Body.Read(b.data[len(b.data):upTo])
		b.data = b.data[:len(b.data)+n]
		if err != nil {
			return err
		}
	}
	return nil
}

// send writes an answer. A large one has to be read as large bodies have to be sent.
func (s *Server) send(w http.ResponseWriter, data []byte) {
	timeout := answerTimeout
	if len(data) > pieceSize {
		timeout = s.readTimeout
	}
	for c := http.NewResponseController(w); len(data) > 0; {
		_ = c.SetWriteDeadline(time.Now().Add(timeout))
		n, err := w.Write(data[:min(len(data), pieceSize)])
		if err != nil {
			return
		}
		data = data[n:]
	}
}

func tooLarge(most int64) error {
	return &failure.Error{Reason: failure.TooLarge, Message: fmt.Sprintf("the body may have %d bytes, and has more", most), Hint: "send less at once"}
}
