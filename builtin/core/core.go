// Package core is the API group without a name, the core group: a file for each
// kind.
//
// Start at Group, which lists the kinds. Services need addresses and ports that
// are unique in the cluster; they get them from the Allocator of the Config.
//
// No other group may import this package. Rules that kinds of other groups need
// as well are in builtin/rules and, for pod specs and volumes, builtin/podspec.
package core

import (
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/resource"
)

// Config are the dependencies of the kinds of the group.
type Config struct {
	// Allocator allocates cluster IPs and node ports. The default keeps them in memory
	// and does not know existing services, so it is only for a server with an empty store.
	Allocator Allocator
	// Log receives errors that occur after the response, such as an address that could
	// not be released; nil is slog.Default.
	Log *slog.Logger
	// KubeletAddresses are the node address types to reach kubelets by, the preferred one
	// first. The default is hostnames before IPs, internal before external.
	KubeletAddresses []corev1.NodeAddressType
	// KubeletPort is the port of kubelets whose nodes do not declare one; the default is
	// 10250.
	KubeletPort int
	// Gates are the feature gates of connections to kubelets.
	Gates features.Gates
	// SplitLogs allows reading stdout and stderr of a container separately.
	SplitLogs bool
	// Components are reported by componentstatuses.
	Components []Component
	// EventTTL is how long events are stored; zero is one hour.
	EventTTL time.Duration
	// Tokens issues service account tokens.
	Tokens Tokens
}

func (c Config) defaults() Config {
	if c.Allocator == nil {
		c.Allocator = NewMemoryAllocator(MemoryAllocatorConfig{})
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.KubeletPort == 0 {
		c.KubeletPort = defaultKubeletPort
	}
	if c.KubeletAddresses == nil {
		c.KubeletAddresses = []corev1.NodeAddressType{
			corev1.NodeHostName, corev1.NodeInternalDNS, corev1.NodeInternalIP, corev1.NodeExternalDNS, corev1.NodeExternalIP,
		}
	}
	if c.EventTTL == 0 {
		c.EventTTL = time.Hour
	}
	return c
}

// Group returns the core group.
func Group(cfg Config) resource.Group {
	cfg = cfg.defaults()
	kubelets := kubelets{cfg.KubeletAddresses, cfg.KubeletPort, cfg.SplitLogs, cfg.Gates}
	return resource.Group{Resources: []resource.Definition{
		Bindings(),
		ComponentStatuses(cfg.Components),
		ConfigMaps(),
		Endpoints(),
		Events(cfg.EventTTL),
		LimitRanges(),
		Namespaces(),
		with(Nodes(), nodeProxy(kubelets)),
		PersistentVolumeClaims(),
		PersistentVolumes(),
		with(Pods(), podConnections(kubelets)...),
		PodTemplates(),
		ReplicationControllers(),
		ResourceQuotas(),
		Secrets(),
		ServiceAccounts(cfg.Tokens),
		with(Services(cfg.Allocator, cfg.Log), serviceProxy(cfg.Allocator)),
	}}
}

// with adds subresources to a definition.
func with(d resource.Definition, subresources ...resource.Subresource) resource.Definition {
	d.Subresources = append(d.Subresources, subresources...)
	return d
}

// checkImmutable checks that an immutable object keeps its data; changed has the fields that did
// change.
func checkImmutable(immutable, old *bool, changed map[string]bool) field.ErrorList {
	if old == nil || !*old {
		return nil
	}
	changed["immutable"] = immutable == nil || !*immutable
	var errs field.ErrorList
	for _, name := range []string{"immutable", "data", "binaryData"} {
		if changed[name] {
			errs = append(errs, field.Forbidden(field.NewPath(name), "field is immutable when `immutable` is set"))
		}
	}
	return errs
}
