package console

import (
	"crypto/sha256"
	_ "embed" // the page and what belongs to it
	"encoding/base64"
	"html/template"
)

//go:embed page.html
var page string

//go:embed page.css
var style string

//go:embed page.js
var script string

// The style and the script are this package's own: the only texts of the page that are not
// escaped.
var (
	safeStyle  = template.CSS(style)
	safeScript = template.JS(script)
)

var layout = template.Must(template.New("page").Parse(page))

// digest is how the browser knows a style or a script.
func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}
