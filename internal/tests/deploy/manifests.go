package deploy

// Of the objects of Kubernetes, the fields that are in use, under their own names. What
// is not here is refused: whoever needs another field adds it, and thinks of what is
// to be judged about it.

// object is any of them.
type object struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   metadata
}

type metadata struct {
	Name   string
	Labels map[string]string
}

type labelSelector struct {
	MatchLabels map[string]string `yaml:"matchLabels"`
}

type service struct {
	object `yaml:",inline"`
	Spec   struct {
		ClusterIP       string `yaml:"clusterIP"`
		PublishNotReady bool   `yaml:"publishNotReadyAddresses"`
		Selector        map[string]string
		Ports           []servicePort
	}
}

type servicePort struct {
	Name        string
	Port        int
	TargetPort  string `yaml:"targetPort"`
	Protocol    string
	AppProtocol string `yaml:"appProtocol"`
}

type statefulSet struct {
	object `yaml:",inline"`
	Spec   struct {
		ServiceName         string `yaml:"serviceName"`
		Replicas            int
		PodManagementPolicy string `yaml:"podManagementPolicy"`
		MinReadySeconds     int    `yaml:"minReadySeconds"`
		UpdateStrategy      struct {
			Type string
		} `yaml:"updateStrategy"`
		ClaimRetention struct {
			WhenDeleted string `yaml:"whenDeleted"`
			WhenScaled  string `yaml:"whenScaled"`
		} `yaml:"persistentVolumeClaimRetentionPolicy"`
		Selector labelSelector
		Template struct {
			Metadata metadata
			Spec     podSpec
		}
		Claims []struct {
			Metadata metadata
			Spec     struct {
				AccessModes []string `yaml:"accessModes"`
				Resources   struct{ Requests map[string]string }
			}
		} `yaml:"volumeClaimTemplates"`
	}
}

type podSpec struct {
	GraceSeconds    int                `yaml:"terminationGracePeriodSeconds"`
	MountToken      *bool              `yaml:"automountServiceAccountToken"`
	ServiceLinks    *bool              `yaml:"enableServiceLinks"`
	SecurityContext podSecurityContext `yaml:"securityContext"`
	Affinity        struct {
		PodAntiAffinity struct {
			Required []struct {
				TopologyKey string        `yaml:"topologyKey"`
				Selector    labelSelector `yaml:"labelSelector"`
			} `yaml:"requiredDuringSchedulingIgnoredDuringExecution"`
		} `yaml:"podAntiAffinity"`
	}
	Spread []struct {
		MaxSkew     int           `yaml:"maxSkew"`
		TopologyKey string        `yaml:"topologyKey"`
		Otherwise   string        `yaml:"whenUnsatisfiable"`
		Selector    labelSelector `yaml:"labelSelector"`
	} `yaml:"topologySpreadConstraints"`
	Containers []container
}

type podSecurityContext struct {
	NonRoot       bool   `yaml:"runAsNonRoot"`
	User          int    `yaml:"runAsUser"`
	Group         int    `yaml:"runAsGroup"`
	FSGroup       int    `yaml:"fsGroup"`
	FSGroupChange string `yaml:"fsGroupChangePolicy"`
	Seccomp       struct {
		Type string
	} `yaml:"seccompProfile"`
}

type container struct {
	Name       string
	Image      string
	PullPolicy string `yaml:"imagePullPolicy"`
	Args       []string
	Env        []envVar
	Ports      []struct {
		Name          string
		ContainerPort int `yaml:"containerPort"`
		Protocol      string
	}
	Startup   probe `yaml:"startupProbe"`
	Liveness  probe `yaml:"livenessProbe"`
	Readiness probe `yaml:"readinessProbe"`
	Lifecycle struct {
		PreStop struct {
			Sleep struct{ Seconds int }
		} `yaml:"preStop"`
	}
	Resources struct {
		Requests, Limits map[string]string
	}
	SecurityContext struct {
		Escalation   *bool `yaml:"allowPrivilegeEscalation"`
		ReadOnlyRoot bool  `yaml:"readOnlyRootFilesystem"`
		Capabilities struct{ Drop []string }
	} `yaml:"securityContext"`
	Mounts []struct {
		Name string
		Path string `yaml:"mountPath"`
	} `yaml:"volumeMounts"`
}

type envVar struct {
	Name, Value string
	ValueFrom   struct {
		FieldRef struct {
			FieldPath string `yaml:"fieldPath"`
		} `yaml:"fieldRef"`
		SecretKeyRef struct {
			Name, Key string
			Optional  bool
		} `yaml:"secretKeyRef"`
	} `yaml:"valueFrom"`
}

type probe struct {
	HTTPGet          struct{ Path, Port string } `yaml:"httpGet"`
	PeriodSeconds    int                         `yaml:"periodSeconds"`
	TimeoutSeconds   int                         `yaml:"timeoutSeconds"`
	FailureThreshold int                         `yaml:"failureThreshold"`
}

type disruptionBudget struct {
	object `yaml:",inline"`
	Spec   struct {
		MaxUnavailable  int    `yaml:"maxUnavailable"`
		UnhealthyPolicy string `yaml:"unhealthyPodEvictionPolicy"`
		Selector        labelSelector
	}
}

type networkPolicy struct {
	object `yaml:",inline"`
	Spec   struct {
		PodSelector labelSelector `yaml:"podSelector"`
		PolicyTypes []string      `yaml:"policyTypes"`
		Ingress     []ingressRule
	}
}

type ingressRule struct {
	From []struct {
		Pods       labelSelector  `yaml:"podSelector"`
		Namespaces *labelSelector `yaml:"namespaceSelector"`
	}
	Ports []struct{ Port, Protocol string }
}

type kustomization struct {
	object    `yaml:",inline"`
	Resources []string
	Images    []struct {
		Name    string
		NewName string `yaml:"newName"`
		NewTag  string `yaml:"newTag"`
	}
}

// manifests are all objects of a directory.
type manifests struct {
	services map[string]*service
	set      *statefulSet
	budget   *disruptionBudget
	policy   *networkPolicy
}
