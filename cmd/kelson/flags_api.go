package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/apikeel/kelson/controlplane"
	"github.com/spf13/pflag"
)

// apiFlags say what is served, and how requests are treated.
type apiFlags struct {
	controlplane.Config
	minRequestTimeout int
	gates             []string
}

func (f *apiFlags) bind(fs *pflag.FlagSet) {
	fs.Var(settings{to: &f.RuntimeConfig, bare: true}, "runtime-config", "`versions` of the API to switch on and off: api/beta=true, apps/v1beta1=true, batch/v1/cronjobs=false; keys are also api/all, api/ga and api/alpha")
	fs.StringSliceVar(&f.gates, "feature-gates", nil, "`gates` of Kubernetes: Name=true,Other=false")
	bindOpposite(fs, &f.DenyPrivileged, "allow-privileged", "let pods have privileged containers")
	fs.DurationVar(&f.EventTTL, "event-ttl", time.Hour, "how long events are kept")
	fs.DurationVar(&f.RequestTimeout, "request-timeout", time.Minute, "how long a request may take that is not a watch or the like")
	fs.IntVar(&f.minRequestTimeout, "min-request-timeout", 1800, "`seconds` that a watch lasts at least, and half of what it lasts at most, if its client does not say; 0 is for ever")
}

func (f *apiFlags) apply(s *setup) error {
	errs := []error{negative("request-timeout", f.RequestTimeout), negative("min-request-timeout", f.minRequestTimeout), f.nameCore()}
	c := s.config
	c.RuntimeConfig, c.DenyPrivileged, c.EventTTL, c.RequestTimeout = f.RuntimeConfig, f.DenyPrivileged, f.EventTTL, f.RequestTimeout
	if c.MinRequestTimeout = time.Duration(f.minRequestTimeout) * time.Second; c.MinRequestTimeout == 0 {
		c.MinRequestTimeout = -1 // zero is the default
	}
	var err error
	s.config.Debug.Gates, err = checkGates(f.gates, s.log)
	return errors.Join(append(errs, err)...)
}

// nameCore gives the one version that has no group, and that may be written in
// several ways, its name.
func (f *apiFlags) nameCore() error {
	for key, value := range f.RuntimeConfig {
		version, _, _ := strings.Cut(strings.TrimPrefix(key, "api/"), "/")
		switch {
		case key == "api/legacy":
			delete(f.RuntimeConfig, key)
		case version != "v1":
		case value == "false":
			return fmt.Errorf("--runtime-config=%s=false: without this version there is no server", key)
		default:
			delete(f.RuntimeConfig, key)
			f.RuntimeConfig["/v1"] = value
		}
	}
	return nil
}
