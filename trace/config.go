package trace

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/internal/configfile"
)

// DefaultEndpoint is the default address of the collector.
const DefaultEndpoint = "localhost:4317"

const (
	configKind = "TracingConfiguration"
	maxRate    = 1_000_000
)

// Config is a TracingConfiguration of apiserver.config.k8s.io.
type Config struct {
	metav1.TypeMeta `json:",inline"`
	// Endpoint is the address of the collector; nil is DefaultEndpoint.
	Endpoint *string `json:"endpoint,omitempty"`
	// SamplingRatePerMillion is how many of a million traces that begin here are
	// sampled; nil is none. A trace that began elsewhere is sampled if its parent is.
	SamplingRatePerMillion *int32 `json:"samplingRatePerMillion,omitempty"`
}

// ReadConfig reads a TracingConfiguration file.
func ReadConfig(file string) (*Config, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("failed to read tracing config: unable to read tracing configuration from %q: %w", file, err)
	}
	c, err := decodeConfig(data)
	if err != nil {
		return nil, fmt.Errorf("failed to read tracing config: unable to decode tracing configuration data: %w", err)
	}
	if errs := c.validate(); len(errs) > 0 {
		return nil, fmt.Errorf("failed to validate tracing configuration: %w", errs.ToAggregate())
	}
	return c, nil
}

func decodeConfig(data []byte) (*Config, error) {
	text, kind, err := configfile.Kind(data)
	if err != nil {
		return nil, err
	}
	c := &Config{}
	if string(text) == "null" {
		return c, nil
	}
	versions := []string{"", "apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1beta1", "apiserver.config.k8s.io/v1alpha1"}
	if !slices.Contains(versions, kind.GroupVersion().String()) || kind.Kind != "" && kind.Kind != configKind {
		return nil, configfile.Unknown(kind)
	}
	strict, err := configfile.UnmarshalStrict(text, c)
	if err != nil {
		return nil, err
	}
	if len(strict) > 0 {
		return nil, fmt.Errorf("strict decoding error: %w", errors.Join(strict...))
	}
	return c, nil
}

func (c *Config) validate() (errs field.ErrorList) {
	if c.SamplingRatePerMillion != nil {
		path, rate := field.NewPath("samplingRatePerMillion"), *c.SamplingRatePerMillion
		if rate < 0 {
			errs = append(errs, field.Invalid(path, rate, "sampling rate must be positive"))
		}
		if rate > maxRate {
			errs = append(errs, field.Invalid(path, rate, "sampling rate per million must be less than or equal to one million"))
		}
	}
	if c.Endpoint == nil {
		return errs
	}
	path, endpoint := field.NewPath("endpoint"), *c.Endpoint
	if !strings.Contains(endpoint, "//") {
		endpoint = "dns://" + endpoint
	}
	address, err := url.Parse(endpoint)
	if err != nil {
		return append(errs, field.Invalid(path, endpoint, err.Error()))
	}
	switch address.Scheme {
	case "dns", "unix", "unix-abstract":
	default:
		errs = append(errs, field.Invalid(path, endpoint, fmt.Sprintf("unsupported scheme: %v.  Options are none, dns, unix, or unix-abstract.  See https://github.com/grpc/grpc/blob/master/doc/naming.md", address.Scheme)))
	}
	return errs
}

// Ratio is the sampling rate, from 0 to 1.
func (c *Config) Ratio() float64 {
	if c.SamplingRatePerMillion == nil {
		return 0
	}
	return float64(*c.SamplingRatePerMillion) / maxRate
}
