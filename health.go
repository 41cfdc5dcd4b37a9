package kelson

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apikeel/kelson/internal/logwatch"
	"github.com/apikeel/kelson/internal/protect"
	"github.com/apikeel/kelson/request"
)

// hookCheck is the prefix of the names of post-start hook checks.
const hookCheck = "poststarthook/"

// HealthCheck is one check of /healthz, /livez and /readyz.
type HealthCheck struct {
	Name  string
	Check func(ctx context.Context) error
	// Group, if set, is a name by which several checks can be excluded together.
	Group string
	// On are the endpoints that include the check; the default is all.
	On Endpoints
	// After, if set, is the post-start hook that the check belongs to: the check is
	// listed after it, and /livez includes it only once the hook is done.
	After string
}

// Endpoints is a set of health endpoints.
type Endpoints uint8

// The endpoints. /livez is about whether the server should be restarted, /readyz about
// whether it should get requests; /healthz is deprecated.
const (
	Healthz Endpoints = 1 << iota
	Livez
	Readyz
)

var endpointNames = [...]string{"healthz", "livez", "readyz"}

// installHealth collects the checks, and adds /healthz, /livez and /readyz. Each check
// has a path below these, which pathHandler finds.
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
	s.healthChecks = slices.Clone(checks) // without the room that appending has left
	for i, name := range endpointNames {
		s.paths["/"+name] = s.health(name, 1<<i)
	}
	return nil
}

// checksOf returns the checks of an endpoint.
func (s *Server) checksOf(endpoint Endpoints) iter.Seq[HealthCheck] {
	return func(yield func(HealthCheck) bool) {
		for _, check := range s.healthChecks {
			if check.On != 0 && check.On&endpoint == 0 {
				continue
			}
			if endpoint == Livez && check.After != "" {
				check.Check = s.withLivezGrace(check.Check)
			}
			if !yield(check) {
				return
			}
		}
	}
}

// checkHandler returns the handler of a path with the name of a check: /livez/ping. It
// is nil if there is no such check.
func (s *Server) checkHandler(path string) http.Handler {
	for i, endpoint := range endpointNames {
		if name, ok := strings.CutPrefix(path, "/"+endpoint+"/"); ok {
			for check := range s.checksOf(1 << i) {
				if check.Name == name {
					return http.HandlerFunc(check.serve)
				}
			}
		}
	}
	return nil
}

// ownCertificate checks the certificate that the server has issued to itself. It is renewed in
// time, so this fails only if the clock was far off or the CA has expired.
func (s *Server) ownCertificate(context.Context) error {
	if !s.PKI.ServerCertificateValid() {
		return errors.New("loopback serving certificate is expired")
	}
	return nil
}

// withLivezGrace wraps a check so that it passes during LivezGrace after the start.
func (s *Server) withLivezGrace(check func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if time.Since(s.began) < s.LivezGrace {
			return nil
		}
		return check(ctx)
	}
}

// serve answers a request for a single check.
func (c HealthCheck) serve(w http.ResponseWriter, r *http.Request) {
	if err := c.Check(r.Context()); err != nil {
		http.Error(w, fmt.Sprintf("internal server error: %v", err), http.StatusInternalServerError)
		return
	}
	_, _ = w.Write([]byte("ok"))
}

// runChecks runs the checks of an endpoint concurrently, except for those that are excluded
// by name or group, and returns the errors of those that failed, by name. The slowest one
// decides how long the answer takes: two that wait for the same store wait once.
func (s *Server) runChecks(ctx context.Context, endpoint Endpoints, excluded map[string]bool) map[string]error {
	var mu sync.Mutex
	failed := map[string]error{}
	var running protect.Group
	for check := range s.checksOf(endpoint) {
		if excluded[check.Name] || check.Group != "" && excluded[check.Group] {
			continue
		}
		running.Go(func() {
			if err := check.Check(ctx); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed[check.Name] = err
			}
		})
	}
	running.Wait()
	return failed
}

// Ready runs the checks of /readyz, and returns why those that fail do.
func (s *Server) Ready(ctx context.Context) error {
	failed := s.runChecks(ctx, Readyz, nil)
	if len(failed) == 0 {
		s.signal(&s.signals.HasBeenReady)
		return nil
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(failed)) {
		errs = append(errs, fmt.Errorf("%s: %w", name, failed[name]))
	}
	return errors.Join(errs...)
}

// health answers a request for all checks.
func (s *Server) health(name string, endpoint Endpoints) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		query := request.QueryOf(r)
		excluded := map[string]bool{}
		for _, check := range query.All("exclude") {
			excluded[check] = true
		}
		unknown := maps.Clone(excluded)
		var text bytes.Buffer
		failed := false
		results := s.runChecks(r.Context(), endpoint, excluded)
		for check := range s.checksOf(endpoint) {
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
			err := results[check.Name]
			if s.Checks != nil {
				s.Checks.Observe(name, check.Name, err == nil)
			}
			if err != nil {
				// The endpoint may be public, so the reason is only logged.
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
