package llm

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
)

// meter counts what passes through it.
type meter struct {
	prompt uint64 // tokens, about
	answer uint64 // tokens, at most
	whole  bool   // the answer comes in one piece
	pieces uint64 // of an answer that was streamed: a token each, or more
	said   uint64 // by the model, of prompt and answer; 0 = it has not
}

// maxPiece is the longest line of a stream. An answer that comes whole may be as long.
const maxPiece = 4 << 20

// used returns how many tokens it was: as the model says, else as was seen to pass. Of an
// answer that was seen whole, and says nothing, that is the estimate.
func (m *meter) used() uint64 {
	switch {
	case m.said != 0:
		return m.said
	case m.whole:
		return m.prompt + m.answer
	}
	return m.prompt + m.pieces
}

// copy passes an answer on as it comes.
func (m *meter) copy(w http.ResponseWriter, from io.Reader) error {
	flush := http.NewResponseController(w).Flush
	if m.whole {
		all, err := io.ReadAll(io.LimitReader(from, maxPiece))
		m.read(all)
		_, failed := w.Write(all)
		return errors.Join(err, failed)
	}
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, maxPiece)
	for lines.Scan() {
		if data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: ")); ok {
			m.read(data)
		}
		if _, err := w.Write(append(lines.Bytes(), '\n')); err != nil {
			return err
		}
		if len(lines.Bytes()) == 0 { // the end of an event
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return lines.Err()
}

// read counts a piece of an answer, or learns from it what all of it has used.
func (m *meter) read(piece []byte) {
	var p struct {
		Choices []json.RawMessage `json:"choices"`
		Usage   *struct {
			Total uint64 `json:"total_tokens"`
		} `json:"usage"`
	}
	if json.Unmarshal(piece, &p) != nil { // [DONE]
		return
	}
	m.pieces += uint64(len(p.Choices))
	if p.Usage != nil {
		m.said = p.Usage.Total
	}
}
