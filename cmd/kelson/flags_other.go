package main

import (
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
)

// foreign is a flag of kube-apiserver that has no meaning here.
type foreign struct {
	name   string
	kind   string // type of its value, as pflag calls it
	value  string // kube-apiserver's default
	reason string
	// deprecated is kube-apiserver's deprecation message.
	deprecated string
	// fine are values that match what this server does anyway.
	fine []string
	// wrong returns kube-apiserver's error for a value, reported at the position at;
	// nil accepts all.
	at    check
	wrong func(value string) error
}

// foreignFlags are accepted with a warning, so that command lines for kube-apiserver
// work, or refused with a reason.
func foreignFlags() []foreign {
	const (
		metrics = "the metrics are current whenever they are read"
		cache   = "the cache has everything, at no fixed size"
		logs    = "logs are lines on the standard error"
	)
	return []foreign{
		{name: "storage-backend", kind: "string", reason: "it is etcd v3; see --storage", fine: []string{"", "etcd3"}, at: checkStorageBackend, wrong: wrongBackend},
		{name: "etcd-count-metric-poll-period", kind: "duration", value: "1m0s", reason: metrics},
		{name: "etcd-db-metric-poll-interval", kind: "duration", value: "30s", reason: metrics},
		{name: "storage-initialization-timeout", kind: "duration", value: "1m0s", reason: "the server is ready when its caches are", at: checkStorageTimeout, wrong: wrongTimeout},
		{name: "watch-cache", kind: "bool", value: "true", reason: cache, fine: []string{"true"}},
		{name: "watch-cache-sizes", kind: "strings", value: "[]", reason: cache},
		{name: "delete-collection-workers", kind: "int", value: "1", reason: "collections are deleted as fast as the store takes it"},
		{name: "enable-garbage-collector", kind: "bool", value: "true", reason: "owners are always honoured", fine: []string{"true"}},

		{name: "kubelet-timeout", kind: "duration", value: "5s", reason: "connections to kubelets last as long as their requests"},

		{name: "kubelet-read-only-port", kind: "uint", deprecated: "kubelet-read-only-port is deprecated and will be removed.", value: "10255", reason: "kubelets are not spoken to without TLS", fine: []string{"10255"}},
		{name: "default-watch-cache-size", kind: "int", value: "100", reason: cache,
			deprecated: "Watch caches are sized automatically. This flag is no-op and it will be removed in a future version."},

		{name: "log-flush-frequency", kind: "duration", value: "5s", reason: logs},
		{name: "log-text-split-stream", kind: "bool", value: "false", reason: logs},
		{name: "log-text-info-buffer-size", kind: "quantity", value: "0", reason: logs},
		{name: "log-json-split-stream", kind: "bool", value: "false", reason: logs},
		{name: "log-json-info-buffer-size", kind: "quantity", value: "0", reason: logs},
	}
}

// otherFlags are the flags without a meaning here.
type otherFlags struct{ given []*foreignValue }

// foreignValue accepts any value of its type.
type foreignValue struct {
	foreign
	values []string
}

// Set implements pflag.Value.
func (v *foreignValue) Set(text string) (err error) {
	switch v.kind {
	case "bool":
		_, err = strconv.ParseBool(text)
	case "int":
		_, err = strconv.ParseInt(text, 0, 64)
	case "uint":
		_, err = strconv.ParseUint(text, 0, 64)
	case "duration":
		_, err = time.ParseDuration(text)
	case "quantity":
		_, err = apiresource.ParseQuantity(text)
	}
	if err != nil {
		return err
	}
	if v.kind == "strings" {
		if text != "" {
			v.values = append(v.values, strings.Split(text, ",")...)
		}
	} else {
		v.values = []string{text}
	}
	return nil
}

// String implements pflag.Value.
func (v *foreignValue) String() string {
	if len(v.values) == 0 {
		return v.value
	}
	return strings.Join(v.values, ",")
}

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
		added.Deprecated = flag.deprecated
	}
}

func (f *otherFlags) apply(s *setup) {
	var without []string
	cached, err := strconv.ParseBool(f.value("watch-cache").String())
	s.config.NoWatchCache = err == nil && !cached
	for _, flag := range f.given {
		err := flag.refused()
		switch {
		case err != nil:
			s.refuse(flag.at, err)
		case len(flag.values) == 0 || flag.isFine():
		default:
			without = append(without, "--"+flag.name+" ("+flag.reason+")")
		}
	}
	if len(without) > 0 {
		s.log.Warn("flags have no effect here", "flags", strings.Join(without, ", "))
	}
}

// refused returns the error for the values, if any.
func (v *foreignValue) refused() error {
	for _, value := range v.values {
		if v.wrong != nil && value != "" {
			if err := v.wrong(value); err != nil {
				return err
			}
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
