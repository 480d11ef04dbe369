package llm

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Parrot stands in for a model, to try the gateway without one: it speaks the same protocol,
// says what it was told, word by word, with a pause before each, and from the beginning
// again until it has used max_tokens. A word is a token.
func Parrot(pause time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			Stream   bool `json:"stream"`
			Max      int  `json:"max_tokens"`
			Messages []struct {
				Content string `json:"content"`
			} `json:"messages"`
		}
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&q); err != nil {
			refuse(w, http.StatusBadRequest, err.Error())
			return
		}
		var told []string
		for _, m := range q.Messages {
			told = append(told, strings.Fields(m.Content)...)
		}
		if len(told) == 0 {
			refuse(w, http.StatusBadRequest, "say something")
			return
		}
		usage := map[string]int{"prompt_tokens": len(told), "completion_tokens": max(q.Max, 1), "total_tokens": len(told) + max(q.Max, 1)}
		say := speech(w, q.Stream)
		for i := range max(q.Max, 1) {
			select {
			case <-r.Context().Done():
				return
			case <-time.After(pause):
			}
			say(told[i%len(told)]+" ", nil)
		}
		say("", usage)
	})
}

// speech returns what says words, and at the end what they have used: in a stream each by
// itself, else all at the end.
func speech(w http.ResponseWriter, stream bool) func(word string, usage map[string]int) {
	var all strings.Builder
	w.Header().Set("Content-Type", "application/json")
	if stream {
		w.Header().Set("Content-Type", "text/event-stream")
	}
	return func(word string, usage map[string]int) {
		all.WriteString(word)
		switch {
		case !stream && usage == nil:
		case !stream:
			message := map[string]string{"role": "assistant", "content": all.String()}
			_ = json.NewEncoder(w).Encode(map[string]any{"choices": []any{map[string]any{"message": message}}, "usage": usage})
		case usage == nil:
			piece, _ := json.Marshal(map[string]any{"choices": []any{map[string]any{"delta": map[string]string{"content": word}}}})
			_, _ = fmt.Fprintf(w, "data: %s\n\n", piece)
		default:
			piece, _ := json.Marshal(map[string]any{"choices": []any{}, "usage": usage})
			_, _ = fmt.Fprintf(w, "data: %s\n\ndata: [DONE]\n\n", piece)
		}
		if stream {
			_ = http.NewResponseController(w).Flush()
		}
	}
}
