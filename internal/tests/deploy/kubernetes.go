package deploy

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

const kubernetesDir = "deploy/kubernetes"

// Addresses that stand for those which Kubernetes will give to pods.
const examplePod = "10.0.0."

// pages are those of the metrics address that probes may ask.
var pages = map[string]string{"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}

// manifests are all objects of a directory.
type manifests struct {
	services map[string]*core.Service
	set      *apps.StatefulSet
	budget   *policy.PodDisruptionBudget
	policy   *networking.NetworkPolicy
}

// Kubernetes returns the nodes of manifests, in order of their pods; they run image. The
// documents of all files are given, split by lines of "---".
func Kubernetes(text string, image *Image) ([]*Node, error) {
	m, err := readManifests(text)
	if err != nil {
		return nil, err
	}
	if m.set == nil || len(m.set.Spec.Template.Spec.Containers) != 1 || m.set.Spec.Replicas == nil {
		return nil, fmt.Errorf("there is no StatefulSet with replicas of one container")
	}
	pod := m.set.Spec.Template.Spec
	c := pod.Containers[0]
	if pod.TerminationGracePeriodSeconds == nil || c.Lifecycle == nil || c.Lifecycle.PreStop == nil || c.Lifecycle.PreStop.Sleep == nil {
		return nil, fmt.Errorf("it does not say how long a pod may take to end, and sleeps before")
	}
	patience := time.Duration(*pod.TerminationGracePeriodSeconds-c.Lifecycle.PreStop.Sleep.Seconds) * time.Second
	var nodes []*Node
	for i := range int(*m.set.Spec.Replicas) {
		name := m.set.Name + "-" + strconv.Itoa(i)
		env := map[string]string{}
		for _, v := range c.Env {
			if env[v.Name], err = valueIn(v, name, examplePod+strconv.Itoa(i+1)); err != nil {
				return nil, err
			}
			if v.ValueFrom != nil && v.ValueFrom.SecretKeyRef != nil {
				delete(env, v.Name)
			}
		}
		n := &Node{Where: kubernetesDir + " " + name, Args: c.Args, Env: under(image.Env, env), Memory: c.Resources.Limits.Memory().Value(), Patience: patience}
		for _, mount := range c.VolumeMounts {
			n.Volume = mount.MountPath
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

// valueIn returns the value of a variable in a pod; one from a Secret has none here.
func valueIn(v core.EnvVar, name, addr string) (string, error) {
	from := v.ValueFrom
	switch {
	case from == nil:
		return v.Value, nil
	case from.SecretKeyRef != nil && from.SecretKeyRef.Optional != nil && *from.SecretKeyRef.Optional:
		return "", nil
	case from.SecretKeyRef != nil:
		return "", fmt.Errorf("%s comes from a Secret that nobody makes: say optional", v.Name)
	case from.FieldRef != nil && from.FieldRef.FieldPath == "metadata.name":
		return name, nil
	case from.FieldRef != nil && from.FieldRef.FieldPath == "status.podIP":
		return addr, nil
	}
	return "", fmt.Errorf("%s comes from %v, which nobody here knows", v.Name, from)
}

func readManifests(text string) (*manifests, error) {
	m := &manifests{services: map[string]*core.Service{}}
	for doc := range strings.SplitSeq(text, "\n---\n") {
		var o meta.PartialObjectMetadata
		if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
			return nil, err
		}
		var into any
		switch o.APIVersion + " " + o.Kind {
		case "v1 Service":
			m.services[o.Name] = &core.Service{}
			into = m.services[o.Name]
		case "apps/v1 StatefulSet":
			m.set = &apps.StatefulSet{}
			into = m.set
		case "policy/v1 PodDisruptionBudget":
			m.budget = &policy.PodDisruptionBudget{}
			into = m.budget
		case "networking.k8s.io/v1 NetworkPolicy":
			m.policy = &networking.NetworkPolicy{}
			into = m.policy
		default:
			return nil, fmt.Errorf("%s %s: nobody here knows such an object", o.APIVersion, o.Kind)
		}
		if err := yaml.UnmarshalStrict([]byte(doc), into); err != nil {
			return nil, fmt.Errorf("%s %s: %w", o.Kind, o.Name, err)
		}
	}
	return m, nil
}

// manifests returns the text of all manifests of the tree, for [Kubernetes].
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
func (r *reader) containerPorts(c core.Container, n *Node) map[string]core.Protocol {
	found, want := map[string]core.Protocol{}, n.ports()
	want["gossip-udp"] = want["gossip"]
	for _, p := range c.Ports {
		found[p.Name] = p.Protocol
		if want[p.Name] != int(p.ContainerPort) || (p.Name == "gossip-udp") != (p.Protocol == core.ProtocolUDP) {
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
	if s.Spec.ClusterIP != core.ClusterIPNone || !s.Spec.PublishNotReadyAddresses {
		r.wrong(kubernetesDir, "the Service %s has to be headless, and to publish addresses that are not ready: nodes are ready only after they have found each other", s.Name)
	}
	if m.set.Spec.PodManagementPolicy != apps.ParallelPodManagement {
		r.wrong(kubernetesDir, "pods that start one after the other wait for ever: the first one is ready when the cluster is made, and that takes all founders")
	}
	join := list(n.settings["join"])
	if len(join) == 0 {
		r.wrong(kubernetesDir, "the nodes join nobody")
	}
	for _, to := range join {
		host, port, _ := strings.Cut(to, ":")
		if host != s.Name || port != strconv.Itoa(n.ports()["gossip"]) {
			r.wrong(kubernetesDir, "the nodes join %s, which is not the gossip port of %s", to, s.Name)
		}
	}
}

// selectors judges that all that selects pods selects those of the set.
func (r *reader) selectors(m *manifests) {
	pods := m.set.Spec.Template.Labels
	check := func(what string, selector *meta.LabelSelector) {
		if !has(pods, selector) {
			r.wrong(kubernetesDir, "%s selects %v, and the pods are labelled %v", what, selector, pods)
		}
	}
	check("the StatefulSet", m.set.Spec.Selector)
	check("the PodDisruptionBudget", m.budget.Spec.Selector)
	check("the NetworkPolicy", &m.policy.Spec.PodSelector)
	for name, s := range m.services {
		check("the Service "+name, &meta.LabelSelector{MatchLabels: s.Spec.Selector})
	}
	spec := m.set.Spec.Template.Spec
	if a := spec.Affinity; a == nil || a.PodAntiAffinity == nil || len(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) == 0 {
		r.wrong(kubernetesDir, "owner and standby may run on one machine")
	} else {
		for _, t := range a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
			check("the anti-affinity", t.LabelSelector)
		}
	}
	for _, s := range spec.TopologySpreadConstraints {
		check("the spread over "+s.TopologyKey, s.LabelSelector)
	}
	inside := slices.ContainsFunc(m.policy.Spec.Ingress, func(in networking.NetworkPolicyIngressRule) bool {
		return len(in.From) == 1 && in.From[0].NamespaceSelector == nil && has(pods, in.From[0].PodSelector) && len(in.Ports) == 4
	})
	if !inside {
		r.wrong(kubernetesDir, "the NetworkPolicy does not let the nodes reach the four ports of each other")
	}
}

// networkPorts judges the ports that services and the policy name.
func (r *reader) networkPorts(m *manifests, ports map[string]core.Protocol) {
	check := func(what, port string, protocol core.Protocol) {
		if ports[port] == "" || ports[port] != protocol {
			r.wrong(kubernetesDir, "%s names the port %s/%s, which the container has not", what, port, protocol)
		}
	}
	for name, s := range m.services {
		for _, p := range s.Spec.Ports {
			check("the Service "+name, p.TargetPort.StrVal, p.Protocol)
		}
	}
	for _, in := range m.policy.Spec.Ingress {
		if len(in.From) == 0 {
			r.wrong(kubernetesDir, "the NetworkPolicy lets everybody in")
		}
		for _, p := range in.Ports {
			if p.Port == nil || p.Protocol == nil {
				r.wrong(kubernetesDir, "the NetworkPolicy names a port without its name or protocol")
				continue
			}
			check("the NetworkPolicy", p.Port.StrVal, *p.Protocol)
		}
	}
	if most := m.budget.Spec.MaxUnavailable; most == nil || most.String() != "1" {
		r.wrong(kubernetesDir, "%v pods may be evicted at once: owner and standby may be among them", most)
	}
}

func (r *reader) probes(c core.Container) {
	for name, p := range map[string]*core.Probe{"startup": c.StartupProbe, "liveness": c.LivenessProbe, "readiness": c.ReadinessProbe} {
		if p == nil || p.HTTPGet == nil {
			r.wrong(kubernetesDir, "there is no %s probe of a page", name)
			continue
		}
		if p.HTTPGet.Path != pages[name] || p.HTTPGet.Port.StrVal != "metrics" {
			r.wrong(kubernetesDir, "the %s probe asks %q at %q: let it be %s at the metrics port", name, p.HTTPGet.Path, p.HTTPGet.Port.StrVal, pages[name])
		}
		if p.PeriodSeconds <= 0 || p.TimeoutSeconds <= 0 || p.FailureThreshold <= 0 {
			r.wrong(kubernetesDir, "the %s probe does not say how often, how long and how many times", name)
		}
	}
}

// pod judges how the pod is bounded, and that what it keeps is a claim.
func (r *reader) pod(m *manifests, c core.Container) {
	s := m.set.Spec.Template.Spec
	if x, y := s.SecurityContext, c.SecurityContext; x == nil || y == nil || !confined(x, y) {
		r.wrong(kubernetesDir, "the pod may more than it needs: %v %v", x, y)
	}
	if s.AutomountServiceAccountToken == nil || *s.AutomountServiceAccountToken {
		r.wrong(kubernetesDir, "the pod gets a token of the API server, which it does not need")
	}
	claims := map[string]bool{}
	for _, claim := range m.set.Spec.VolumeClaimTemplates {
		claims[claim.Name] = true
	}
	for _, mount := range c.VolumeMounts {
		if !claims[mount.Name] {
			r.wrong(kubernetesDir, "%s is mounted at %s, and claimed nowhere", mount.Name, mount.MountPath)
		}
	}
	const keep = apps.RetainPersistentVolumeClaimRetentionPolicyType
	if p := m.set.Spec.PersistentVolumeClaimRetentionPolicy; p == nil || p.WhenScaled != keep || p.WhenDeleted != keep {
		r.wrong(kubernetesDir, "claims have to outlive their pods")
	}
	if m.set.Spec.MinReadySeconds < 5 {
		r.wrong(kubernetesDir, "the next pod is stopped %d s after one is ready: it may not vote yet", m.set.Spec.MinReadySeconds)
	}
}

// confined reports whether a container is no root, in no way, and writes to its volume
// alone.
func confined(x *core.PodSecurityContext, y *core.SecurityContext) bool {
	is := func(b *bool, want bool) bool { return b != nil && *b == want }
	return is(x.RunAsNonRoot, true) && x.RunAsUser != nil && *x.RunAsUser != 0 && x.FSGroup != nil && *x.FSGroup == *x.RunAsUser && x.SeccompProfile != nil &&
		is(y.AllowPrivilegeEscalation, false) && is(y.ReadOnlyRootFilesystem, true) &&
		y.Capabilities != nil && slices.Equal(y.Capabilities.Drop, []core.Capability{"ALL"})
}

// kustomization judges that it lists all manifests.
func (r *reader) kustomization() {
	file := kubernetesDir + "/kustomization.yaml"
	var k struct {
		meta.TypeMeta `json:",inline"`
		Resources     []string
		Images        []struct{ Name, NewName, NewTag string }
	}
	if err := yaml.UnmarshalStrict([]byte(r.text(file)), &k); err != nil {
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
