package kelson

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apikeel/kelson/internal/logwatch"
)

// hookCheck is how the names of the checks of post-start hooks begin.
const hookCheck = "poststarthook/"

// HealthCheck is one thing that must be well.
type HealthCheck struct {
	Name  string
	Check func(ctx context.Context) error
	// Group, if it has one, is a name by which it can be excluded with others.
	Group string
	// On are the endpoints that ask it; the default is all of them.
	On Endpoints
	// After is the post-start hook that it belongs to, if it does: it comes after
	// that one, and /livez asks it no sooner.
	After string
}

// Endpoints are some of those that tell how the server is.
type Endpoints uint8

// The endpoints. What is on /livez is about whether it would help to start the
// server again, what is on /readyz about whether it should get requests, and
// /healthz is for those who do not know the other two yet.
const (
	Healthz Endpoints = 1 << iota
	Livez
	Readyz
)

var endpointNames = [...]string{"healthz", "livez", "readyz"}

// installHealth adds /healthz, /livez and /readyz, and a path for every check
// below each of them.
func (s *Server) installHealth() error {
	fine := func(context.Context) error { return nil }
	checks := []HealthCheck{
		{Name: "ping", Check: fine},
		{Name: "log", Check: logwatch.Check(s.Logger)},
		{Name: "loopback-serving-certificate", On: Healthz | Livez, Check: s.ownCertificate},
	}
	belonging := map[string][]HealthCheck{}
	for _, link := range slices.Backward(s.chain) {
		for _, check := range link.HealthChecks {
			if check.After != "" {
				belonging[check.After] = append(belonging[check.After], check)
			} else {
				checks = append(checks, check)
			}
		}
	}
	for _, hook := range s.hooks {
		checks = append(checks, HealthCheck{Name: hookCheck + hook.Name, After: hook.Name, Check: func(context.Context) error {
			if !hook.done.Load() {
				return errors.New("not finished")
			}
			return nil
		}})
		checks = append(checks, belonging[hook.Name]...)
	}
	checks = append(checks, HealthCheck{Name: "shutdown", On: Readyz, Check: func(context.Context) error {
		if s.signals.ShutdownInitiated.HasHappened() {
			return errors.New("process is shutting down")
		}
		return nil
	}})

	seen := map[string]bool{}
	for _, check := range checks {
		switch {
		case check.Name == "" || check.Check == nil:
			return errors.New("a health check has no name or function")
		case seen[check.Name]:
			return fmt.Errorf("there are two health checks %q", check.Name)
		}
		seen[check.Name] = true
	}
	for i, name := range endpointNames {
		endpoint := Endpoints(1 << i)
		var own []HealthCheck
		for _, check := range checks {
			if check.On != 0 && check.On&endpoint == 0 {
				continue
			}
			if endpoint == Livez && check.After != "" {
				check.Check = s.graced(check.Check)
			}
			own = append(own, check)
			s.paths["/"+name+"/"+check.Name] = http.HandlerFunc(check.serve)
		}
		s.paths["/"+name] = s.health(name, own)
	}
	return nil
}

// ownCertificate checks that the certificate which the server has issued to itself
// is good. It is renewed in time, so that only a clock that was far off, or an
// authority that has come to its end, makes this fail.
func (s *Server) ownCertificate(context.Context) error {
	own, err := s.PKI.ServerCertificate(nil)
	if err == nil && time.Now().After(own.Leaf.NotAfter) {
		err = errors.New("loopback serving certificate is expired")
	}
	return err
}

// graced is a check that does not fail as long as the server may take to start.
func (s *Server) graced(check func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if time.Since(s.began) < s.LivezGrace {
			return nil
		}
		return check(ctx)
	}
}

// serve answers for one check.
func (c HealthCheck) serve(w http.ResponseWriter, r *http.Request) {
	if err := c.Check(r.Context()); err != nil {
		http.Error(w, fmt.Sprintf("internal server error: %v", err), http.StatusInternalServerError)
		return
	}
	_, _ = w.Write([]byte("ok"))
}

// health answers for all checks together.
func (s *Server) health(name string, checks []HealthCheck) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		excluded := map[string]bool{}
		for _, check := range query["exclude"] {
			excluded[check] = true
		}
		unknown := maps.Clone(excluded)
		var text bytes.Buffer
		failed := false
		for _, check := range checks {
			if excluded[check.Name] {
				delete(unknown, check.Name)
				fmt.Fprintf(&text, "[+]%s excluded: ok\n", check.Name)
				continue
			}
			if check.Group != "" && excluded[check.Group] {
				delete(unknown, check.Group)
				fmt.Fprintf(&text, "[+]%s excluded with %s: ok\n", check.Name, check.Group)
				continue
			}
			err := check.Check(r.Context())
			if s.Checks != nil {
				s.Checks.Observe(name, check.Name, err == nil)
			}
			if err != nil {
				// Everybody can ask, so why it failed is for the log.
				fmt.Fprintf(&text, "[-]%s failed: reason withheld\n", check.Name)
				s.strangers.Log(r.Context(), s.Logger, slog.LevelInfo, "health check failed", "endpoint", name, "check", check.Name, "error", err)
				failed = true
			} else {
				fmt.Fprintf(&text, "[+]%s ok\n", check.Name)
			}
		}
		if len(unknown) > 0 {
			var names []string
			for _, check := range slices.Sorted(maps.Keys(unknown)) {
				names = append(names, strconv.Quote(check))
			}
			fmt.Fprintf(&text, "warn: some health checks cannot be excluded: no matches for %s\n", strings.Join(names, ","))
		}
		if failed {
			http.Error(w, text.String()+name+" check failed", http.StatusInternalServerError)
			return
		}
		if name == "readyz" {
			s.signal(&s.signals.HasBeenReady)
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if !query.Has("verbose") {
			_, _ = w.Write([]byte("ok"))
			return
		}
		fmt.Fprintf(&text, "%s check passed\n", name)
		_, _ = w.Write(text.Bytes())
	}
}
