package main

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// foreign is a flag of kube-apiserver that means nothing here.
type foreign struct {
	name   string
	kind   string // of its value, as pflag calls it
	reason string
	// harmful ones are refused: whoever gives them counts on what they do.
	harmful bool
	// fine are values that are what this server does anyway.
	fine []string
}

// foreignFlags are accepted with a warning, so that what was written for
// kube-apiserver works, or refused with a reason.
func foreignFlags() []foreign {
	const (
		metrics = "there are no such metrics"
		peers   = "servers do not pass requests on to each other"
		leader  = "there is no coordinated leader election"
		cache   = "the cache has everything, at no fixed size"
		logs    = "logs are lines on the standard error"
		etcd    = "etcd is followed, not polled"
		version = "there is one version of the server to be"
	)
	return []foreign{
		{name: "etcd-servers-overrides", kind: "strings", reason: "all objects are in one etcd", harmful: true},
		{name: "storage-backend", kind: "string", reason: "it is etcd v3; see --storage", harmful: true, fine: []string{"", "etcd3"}},
		{name: "storage-media-type", kind: "string", reason: "built-in kinds are stored as protobuf", fine: []string{"application/vnd.kubernetes.protobuf"}},
		{name: "etcd-count-metric-poll-period", kind: "duration", reason: metrics},
		{name: "etcd-db-metric-poll-interval", kind: "duration", reason: metrics},
		{name: "etcd-healthcheck-timeout", kind: "duration", reason: etcd},
		{name: "etcd-readycheck-timeout", kind: "duration", reason: etcd},
		{name: "storage-initialization-timeout", kind: "duration", reason: "the server is ready when its caches are"},
		{name: "watch-cache", kind: "bool", reason: cache, fine: []string{"true"}},
		{name: "watch-cache-sizes", kind: "strings", reason: cache},
		{name: "delete-collection-workers", kind: "int", reason: "collections are deleted as fast as the store takes it"},
		{name: "enable-garbage-collector", kind: "bool", reason: "owners are always honoured", fine: []string{"true"}},

		{name: "max-connection-bytes-per-sec", kind: "int", reason: "connections are not throttled", fine: []string{"0"}},

		{name: "egress-selector-config-file", kind: "string", reason: "connections to the cluster are made directly", harmful: true},
		{name: "service-account-signing-endpoint", kind: "string", reason: "tokens are signed with a key in a file", harmful: true},
		{name: "endpoint-reconciler-type", kind: "string", reason: "the service kubernetes points to this server"},
		{name: "kubernetes-service-node-port", kind: "int", reason: "the service kubernetes has no node port", fine: []string{"0"}},
		{name: "kubelet-timeout", kind: "duration", reason: "connections to kubelets last as long as their requests"},

		{name: "emulated-version", kind: "strings", reason: version, harmful: true, fine: []string{"1.37", "kube=1.37"}},
		{name: "min-compatibility-version", kind: "strings", reason: version},
		{name: "emulation-forward-compatible", kind: "bool", reason: version},
		{name: "runtime-config-emulation-forward-compatible", kind: "bool", reason: version},

		{name: "coordinated-leadership-lease-duration", kind: "duration", reason: leader},
		{name: "coordinated-leadership-renew-deadline", kind: "duration", reason: leader},
		{name: "coordinated-leadership-retry-period", kind: "duration", reason: leader},
		{name: "peer-advertise-ip", kind: "string", reason: peers},
		{name: "peer-advertise-port", kind: "string", reason: peers},
		{name: "peer-ca-file", kind: "string", reason: peers},

		{name: "contention-profiling", kind: "bool", reason: "locks are not profiled", fine: []string{"false"}},
		{name: "debug-socket-path", kind: "string", reason: "profiles are served with everything else"},
		{name: "enable-logs-handler", kind: "bool", reason: "logs are not served", fine: []string{"false"}},
		{name: "tracing-config-file", kind: "string", reason: "requests are not traced"},
		{name: "allow-metric-labels", kind: "stringToString", reason: metrics},
		{name: "allow-metric-labels-manifest", kind: "string", reason: metrics},
		{name: "disabled-metrics", kind: "strings", reason: metrics},
		{name: "show-hidden-metrics-for-version", kind: "string", reason: metrics},
		{name: "log-flush-frequency", kind: "duration", reason: logs},
		{name: "log-json-info-buffer-size", kind: "quantity", reason: logs},
		{name: "log-json-split-stream", kind: "bool", reason: logs},
		{name: "log-text-info-buffer-size", kind: "quantity", reason: logs},
		{name: "log-text-split-stream", kind: "bool", reason: logs},
		{name: "vmodule", kind: "pattern=N,...", reason: logs},
	}
}

// otherFlags are the foreign ones.
type otherFlags struct{ given []*foreignValue }

// foreignValue takes whatever it is given.
type foreignValue struct {
	foreign
	values []string
}

// Set implements pflag.Value.
func (v *foreignValue) Set(text string) error {
	v.values = append(v.values, text)
	return nil
}

// String implements pflag.Value.
func (v *foreignValue) String() string { return strings.Join(v.values, ",") }

// Type implements pflag.Value.
func (v *foreignValue) Type() string { return v.kind }

func (f *otherFlags) bind(fs *pflag.FlagSet) {
	for _, flag := range foreignFlags() {
		value := &foreignValue{foreign: flag}
		f.given = append(f.given, value)
		added := fs.VarPF(value, flag.name, "", flag.reason)
		added.Hidden = true
		if flag.kind == "bool" {
			added.NoOptDefVal = "true"
		}
	}
}

func (f *otherFlags) apply(s *setup) error {
	for _, flag := range f.given {
		switch {
		case len(flag.values) == 0 || flag.isFine():
		case flag.harmful:
			return fmt.Errorf("--%s is not supported: %s", flag.name, flag.reason)
		default:
			s.log.Warn("flag has no effect here", "flag", "--"+flag.name, "reason", flag.reason)
		}
	}
	return nil
}

func (v *foreignValue) isFine() bool {
	for _, value := range v.values {
		fine := false
		for _, good := range v.fine {
			fine = fine || value == good
		}
		if !fine {
			return false
		}
	}
	return true
}
