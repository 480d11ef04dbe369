package deploy

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
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
	Exposed       []string
	User          string
	Health        []string
	GoVersion     string
}

const dockerfile = "deploy/docker/Dockerfile"

var (
	goDirective = regexp.MustCompile(`(?m)^go (\S+)$`)
	output      = regexp.MustCompile(`-o (/out\S+)`)
)

// ReadImage reads the Dockerfile. Only the last stage counts, but for the command that
// builds the program.
func ReadImage(text string) (*Image, error) {
	file, err := parser.Parse(strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	stages, args, err := instructions.Parse(file.AST, nil)
	if err != nil {
		return nil, err
	}
	m := &Image{Env: map[string]string{}}
	for _, a := range args {
		for _, v := range a.Args {
			if v.Key == "GO_VERSION" {
				m.GoVersion = v.ValueString()
			}
		}
	}
	for i, s := range stages {
		for _, c := range s.Commands {
			if run, ok := c.(*instructions.RunCommand); ok {
				command := strings.Join(run.CmdLine, " ")
				if o := output.FindStringSubmatch(command); o != nil && strings.Contains(command, "go build") {
					m.Build, m.Binary = command, o[1]
				}
			} else if i == len(stages)-1 {
				m.apply(c)
			}
		}
	}
	return m, nil
}

// apply does an instruction of the last stage.
func (m *Image) apply(c instructions.Command) {
	switch c := c.(type) {
	case *instructions.EnvCommand:
		for _, v := range c.Env {
			m.Env[v.Key] = v.Value
		}
	case *instructions.EntrypointCommand:
		m.Entrypoint = c.CmdLine
	case *instructions.CmdCommand:
		m.Cmd = c.CmdLine
	case *instructions.VolumeCommand:
		m.Volume = c.Volumes[len(c.Volumes)-1]
	case *instructions.ExposeCommand:
		m.Exposed = append(m.Exposed, c.Ports...)
	case *instructions.UserCommand:
		m.User = c.User
	case *instructions.HealthCheckCommand:
		m.Health = c.Health.Test
	}
}

// image judges the Dockerfile, and returns what it makes.
func (r *reader) image() *Image {
	m, err := ReadImage(r.text(dockerfile))
	if err != nil {
		r.wrong(dockerfile, "%v", err)
		return &Image{}
	}
	if want := goDirective.FindStringSubmatch(r.text("go.mod")); want == nil || m.GoVersion != want[1] {
		r.wrong(dockerfile, "GO_VERSION is not the version of go.mod, %v", want)
	}
	if !strings.Contains(m.Build, "CGO_ENABLED=0 ") {
		r.wrong(dockerfile, "the program is not built statically, and there is no C library in the image")
	}
	if len(m.Entrypoint) != 1 || "/out"+m.Entrypoint[0] != m.Binary {
		r.wrong(dockerfile, "the entry point %v is not the program, which is built to %s", m.Entrypoint, m.Binary)
	}
	n := &Node{Where: dockerfile, Args: m.Cmd, Env: m.Env, Volume: m.Volume}
	n.Patience = time.Hour // people who run the image say how long
	r.node(n)
	r.exposed(m, n.ports())
	if want := append(append([]string{"CMD"}, m.Entrypoint...), "status"); len(m.Health) < len(want) || !slices.Equal(m.Health[:len(want)], want) {
		r.wrong(dockerfile, "the health check does not ask the program: %v", m.Health)
	}
	if id, err := strconv.Atoi(strings.Split(m.User, ":")[0]); err != nil || id == 0 {
		r.wrong(dockerfile, "the user %q: give a number that is not root's, which Kubernetes can judge", m.User)
	}
	return m
}

// exposed judges the ports that an image names.
func (r *reader) exposed(m *Image, ports map[string]int) {
	want := map[string]bool{fmt.Sprintf("%d/udp", ports["gossip"]): true}
	for _, p := range ports {
		want[fmt.Sprintf("%d/tcp", p)] = true
	}
	for _, p := range m.Exposed {
		if !want[p] {
			r.wrong(dockerfile, "it exposes %s, where no setting has the program listen", p)
		}
		delete(want, p)
	}
	for p := range want {
		r.wrong(dockerfile, "it does not expose %s", p)
	}
}
