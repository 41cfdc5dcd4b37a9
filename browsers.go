package kelson

import (
	"math/rand/v2"
	"net/http"
	"regexp"
	"strings"
)

// hsts is the stage that sets Strict-Transport-Security.
func (s *Server) hsts() stage {
	if len(s.Serving.HSTS) == 0 {
		return stage{}
	}
	// Shared by all responses, and never changed in place.
	value := []string{strings.Join(s.Serving.HSTS, "; ")}
	return stage{begin: func(x *exchange) bool {
		h := x.writer.Header()
		if _, ok := h["Strict-Transport-Security"]; !ok {
			h["Strict-Transport-Security"] = value[:1:1]
		}
		return true
	}}
}

// goaway is the stage that closes some HTTP/2 connections at random, so that clients
// spread over the servers behind a load balancer, and before the server ends all
// connections that are used: their clients find another server in time.
func (s *Server) goaway() stage {
	chance := s.Serving.GoawayChance
	return stage{begin: func(x *exchange) bool {
		switch {
		case s.parting.Load() && x.r.ProtoMajor == 1:
			x.writer.Header().Set("Connection", "close")
		case s.parting.Load() || chance > 0 && rand.Float64() < chance:
			x.disconnect()
		}
		return true
	}}
}

// cors is the stage that allows pages of other origins to use the server. It answers
// preflight requests without authentication.
func (s *Server) cors() stage {
	var allowed []*regexp.Regexp
	for _, origin := range s.Serving.CORS {
		allowed = append(allowed, regexp.MustCompile(origin)) // Validate has compiled it
	}
	if len(allowed) == 0 {
		return stage{}
	}
	return stage{begin: func(x *exchange) bool {
		origin := x.r.Header.Get("Origin")
		if origin == "" || !matchesAny(allowed, origin) {
			return true
		}
		h := x.writer.Header()
		h.Set("Access-Control-Allow-Origin", origin)
		h.Set("Access-Control-Allow-Methods", "POST, GET, OPTIONS, PUT, DELETE, PATCH")
		h.Set("Access-Control-Allow-Headers", "Content-Type, Content-Length, Accept-Encoding, X-CSRF-Token, Authorization, X-Requested-With, If-Modified-Since")
		h.Set("Access-Control-Expose-Headers", "Date")
		h.Set("Access-Control-Allow-Credentials", "true")
		if x.r.Method == http.MethodOptions {
			x.w.WriteHeader(http.StatusNoContent)
			return false
		}
		return true
	}}
}

func matchesAny(expressions []*regexp.Regexp, text string) bool {
	for _, e := range expressions {
		if e.MatchString(text) {
			return true
		}
	}
	return false
}
