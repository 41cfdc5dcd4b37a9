package kelson

import (
	"math/rand/v2"
	"net/http"
	"regexp"
	"strings"
)

// hsts tells browsers to come back over TLS only.
func (s *Server) hsts() stage {
	if len(s.Serving.HSTS) == 0 {
		return stage{}
	}
	// All answers share the value: nobody changes it in place.
	value := []string{strings.Join(s.Serving.HSTS, "; ")}
	return stage{begin: func(x *exchange) bool {
		h := x.writer.Header()
		if _, ok := h["Strict-Transport-Security"]; !ok {
			h["Strict-Transport-Security"] = value[:1:1]
		}
		return true
	}}
}

// goaway asks some clients to connect anew, so that in time they spread over
// all servers behind a load balancer.
func (s *Server) goaway() stage {
	if s.Serving.GoawayChance == 0 || s.Serving.DisableHTTP2 {
		return stage{}
	}
	return stage{begin: func(x *exchange) bool {
		if x.r.ProtoMajor == 2 && rand.Float64() < s.Serving.GoawayChance {
			x.disconnect()
		}
		return true
	}}
}

// cors lets pages of other origins use the server. It answers what browsers ask
// before they send a request, without knowing who asks.
func (s *Server) cors() stage {
	var allowed []*regexp.Regexp
	for _, origin := range s.Serving.CORS {
		allowed = append(allowed, regexp.MustCompile(origin)) // Validate has tried it
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
