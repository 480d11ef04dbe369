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

	// answerTimeout is how long a caller may take to read the first pieceSize bytes of an
	// answer, and readTimeout each that follow: who reads slowly does not hold much for long.
	answerTimeout = 30 * time.Second
	readTimeout   = 5 * time.Second

	// smallBody is up to how many bytes a body takes nothing from maxBodies: what most
	// calls have. MaxConns bounds those.
	smallBody = 4 << 10
	// smallMost is how many bytes a body has at most of a call whose answer is small.
	smallMost = 256 << 10
	// maxBodies is how many bytes of memory larger bodies and answers have at a time, all
	// together. It counts what was read, whatever was announced. Answers are not held up by
	// it, they are there, but no batches are read meanwhile.
	maxBodies = 256 << 20

	// bodyFactor is how many bytes of JSON may stand for a byte of a message on the wire.
	// Numbers and names of fields are what JSON makes longer.
	bodyFactor = 4
)

// body is a body while it is read.
type body struct {
	s    *Server
	from *http.Request
	conn *http.ResponseController
	end  time.Time // of all of it
	most int64

	data []byte
	held int64 // of s.bodies
}

// readAll reads a body into b.data, and counts what memory that takes.
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
	//guard:http-counts-what-is-read
	if b.s.bodies.Add(size) > maxBodies {
		b.s.bodies.Add(-size)
		return errBodies()
	}
	b.data = append(make([]byte, 0, size), b.data...)
	b.s.bodies.Add(-b.held)
	b.held = size
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

// free gives the memory back.
func (b *body) free() { b.s.bodies.Add(-b.held) }

func errBodies() error {
	return &failure.Error{Reason: failure.Overloaded, RetryAfter: 100 * time.Millisecond,
		Message: "as many bytes of requests and answers are under way as this node allows; nothing happened", Hint: "try again later, or send smaller batches"}
}

// send writes an answer. What is large of it counts as bodies do, and has to be read as they
// have to be sent.
func (s *Server) send(w http.ResponseWriter, data []byte) {
	if large := int64(len(data)); large > smallBody {
		s.bodies.Add(large)
		defer s.bodies.Add(-large)
	}
	c := http.NewResponseController(w)
	for end := time.Now().Add(answerTimeout); len(data) > 0; {
		_ = c.SetWriteDeadline(end)
		n, err := w.Write(data[:min(len(data), pieceSize)])
		if err != nil {
			return
		}
		data, end = data[n:], time.Now().Add(s.readTimeout)
	}
}

func tooLarge(most int64) error {
	return &failure.Error{Reason: failure.TooLarge, Message: fmt.Sprintf("the body may have %d bytes, and has more", most), Hint: "send less at once"}
}
