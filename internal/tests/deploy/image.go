package deploy

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Image is what the Dockerfile makes.
type Image struct {
	// Build is the command that builds the program, as a shell takes it, with the
	// variables TARGETOS, TARGETARCH and VERSION. It writes Binary.
	Build, Binary string
	Entrypoint    []string
	Cmd           []string
	Env           map[string]string
	Volume        string
}

const dockerfile = "deploy/docker/Dockerfile"

var (
	goDirective = regexp.MustCompile(`(?m)^go (\S+)$`)
	variable    = regexp.MustCompile(`(\w+)=(\S+)`)
	output      = regexp.MustCompile(`-o (/out\S+)`)
)

// Dockerfile reads the instructions of a Dockerfile, in order: each a word and what
// follows it, continuation lines joined, comments left out.
func Dockerfile(text string) [][2]string {
	var out [][2]string
	line := ""
	for part := range strings.Lines(text) {
		part = strings.TrimSpace(part)
		if strings.HasPrefix(part, "#") || part == "" {
			continue
		}
		rest, more := strings.CutSuffix(part, `\`)
		line += rest
		if more {
			continue
		}
		word, what, _ := strings.Cut(line, " ")
		out = append(out, [2]string{strings.ToUpper(word), strings.TrimSpace(what)})
		line = ""
	}
	return out
}

// ReadImage reads the Dockerfile.
func ReadImage(text string) (*Image, error) {
	m := &Image{Env: map[string]string{}}
	for _, in := range Dockerfile(text) {
		word, what := in[0], in[1]
		var err error
		switch word {
		case "FROM":
			*m = Image{Build: m.Build, Binary: m.Binary, Env: map[string]string{}} // only the last stage counts
		case "RUN":
			if o := output.FindStringSubmatch(what); o != nil && strings.Contains(what, "go build") {
				m.Build, m.Binary = what, o[1]
			}
		case "ENV":
			for _, v := range variable.FindAllStringSubmatch(what, -1) {
				m.Env[v[1]] = v[2]
			}
		case "ENTRYPOINT":
			err = json.Unmarshal([]byte(what), &m.Entrypoint)
		case "CMD":
			err = json.Unmarshal([]byte(what), &m.Cmd)
		case "VOLUME":
			m.Volume = what
		}
		if err != nil {
			return nil, fmt.Errorf("%s: write a JSON list: %w", word, err)
		}
	}
	return m, nil
}

// image judges the Dockerfile, and returns what it makes.
func (r *reader) image() *Image {
	text := r.text(dockerfile)
	m, err := ReadImage(text)
	if err != nil {
		r.wrong(dockerfile, "%v", err)
		return &Image{}
	}
	if want := goDirective.FindStringSubmatch(r.text("go.mod")); want == nil || !strings.Contains(text, "ARG GO_VERSION="+want[1]+"\n") {
		r.wrong(dockerfile, "GO_VERSION is not the version of go.mod, %v", want)
	}
	if !strings.Contains(m.Build, "CGO_ENABLED=0 ") {
		r.wrong(dockerfile, "the program is not built statically, and there is no C library in the image")
	}
	if len(m.Entrypoint) != 1 || "/out"+m.Entrypoint[0] != m.Binary {
		r.wrong(dockerfile, "the entry point %v is not the program, which is built to %s", m.Entrypoint, m.Binary)
	}
	n := &Node{Where: dockerfile, Args: m.Cmd, Env: m.Env, Volume: m.Volume}
	n.Patience = time.Hour // whoever runs the image says how long
	r.node(n)
	r.instructions(text, m, n)
	return m
}

// instructions judges those of the last stage that are there for others.
func (r *reader) instructions(text string, m *Image, n *Node) {
	ports := n.ports()
	want := map[string]bool{
		strconv.Itoa(ports["grpc"]) + "/tcp": true, strconv.Itoa(ports["raft"]) + "/tcp": true, strconv.Itoa(ports["metrics"]) + "/tcp": true,
		strconv.Itoa(ports["gossip"]) + "/tcp": true, strconv.Itoa(ports["gossip"]) + "/udp": true,
	}
	user := ""
	for _, in := range Dockerfile(text) {
		switch in[0] {
		case "FROM":
			user = ""
		case "USER":
			user = in[1]
		case "EXPOSE":
			for _, p := range strings.Fields(in[1]) {
				if !want[p] {
					r.wrong(dockerfile, "it exposes %s, where no setting has the program listen", p)
				}
				delete(want, p)
			}
		case "HEALTHCHECK":
			if !strings.Contains(in[1], `"`+strings.Join(m.Entrypoint, "")+`", "status"`) {
				r.wrong(dockerfile, "the health check does not ask the program: %s", in[1])
			}
		}
	}
	for p := range want {
		r.wrong(dockerfile, "it does not expose %s", p)
	}
	if id, err := strconv.Atoi(strings.Split(user, ":")[0]); err != nil || id == 0 {
		r.wrong(dockerfile, "the user %q: give a number that is not root's, which Kubernetes can judge", user)
	}
}
