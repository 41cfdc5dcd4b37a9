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

	"github.com/apikeel/kelson/resource"
)

// Config is what the kinds of the group need from outside.
type Config struct {
	// Allocator hands out cluster IPs and node ports. The default keeps them in
	// memory and knows of no existing services, which only an empty server can
	// afford.
	Allocator Allocator
	// Log, slog.Default if it is nil, gets what goes wrong after an answer is
	// settled: an address that could not be given back.
	Log *slog.Logger
	// KubeletAddresses are the types of addresses at which kubelets are reached,
	// the preferred one first. The default is the names before the addresses, and
	// what is inside before what is outside.
	KubeletAddresses []corev1.NodeAddressType
	// KubeletPort is where kubelets listen whose nodes do not say; the default is
	// 10250.
	KubeletPort int
	// SplitLogs lets the log of a container be read stream by stream.
	SplitLogs bool
	// Components are what the component statuses tell of.
	Components []Component
	// EventTTL is how long events are kept, one hour if it is zero.
	EventTTL time.Duration
	// Tokens is how service accounts get tokens.
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
	kubelets := kubelets{cfg.KubeletAddresses, cfg.KubeletPort, cfg.SplitLogs}
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

// frozen wants the fields of an immutable object to stay as they are; changed
// tells by name which did not.
func frozen(immutable, old *bool, changed map[string]bool) field.ErrorList {
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
