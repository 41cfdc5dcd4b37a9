package kelson

import (
	"net/http"
	"testing"
	"time"

	"github.com/apikeel/kelson/request"
)

func TestMiddleware(t *testing.T) {
	at := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	s := start(t, &Server{
		Now: func() time.Time { return at },
		Middleware: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				req := request.From(r.Context())
				if req.Resource == "secrets" {
					http.Error(w, req.User.Name+" may not "+req.Verb, http.StatusTeapot)
					return
				}
				w.Header().Set("Seen", "yes")
				next.ServeHTTP(w, r)
			})
		},
		API: routes{
			"/api/v1/pods": func(w http.ResponseWriter, r *http.Request) {
				req := request.From(r.Context())
				if !req.Received.Equal(at) || time.Since(req.Arrived()) > time.Hour {
					t.Errorf("received at %v, by the machine at %v", req.Received, req.Arrived())
				}
				if deadline, ok := r.Context().Deadline(); !ok || time.Until(deadline) <= 0 {
					t.Errorf("the deadline is %v", deadline)
				}
				say("pods")(w, r)
			},
			"/api/v1/secrets": say("secrets"),
		},
	})
	admin := s.admin(t)
	if code, body, header := s.get(t, admin, "GET", "/api/v1/pods"); code != 200 || body != "pods" || header.Get("Seen") != "yes" {
		t.Errorf("%d %q %v", code, body, header)
	}
	if code, body, _ := s.get(t, admin, "GET", "/api/v1/secrets"); code != http.StatusTeapot || body != "kubernetes-admin may not list\n" {
		t.Errorf("%d %q", code, body)
	}
	own := &http.Client{Transport: s.Loopback(request.User{Name: "self"})}
	if code, body, header := s.get(t, own, "GET", "/api/v1/secrets"); code != 200 || body != "secrets" || header.Get("Seen") != "" {
		t.Errorf("what the server asks of itself: %d %q", code, body)
	}
}
