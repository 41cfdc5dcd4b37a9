package serverflags_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/serverflags"
	"github.com/apikeel/kelson/storage/memory"
)

// plugin is an admission plugin that does nothing but be there.
type plugin string

func (p plugin) Name() string                  { return string(p) }
func (p plugin) Handles(admission.Target) bool { return false }

// given is a store that a server has before flags are applied to it.
var given = memory.New(memory.Options{})

// apply returns a server to which flags were applied.
func apply(t *testing.T, gate *bool, args ...string) (*kelson.Server, error) {
	t.Helper()
	s := &kelson.Server{Name: "x", Storage: given, Admission: []admission.Plugin{plugin("A"), plugin("B")}}
	s.Serving.MaxStreams = 7
	o := serverflags.New(s)
	o.Logs, o.Gates = &bytes.Buffer{}, map[string]*bool{"Fast": gate}
	fs := pflag.NewFlagSet("x", pflag.ContinueOnError)
	o.Bind(fs)
	if err := fs.Parse(args); err != nil {
		return s, err
	}
	closeAll, err := o.Apply(t.Context())
	if closeErr := closeAll(); closeErr != nil {
		t.Error(closeErr)
	}
	return s, err
}

func TestApply(t *testing.T) {
	var gate bool
	s, err := apply(t, &gate, "--secure-port=4", "--bind-address=0.0.0.0", "--disable-admission-plugins=A", "--feature-gates=Fast=true", "--shutdown-delay-duration=3s",
		"--tls-min-version=VersionTLS13", "--request-timeout=9s", "--logging-format=json", "--goaway-chance=0.01")
	if err != nil {
		t.Fatal(err)
	}
	if s.Addr != "0.0.0.0:4" || len(s.Admission) != 1 || s.Admission[0].Name() != "B" || !gate || s.Shutdown.Delay.Seconds() != 3 ||
		s.Serving.MinVersion != "VersionTLS13" || s.RequestTimeout.Seconds() != 9 || s.Logger == nil || s.Flow == nil || s.Serving.GoawayChance != 0.01 {
		t.Errorf("%+v", s)
	}
	// What no flag speaks of stays.
	if s.Storage != given || s.Serving.MaxStreams != 7 || s.Audit != nil || s.Authenticate != nil {
		t.Errorf("%+v", s)
	}
}

func TestRefused(t *testing.T) {
	for args, want := range map[string]string{
		"--disable-admission-plugins=C": "unknown admission plugin",
		"--feature-gates=Slow=true":     "unrecognized feature gate",
		"--feature-gates=Fast=maybe":    "invalid value",
		"--logging-format=xml":          "text or json",
		"--goaway-chance=1":             "goaway-chance",
		"--kubeconfig=/nowhere":         "nowhere",
		"--unheard-of":                  "unknown flag",
	} {
		if _, err := apply(t, new(bool), strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", args, err)
		}
	}
}

// TestRun runs a server from its command line, and stops it.
func TestRun(t *testing.T) {
	started, cancel := context.WithCancel(t.Context())
	s := &kelson.Server{Name: "x", PostStartHooks: []kelson.Hook{{Name: "stop", Run: func(context.Context) error { cancel(); return nil }}}}
	if err := serverflags.Run(started, s, []string{"--secure-port=0", "-v=0"}); err != nil {
		t.Error(err)
	}
	if err := serverflags.Run(t.Context(), &kelson.Server{}, []string{"extra"}); err == nil {
		t.Error("an argument is accepted")
	}
}

// TestFeatureGatesReachTheServer has --feature-gates and --emulated-version set the
// gates of the server, and refuse what kube-apiserver refuses.
func TestFeatureGatesReachTheServer(t *testing.T) {
	for _, c := range []struct {
		args     string
		workload bool // GenericWorkload, which is off by default
		bundle   bool // ClusterTrustBundle, which is on since 1.37
		err      string
	}{
		{"", false, true, ""},
		{"--feature-gates=GenericWorkload=true,Fast=true", true, true, ""},
		{"--emulated-version=1.36", false, false, ""},
		{"--emulated-version=1.36 --feature-gates=ClusterTrustBundle=true", false, true, ""},
		{"--feature-gates=Unheard=true", false, false, "unrecognized feature gate: Unheard"},
		{"--emulated-version=1.34 --feature-gates=AggregatedDiscoveryRemoveBetaType=false", false, false, "--feature-gates: this server cannot switch off what is behind AggregatedDiscoveryRemoveBetaType"},
		{"--feature-gates=CompositePodGroup=true", false, false, "CompositePodGroup is enabled, but depends on features that are disabled: [GenericWorkload TopologyAwareWorkloadScheduling]"},
		{"--emulated-version=1.30", false, false, "emulation version 1.30 is not between [1.34, 1.37.0]"},
	} {
		s, fast := &kelson.Server{Name: "x"}, false
		o := serverflags.New(s)
		o.Logs, o.Gates, o.FeatureGates = &bytes.Buffer{}, map[string]*bool{"Fast": &fast}, features.Kubernetes()
		fs := pflag.NewFlagSet("x", pflag.ContinueOnError)
		o.Bind(fs)
		if err := fs.Parse(strings.Fields(c.args)); err != nil {
			t.Fatal(err)
		}
		closeAll, err := o.Apply(t.Context())
		if closeErr := closeAll(); closeErr != nil {
			t.Error(closeErr)
		}
		switch {
		case c.err != "":
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%q: got %v, want %s", c.args, err, c.err)
			}
		case err != nil:
			t.Errorf("%q: %v", c.args, err)
		default:
			if got := s.Gates.Enabled("GenericWorkload"); got != c.workload {
				t.Errorf("%q: GenericWorkload: got %v, want %v", c.args, got, c.workload)
			}
			if got := s.Gates.Enabled("ClusterTrustBundle"); got != c.bundle {
				t.Errorf("%q: ClusterTrustBundle: got %v, want %v", c.args, got, c.bundle)
			}
			if want := strings.Contains(c.args, "Fast=true"); fast != want {
				t.Errorf("%q: Fast: got %v, want %v", c.args, fast, want)
			}
		}
	}
}

// TestGatesOfALibraryUser has a kind of a server, and a field of another kind, be
// behind a gate in a table of its own.
func TestGatesOfALibraryUser(t *testing.T) {
	table, err := features.ParseTable("Fast 1.37=ALPHA,off does=here")
	if err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]bool{"": false, "--feature-gates=Fast=true": true} {
		maps := resource.Definition{
			Group: "example.com", Resource: "fastmaps", Kind: "Secret", Gate: "Fast",
			Versions: []resource.Version{resource.VersionOf[corev1.Secret, corev1.SecretList]("v1", nil)},
		}
		others := resource.Definition{
			Group: "example.com", Resource: "othermaps", Kind: "ConfigMap", GatedFields: []resource.GatedField{{Path: "immutable", Gate: "Fast"}},
			Versions: []resource.Version{resource.VersionOf[corev1.ConfigMap, corev1.ConfigMapList]("v1", nil)},
		}
		s := &kelson.Server{Name: "x", Groups: []resource.Group{{Name: "example.com", Resources: []resource.Definition{maps, others}}}}
		o := serverflags.New(s)
		o.Logs, o.FeatureGates = &bytes.Buffer{}, table
		fs := pflag.NewFlagSet("x", pflag.ContinueOnError)
		o.Bind(fs)
		if err := fs.Parse(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		if _, err := o.Apply(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := s.PrepareRun(); err != nil {
			t.Fatal(err)
		}
		ask := func(method, path, body string) string {
			r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
			r.Header.Set("Content-Type", "application/json")
			resp, err := s.Loopback(request.User{Name: "x"}).RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := io.ReadAll(resp.Body)
			if err := errors.Join(err, resp.Body.Close()); err != nil {
				t.Fatal(err)
			}
			return string(answer)
		}
		list := ask(http.MethodGet, "/apis/example.com/v1", "")
		if got := strings.Contains(list, `"fastmaps"`); got != want || !strings.Contains(list, `"othermaps"`) {
			t.Errorf("%q: the kind is served: got %v, want %v: %s", args, got, want, list)
		}
		made := ask(http.MethodPost, "/apis/example.com/v1/othermaps", `{"metadata":{"name":"a"},"immutable":true}`)
		if got := strings.Contains(made, `"immutable":true`); got != want || !strings.Contains(made, `"name":"a"`) {
			t.Errorf("%q: the field is kept: got %v, want %v: %s", args, got, want, made)
		}
		for _, end := range s.Close {
			if err := end(); err != nil {
				t.Error(err)
			}
		}
	}
}
