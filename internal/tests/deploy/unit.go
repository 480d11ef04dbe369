package deploy

import (
	"fmt"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/unit"
)

// The unit, and the example of the file that it reads its settings from.
const (
	unitFile    = "deploy/systemd/keystead.service"
	unitEnvFile = "deploy/systemd/keystead.env"
	// stateRoot is where systemd puts the directories that StateDirectory names.
	stateRoot = "/var/lib/"
)

// Unit is a systemd unit: the values of each key, by section and key, in order.
type Unit map[string][]string

// Last returns the value of a key that counts, as "Service.ExecStart".
func (u Unit) Last(key string) string {
	v := u[key]
	if len(v) == 0 {
		return ""
	}
	return v[len(v)-1]
}

// ReadUnit reads a unit file.
func ReadUnit(text string) (Unit, error) {
	options, err := unit.DeserializeOptions(strings.NewReader(text))
	u := Unit{}
	for _, o := range options {
		key := o.Section + "." + o.Name
		u[key] = append(u[key], o.Value)
	}
	return u, err
}

// ReadEnv reads a file of variables, as systemd's EnvironmentFile and Docker's
// env_file do.
func ReadEnv(text string) (map[string]string, error) {
	out := map[string]string{}
	for n, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok || strings.ContainsAny(key, " \t") {
			return nil, fmt.Errorf("line %d: %q is not NAME=VALUE", n+1, line)
		}
		out[key] = value
	}
	return out, nil
}

// UnitNode returns the node that a unit starts with a file of variables.
func UnitNode(unit, env string) (program string, n *Node, err error) {
	u, err := ReadUnit(unit)
	if err != nil {
		return "", nil, err
	}
	vars, err := ReadEnv(strings.Join(u["Service.Environment"], "\n"))
	if err != nil {
		return "", nil, fmt.Errorf("variables of the unit: %w", err)
	}
	more, err := ReadEnv(env)
	if err != nil {
		return "", nil, fmt.Errorf("the file of variables: %w", err)
	}
	command := strings.Fields(u.Last("Service.ExecStart"))
	if len(command) == 0 {
		return "", nil, fmt.Errorf("there is no ExecStart")
	}
	n = &Node{Where: unitFile, Args: command[1:], Env: under(vars, more), Volume: stateRoot + u.Last("Service.StateDirectory")}
	n.Patience, err = time.ParseDuration(u.Last("Service.TimeoutStopSec"))
	if err != nil {
		return "", nil, fmt.Errorf("TimeoutStopSec: %w", err)
	}
	return command[0], n, nil
}

// unit judges the systemd unit.
func (r *reader) unit() {
	text := r.text(unitFile)
	_, n, err := UnitNode(text, r.text(unitEnvFile))
	if err != nil {
		r.wrong(unitFile, "%v", err)
		return
	}
	n.Memory = 2 << 30 // what the comments there say
	r.node(n)
	u, _ := ReadUnit(text)
	if f := u.Last("Service.EnvironmentFile"); strings.TrimPrefix(f, "-") != "/etc/keystead/keystead.env" {
		r.wrong(unitFile, "it reads its settings from %q, and docs/operations.md says /etc/keystead/keystead.env", f)
	}
	for key, want := range map[string]string{
		"Service.KillSignal": "SIGTERM", "Service.Restart": "on-failure", "Service.DynamicUser": "yes",
		"Service.ProtectSystem": "strict", "Service.NoNewPrivileges": "yes", "Install.WantedBy": "multi-user.target",
	} {
		if got := u.Last(key); got != want {
			r.wrong(unitFile, "%s is %q, not %q", key, got, want)
		}
	}
	if ids := list(n.settings["founders"]); len(ids) < 3 || ids[0] != n.settings["id"] {
		r.wrong(unitEnvFile, "the founders %v: name three, the first node's id first", ids)
	}
}
