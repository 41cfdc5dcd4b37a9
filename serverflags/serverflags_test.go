package serverflags_test

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/serverflags"
)

// plugin is an admission plugin that does nothing but be there.
type plugin string

func (p plugin) Name() string                  { return string(p) }
func (p plugin) Handles(admission.Target) bool { return false }

// apply returns a server to which flags were applied.
func apply(t *testing.T, gate *bool, args ...string) (*kelson.Server, error) {
	t.Helper()
	s := &kelson.Server{Name: "x", DataDir: "given", Admission: []admission.Plugin{plugin("A"), plugin("B")}}
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
	if s.DataDir != "given" || s.Serving.MaxStreams != 7 || s.Audit != nil || s.Authenticate != nil {
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
