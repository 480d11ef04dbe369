package bootstrap

import (
	"bytes"
	"embed"
	"encoding/json"
	"text/template"
)

//go:embed templates/*.tmpl
var files embed.FS

// quote writes a string as JSON does, which YAML reads in the same way.
func quote(text string) (string, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(text)
	return string(bytes.TrimSpace(b.Bytes())), err
}

// render panics when a template is wrong: it is part of the program.
func (p *page) render(name string) []byte {
	t := template.Must(template.New("").Funcs(template.FuncMap{"q": quote}).ParseFS(files, "templates/*.tmpl"))
	var b bytes.Buffer
	if err := t.ExecuteTemplate(&b, name, p); err != nil {
		panic("bootstrap: " + err.Error())
	}
	return b.Bytes()
}
