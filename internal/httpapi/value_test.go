package httpapi

import (
	"net/http"
	"strings"
	"testing"

	"github.com/keystead/keystead/owner/value"
)

// The longest value may come as text of any characters: those that JSON has to escape are six
// bytes each.
func TestLongestValueAsText(t *testing.T) {
	h := newHouse(t)
	for name, char := range map[string]string{"plain": "x", "escaped": `\u0001`, "quotes": `\"`} {
		text := strings.Repeat(char, value.MaxValue)
		if a := h.call(http.MethodPost, "/v1/register/put", `{"key":"k","value_text":"`+text+`"}`); a.status != http.StatusOK {
			t.Errorf("%s: %d: %.200s", name, a.status, a.body)
			continue
		}
		if a := h.call(http.MethodGet, "/v1/register/get?key=k", ""); !strings.Contains(a.body, `"value_text":"`+text+`"`) {
			t.Errorf("%s: %.200s", name, a.body)
		}
	}
}

// A null is as if it were not there, also beside the other name of the same bytes.
func TestNullBesideText(t *testing.T) {
	h := newHouse(t)
	for _, body := range []string{`{"key":"k","value":null,"value_text":"a"}`, `{"key":"k","value_text":null,"value":"YQ=="}`, `{"key":"k","value_text":"a","value":null}`} {
		if a := h.call(http.MethodPost, "/v1/register/put", body); a.status != http.StatusOK {
			t.Errorf("%s: %s", body, a)
		}
		if a := h.call(http.MethodGet, "/v1/register/get?key=k", ""); !strings.Contains(a.body, `"value_text":"a"`) {
			t.Errorf("%s: %s", body, a)
		}
	}
	for _, body := range []string{`{"key":"k","value":"","value_text":"a"}`, `{"key":"k","value":null,"value":"YQ=="}`} {
		if a := h.call(http.MethodPost, "/v1/register/put", body); a.status != http.StatusBadRequest {
			t.Errorf("%s: %s", body, a)
		}
	}
}
