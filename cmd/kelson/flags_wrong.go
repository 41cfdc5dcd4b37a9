package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// These functions return kube-apiserver's errors for values of flags that have no
// meaning here, so that a mistake in a command line is reported by both.

func wrongBackend(text string) error {
	if text != "etcd3" {
		return errors.New("--storage-backend invalid, allowed values: etcd3. If not specified, it will default to 'etcd3'")
	}
	return nil
}

func wrongTimeout(text string) error {
	if d, _ := time.ParseDuration(text); d < 0 {
		return errors.New("--storage-initialization-timeout can not be negative value")
	}
	return nil
}

// checkCaches validates the sizes of caches, if the watch cache is on.
func (f *otherFlags) checkCaches(*setup) error {
	if on, _ := strconv.ParseBool(f.value("watch-cache").String()); !on {
		return nil
	}
	for _, text := range f.value("watch-cache-sizes").values {
		parts := strings.Split(text, "#")
		if len(parts) != 2 {
			return fmt.Errorf("invalid value of watch cache size: %s", text)
		}
		n, err := strconv.Atoi(parts[1])
		if err != nil {
			return fmt.Errorf("invalid size of watch cache size: %s", text)
		}
		if n < 0 {
			return fmt.Errorf("watch cache size cannot be negative: %s", text)
		}
	}
	return nil
}

// value returns a flag that exists.
func (f *otherFlags) value(name string) *foreignValue {
	return f.given[slices.IndexFunc(f.given, func(v *foreignValue) bool { return v.name == name })]
}

// checkLogs refuses unknown log formats, and options whose gate is off.
func (f *otherFlags) checkLogs(s *setup) error {
	var errs []error
	if d, _ := time.ParseDuration(f.value("log-flush-frequency").String()); d <= 0 {
		errs = append(errs, field.Invalid(field.NewPath("flushFrequency"), d.String(), "Must be greater than zero"))
	}
	format := s.flags.Lookup("logging-format").Value.String()
	if format != "text" && format != "json" {
		errs = append(errs, field.Invalid(field.NewPath("format"), format, "Unsupported log format"))
	}
	if format != "text" && s.flags.Lookup("vmodule").Value.String() != "" {
		errs = append(errs, field.Forbidden(field.NewPath("vmodule"), "Only supported for text log format"))
	}
	const gate = "LoggingAlphaOptions"
	if s.gates.Enabled(gate) {
		return errors.Join(errs...)
	}
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
