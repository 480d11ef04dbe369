package deploy

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

const kubernetesDir = "deploy/kubernetes"

// Addresses that stand for those which Kubernetes will give to pods.
const examplePod = "10.0.0."

// pages are those of the metrics address that probes may ask.
var pages = map[string]string{"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}

// Kubernetes are the nodes of manifests, in order of their pods; they run image. The
// documents of all files are given, split by lines of "---".
func Kubernetes(text string, image *Image) ([]*Node, error) {
	m, err := readManifests(text)
	if err != nil {
		return nil, err
	}
	if m.set == nil || len(m.set.Spec.Template.Spec.Containers) != 1 {
		return nil, fmt.Errorf("there is no StatefulSet with one container")
	}
	pod := m.set.Spec.Template.Spec
	c := pod.Containers[0]
	var nodes []*Node
	for i := range m.set.Spec.Replicas {
		name := m.set.Metadata.Name + "-" + strconv.Itoa(i)
		env := map[string]string{}
		for _, v := range c.Env {
			switch v.ValueFrom.FieldRef.FieldPath {
			case "":
				if v.ValueFrom.SecretKeyRef.Name == "" {
					env[v.Name] = v.Value
				} else if !v.ValueFrom.SecretKeyRef.Optional {
					return nil, fmt.Errorf("%s comes from a Secret that nobody makes: say optional", v.Name)
				}
			case "metadata.name":
				env[v.Name] = name
			case "status.podIP":
				env[v.Name] = examplePod + strconv.Itoa(i+1)
			default:
				return nil, fmt.Errorf("%s comes from %s, which nobody here knows", v.Name, v.ValueFrom.FieldRef.FieldPath)
			}
		}
		n := &Node{Where: kubernetesDir + " " + name, Args: c.Args, Env: under(image.Env, env), Memory: size(c.Resources.Limits["memory"])}
		n.Patience = time.Duration(pod.GraceSeconds-c.Lifecycle.PreStop.Sleep.Seconds) * time.Second
		for _, mount := range c.Mounts {
			n.Volume = mount.Path
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

func readManifests(text string) (*manifests, error) {
	m := &manifests{services: map[string]*service{}}
	for doc := range strings.SplitSeq(text, "\n---\n") {
		var o object
		if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
			return nil, err
		}
		var into any
		switch o.APIVersion + " " + o.Kind {
		case "v1 Service":
			m.services[o.Metadata.Name] = &service{}
			into = m.services[o.Metadata.Name]
		case "apps/v1 StatefulSet":
			m.set = &statefulSet{}
			into = m.set
		case "policy/v1 PodDisruptionBudget":
			m.budget = &disruptionBudget{}
			into = m.budget
		case "networking.k8s.io/v1 NetworkPolicy":
			m.policy = &networkPolicy{}
			into = m.policy
		default:
			return nil, fmt.Errorf("%s %s: nobody here knows such an object", o.APIVersion, o.Kind)
		}
		if err := strict(doc, func() any { return into }); err != nil {
			return nil, fmt.Errorf("%s %s: %w", o.Kind, o.Metadata.Name, err)
		}
	}
	return m, nil
}

// manifests is the text of all manifests of the tree, for [Kubernetes].
func (r *reader) manifests() string {
	var all []string
	for _, f := range r.files(kubernetesDir, ".yaml") {
		if f != "kustomization.yaml" {
			all = append(all, strings.TrimSpace(r.text(kubernetesDir+"/"+f)))
		}
	}
	return strings.Join(all, "\n---\n")
}

// kubernetes judges the manifests.
func (r *reader) kubernetes(image *Image) {
	r.kustomization()
	text := r.manifests()
	m, err := readManifests(text)
	var nodes []*Node
	if err == nil {
		nodes, err = Kubernetes(text, image)
	}
	if err != nil {
		r.wrong(kubernetesDir, "%v", err)
		return
	}
	if m.budget == nil || m.policy == nil {
		r.wrong(kubernetesDir, "there is no PodDisruptionBudget, or no NetworkPolicy")
		return
	}
	for _, n := range nodes {
		r.node(n)
	}
	r.cluster(kubernetesDir, nodes)
	if len(nodes) == 0 {
		return
	}
	c := m.set.Spec.Template.Spec.Containers[0]
	ports := r.containerPorts(c, nodes[0])
	r.peersService(m, nodes[0])
	r.selectors(m)
	r.networkPorts(m, ports)
	r.probes(c)
	r.pod(m, c)
}

// containerPorts judges the ports of a container, and returns their protocols by name.
func (r *reader) containerPorts(c container, n *Node) map[string]string {
	found, want := map[string]string{}, n.ports()
	want["gossip-udp"] = want["gossip"]
	for _, p := range c.Ports {
		found[p.Name] = p.Protocol
		if want[p.Name] != p.ContainerPort || (p.Name == "gossip-udp") != (p.Protocol == "UDP") {
			r.wrong(kubernetesDir, "the port %s is %d/%s, and the node listens at %d", p.Name, p.ContainerPort, p.Protocol, want[p.Name])
		}
		delete(want, p.Name)
	}
	for name := range want {
		r.wrong(kubernetesDir, "the container names no port %s", name)
	}
	return found
}

// peersService judges the service by which nodes find each other.
func (r *reader) peersService(m *manifests, n *Node) {
	s := m.services[m.set.Spec.ServiceName]
	if s == nil {
		r.wrong(kubernetesDir, "there is no Service %q, which the StatefulSet names", m.set.Spec.ServiceName)
		return
	}
	if s.Spec.ClusterIP != "None" || !s.Spec.PublishNotReady {
		r.wrong(kubernetesDir, "the Service %s has to be headless, and to publish addresses that are not ready: nodes are ready only after they have found each other", s.Metadata.Name)
	}
	if m.set.Spec.PodManagementPolicy != "Parallel" {
		r.wrong(kubernetesDir, "pods that start one after the other wait for ever: the first one is ready when the cluster is made, and that takes all founders")
	}
	join := list(n.settings["join"])
	if len(join) == 0 {
		r.wrong(kubernetesDir, "the nodes join nobody")
	}
	for _, to := range join {
		host, port, _ := strings.Cut(to, ":")
		if host != s.Metadata.Name || port != strconv.Itoa(n.ports()["gossip"]) {
			r.wrong(kubernetesDir, "the nodes join %s, which is not the gossip port of %s", to, s.Metadata.Name)
		}
	}
}

// selectors judges that all that selects pods selects those of the set.
func (r *reader) selectors(m *manifests) {
	pods := m.set.Spec.Template.Metadata.Labels
	check := func(what string, selector map[string]string) {
		if !has(pods, selector) {
			r.wrong(kubernetesDir, "%s selects %v, and the pods are labelled %v", what, selector, pods)
		}
	}
	check("the StatefulSet", m.set.Spec.Selector.MatchLabels)
	check("the PodDisruptionBudget", m.budget.Spec.Selector.MatchLabels)
	check("the NetworkPolicy", m.policy.Spec.PodSelector.MatchLabels)
	for name, s := range m.services {
		check("the Service "+name, s.Spec.Selector)
	}
	spec := m.set.Spec.Template.Spec
	if len(spec.Affinity.PodAntiAffinity.Required) == 0 {
		r.wrong(kubernetesDir, "owner and standby may run on one machine")
	}
	for _, a := range spec.Affinity.PodAntiAffinity.Required {
		check("the anti-affinity", a.Selector.MatchLabels)
	}
	for _, s := range spec.Spread {
		check("the spread over "+s.TopologyKey, s.Selector.MatchLabels)
	}
	inside := slices.ContainsFunc(m.policy.Spec.Ingress, func(in ingressRule) bool {
		return len(in.From) == 1 && in.From[0].Namespaces == nil && has(pods, in.From[0].Pods.MatchLabels) && len(in.Ports) == 4
	})
	if !inside {
		r.wrong(kubernetesDir, "the NetworkPolicy does not let the nodes reach the four ports of each other")
	}
}

// networkPorts judges the ports that services and the policy name.
func (r *reader) networkPorts(m *manifests, ports map[string]string) {
	check := func(what, port, protocol string) {
		if ports[port] == "" || ports[port] != protocol {
			r.wrong(kubernetesDir, "%s names the port %s/%s, which the container has not", what, port, protocol)
		}
	}
	for name, s := range m.services {
		for _, p := range s.Spec.Ports {
			check("the Service "+name, p.TargetPort, p.Protocol)
		}
	}
	for _, in := range m.policy.Spec.Ingress {
		if len(in.From) == 0 {
			r.wrong(kubernetesDir, "the NetworkPolicy lets everybody in")
		}
		for _, p := range in.Ports {
			check("the NetworkPolicy", p.Port, p.Protocol)
		}
	}
	if m.budget.Spec.MaxUnavailable != 1 {
		r.wrong(kubernetesDir, "%d pods may be evicted at once: owner and standby may be among them", m.budget.Spec.MaxUnavailable)
	}
}

func (r *reader) probes(c container) {
	for name, p := range map[string]probe{"startup": c.Startup, "liveness": c.Liveness, "readiness": c.Readiness} {
		if p.HTTPGet.Path != pages[name] || p.HTTPGet.Port != "metrics" {
			r.wrong(kubernetesDir, "the %s probe asks %q at %q: let it be %s at the metrics port", name, p.HTTPGet.Path, p.HTTPGet.Port, pages[name])
		}
		if p.PeriodSeconds <= 0 || p.TimeoutSeconds <= 0 || p.FailureThreshold <= 0 {
			r.wrong(kubernetesDir, "the %s probe does not say how often, how long and how many times", name)
		}
	}
}

// pod judges how the pod is bounded, and that what it keeps is a claim.
func (r *reader) pod(m *manifests, c container) {
	s := m.set.Spec.Template.Spec
	x, y := s.SecurityContext, c.SecurityContext
	if !x.NonRoot || x.User == 0 || x.FSGroup != x.User || x.Seccomp.Type == "" || y.Escalation == nil || *y.Escalation || !y.ReadOnlyRoot || !slices.Equal(y.Capabilities.Drop, []string{"ALL"}) {
		r.wrong(kubernetesDir, "the pod may more than it needs: %+v %+v", x, y)
	}
	if s.MountToken == nil || *s.MountToken {
		r.wrong(kubernetesDir, "the pod gets a token of the API server, which it does not need")
	}
	claims := map[string]bool{}
	for _, claim := range m.set.Spec.Claims {
		claims[claim.Metadata.Name] = true
	}
	for _, mount := range c.Mounts {
		if !claims[mount.Name] {
			r.wrong(kubernetesDir, "%s is mounted at %s, and claimed nowhere", mount.Name, mount.Path)
		}
	}
	if m.set.Spec.ClaimRetention.WhenScaled != "Retain" || m.set.Spec.ClaimRetention.WhenDeleted != "Retain" {
		r.wrong(kubernetesDir, "claims have to outlive their pods")
	}
	if m.set.Spec.MinReadySeconds < 5 {
		r.wrong(kubernetesDir, "the next pod is stopped %d s after one is ready: it may not vote yet", m.set.Spec.MinReadySeconds)
	}
}

// kustomization judges that it lists all manifests.
func (r *reader) kustomization() {
	file := kubernetesDir + "/kustomization.yaml"
	var k kustomization
	if err := strict(r.text(file), func() any { return &k }); err != nil {
		r.wrong(file, "%v", err)
		return
	}
	want := slices.DeleteFunc(r.files(kubernetesDir, ".yaml"), func(f string) bool { return f == "kustomization.yaml" })
	if got := slices.Sorted(slices.Values(k.Resources)); !slices.Equal(got, want) {
		r.wrong(file, "it lists %v, and there are %v", got, want)
	}
	images := map[string]bool{}
	for _, i := range k.Images {
		images[i.Name] = true
	}
	if !maps.Equal(images, map[string]bool{"keystead": true}) {
		r.wrong(file, "the images %v", images)
	}
}
