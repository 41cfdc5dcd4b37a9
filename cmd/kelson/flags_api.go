package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/apikeel/kelson/builtin"
	"github.com/apikeel/kelson/controlplane"
	"github.com/spf13/pflag"
)

// apiFlags are the flags about what is served, and about timeouts.
type apiFlags struct {
	controlplane.Config
	minRequestTimeout int
	gates             gateFlags
}

func (f *apiFlags) bind(fs *pflag.FlagSet) {
	fs.Var(settings{to: &f.RuntimeConfig, bare: true}, "runtime-config", "`versions` of the API to switch on and off: api/beta=true, apps/v1beta1=true, batch/v1/cronjobs=false; keys are also api/all, api/ga and api/alpha")
	f.gates.bind(fs)
	for _, l := range f.leadership() {
		fs.DurationVar(l.value, l.name, l.usual, l.help)
	}
	bindOpposite(fs, &f.DenyPrivileged, "allow-privileged", "let pods have privileged containers")
	fs.DurationVar(&f.EventTTL, "event-ttl", time.Hour, "how long events are kept")
	fs.DurationVar(&f.RequestTimeout, "request-timeout", time.Minute, "how long a request may take that is not a watch or the like")
	fs.IntVar(&f.minRequestTimeout, "min-request-timeout", 1800, "`seconds` that a watch lasts at least, and half of what it lasts at most, if its client does not say; 0 is for ever")
}

func (f *apiFlags) apply(s *setup) {
	s.refuse(checkRequestTimeout, negative("request-timeout", f.RequestTimeout))
	s.refuse(checkMinRequestTimeout, negative("min-request-timeout", f.minRequestTimeout))
	s.refuse(checkRuntimeConfig, f.nameCore(), builtin.CheckKeys(f.RuntimeConfig))
	s.refuse(lateRuntimeConfig, builtin.CheckConfig(f.RuntimeConfig))
	c := s.config
	c.RuntimeConfig, c.DenyPrivileged, c.EventTTL, c.RequestTimeout = f.RuntimeConfig, f.DenyPrivileged, f.EventTTL, f.RequestTimeout
	if c.MinRequestTimeout = time.Duration(f.minRequestTimeout) * time.Second; c.MinRequestTimeout == 0 {
		c.MinRequestTimeout = -1 // zero is the default
	}
	f.gates.apply(s)
	s.refuse(checkLeadership, f.wrongLeadership())
	c.Leadership = f.Leadership
}

// leadershipFlag is a duration of coordinated leader election.
type leadershipFlag struct {
	value *time.Duration
	name  string
	usual time.Duration
	help  string
}

func (f *apiFlags) leadership() []leadershipFlag {
	l := &f.Leadership
	return []leadershipFlag{
		{&l.Duration, "coordinated-leadership-lease-duration", 15 * time.Second, "how long one server chooses leaders, if CoordinatedLeaderElection has it do that, after it was last heard of"},
		{&l.Deadline, "coordinated-leadership-renew-deadline", 10 * time.Second, "how long it tries to say that it is there"},
		{&l.Retry, "coordinated-leadership-retry-period", 2 * time.Second, "how long it, and others that would do it instead, wait between two tries"},
	}
}

// wrongLeadership returns an error unless each duration is longer than the next.
func (f *apiFlags) wrongLeadership() error {
	var errs []error
	all := f.leadership()
	for i, l := range all[1:] {
		if *all[i].value <= *l.value {
			errs = append(errs, fmt.Errorf("--%s must be greater than --%s", all[i].name, l.name))
		}
	}
	return errors.Join(errs...)
}

// prepare sets the feature gates, on which other flags depend.
func (f *apiFlags) prepare(s *setup) (err error) {
	s.gates, err = f.gates.parse()
	return err
}

// nameCore normalizes the keys of --runtime-config for the core group, which can be
// written in several ways.
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
