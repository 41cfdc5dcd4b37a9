package main

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	library "github.com/apikeel/kelson"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// What kube-apiserver has against the values of flags that mean nothing here, in
// its words: whoever has a mistake in a command line should hear of it from both.

func wrongOverride(text string) error {
	key, servers, ok := strings.Cut(text, "#")
	ok = ok && strings.Count(key, "/") == 1
	for server := range strings.SplitSeq(servers, ";") {
		_, err := url.ParseRequestURI(server)
		ok = ok && err == nil
	}
	if !ok {
		return errors.New("--etcd-servers-overrides invalid, must be of format: group/resource#servers, where servers are URLs, semicolon separated")
	}
	return nil
}

func wrongBackend(text string) error {
	if text != "etcd3" {
		return errors.New("--storage-backend invalid, allowed values: etcd3. If not specified, it will default to 'etcd3'")
	}
	return nil
}

func wrongMediaType(text string) error {
	known := []string{"application/json", "application/vnd.kubernetes.protobuf", "application/yaml"}
	if !slices.Contains(known, text) {
		return fmt.Errorf("--storage-media-type %q invalid, allowed values: %s", text, strings.Join(known, ", "))
	}
	return nil
}

func wrongTimeout(text string) error {
	if d, _ := time.ParseDuration(text); d < 0 {
		return errors.New("--storage-initialization-timeout can not be negative value")
	}
	return nil
}

func wrongCacheSize(text string) error {
	_, size, ok := strings.Cut(text, "#")
	n, err := strconv.Atoi(size)
	switch {
	case !ok:
		return fmt.Errorf("invalid value of watch cache size: %s", text)
	case err != nil:
		return fmt.Errorf("invalid size of watch cache size: %s", text)
	case n < 0:
		return fmt.Errorf("watch cache size cannot be negative: %s", text)
	}
	return nil
}

// oldestVersion is how many minor versions kube-apiserver can go back.
const oldestVersion = 3

// parseVersion reads the version of a component, of which there is one: where it is
// in the order of versions, and how it is written.
func parseVersion(text string) (at int, name string, err error) {
	if component, rest, ok := strings.Cut(text, "="); ok {
		if component != "kube" {
			return 0, "", fmt.Errorf("component not registered: %s", component)
		}
		text = rest
	}
	text = strings.TrimPrefix(text, "v")
	major, minor, _ := strings.Cut(text, ".")
	if at, err = versionAt(major, minor); err != nil {
		return 0, "", fmt.Errorf("could not parse %q as version", text)
	}
	return at, text, nil
}

func versionAt(major, minor string) (int, error) {
	m, err := strconv.ParseUint(major, 10, 15)
	n, err2 := strconv.ParseUint(minor, 10, 15)
	return int(m<<16 + n), errors.Join(err, err2)
}

// versions returns the newest and the oldest version that kube-apiserver can be.
func versions() (newest, oldest int, newestName, oldestName string) {
	v := library.Version()
	minor, _ := strconv.Atoi(v.Minor)
	newest, _ = versionAt(v.Major, v.Minor)
	return newest, newest - oldestVersion, v.Major + "." + v.Minor, fmt.Sprintf("%s.%d", v.Major, minor-oldestVersion)
}

func wrongEmulation(text string) error {
	at, name, err := parseVersion(text)
	newest, oldest, newestName, oldestName := versions()
	if err != nil || oldest <= at && at <= newest {
		return err
	}
	err = fmt.Errorf("emulation version %s is not between [%s, %s.0]", name, oldestName, newestName)
	if at < oldest {
		err = errors.Join(err, fmt.Errorf("minCompatibilityVersion version %s is not between [%s, %s]", oldestName, oldestName, name))
	}
	return err
}

func wrongCompatibility(text string) error {
	at, name, err := parseVersion(text)
	newest, oldest, newestName, oldestName := versions()
	if err != nil || oldest <= at && at <= newest {
		return err
	}
	return fmt.Errorf("minCompatibilityVersion version %s is not between [%s, %s]", name, oldestName, newestName)
}

// forward refuses to be compatible with a later version, which only an older one
// can be.
func forward(option string) func(string) error {
	return func(text string) error {
		if on, _ := strconv.ParseBool(text); on {
			return fmt.Errorf("ServerRunOptions.%s cannot be set to true if the emulation version is the same as the binary version", option)
		}
		return nil
	}
}

// The flags of coordinated leader election.
const (
	leaseDuration = "coordinated-leadership-lease-duration"
	renewDeadline = "coordinated-leadership-renew-deadline"
	retryPeriod   = "coordinated-leadership-retry-period"
)

// wrongLeadership wants each of these to be longer than the next.
func (f *otherFlags) wrongLeadership() error {
	take := func(name string) time.Duration {
		i := slices.IndexFunc(f.given, func(v *foreignValue) bool { return v.name == name })
		d, _ := time.ParseDuration(f.given[i].String())
		return d
	}
	var errs []error
	for _, pair := range [][2]string{{leaseDuration, renewDeadline}, {renewDeadline, retryPeriod}} {
		if take(pair[0]) <= take(pair[1]) {
			errs = append(errs, fmt.Errorf("--%s must be greater than --%s", pair[0], pair[1]))
		}
	}
	return errors.Join(errs...)
}

// wrongLogs refuses what is behind a gate of its own.
func (f *otherFlags) wrongLogs(s *setup) error {
	const gate = "LoggingAlphaOptions"
	if strings.Contains(s.flags.Lookup("feature-gates").Value.String(), gate+"=true") {
		return nil
	}
	var errs []error
	for _, flag := range f.given {
		parts := strings.SplitN(flag.name, "-", 3)
		if parts[0] != "log" || parts[1] == "flush" || len(flag.values) == 0 || flag.values[0] == flag.value {
			continue
		}
		option := map[string]string{"split-stream": "splitStream", "info-buffer-size": "infoBufferSize"}[parts[2]]
		errs = append(errs, field.Forbidden(field.NewPath("options", parts[1], option), "Feature "+gate+" is disabled"))
	}
	return errors.Join(errs...)
}
