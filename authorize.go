package kelson

import (
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/metrics"
	"github.com/apikeel/kelson/request"
)

// Audit annotations.
const (
	decisionNote = "authorization.k8s.io/decision"
	reasonNote   = "authorization.k8s.io/reason"
)

// authorize is the stage that asks the Authorizer.
func (s *Server) authorize() stage {
	if s.Authorizer == nil {
		return stage{}
	}
	return stage{metric: metrics.Authorization, begin: func(x *exchange) bool {
		a := authz.AttributesOf(&x.Request)
		span := x.step("authorization")
		began := time.Now()
		decision, reason, err := s.Authorizer.Authorize(x.r.Context(), a)
		span.End()
		took := time.Since(began)
		x.Passed = began.Add(took)
		x.Spent(request.Authorization, took)
		if s.Metrics != nil {
			s.Metrics.Authorized(outcome(decision, err), took)
		}
		switch {
		case decision == authz.Allow: // an error beside it is ignored
			x.Annotate(decisionNote, "allow")
			x.Annotate(reasonNote, reason)
			return true
		case err != nil:
			s.Logger.Error("request cannot be authorized", "error", err, "uri", x.r.RequestURI, "audit", x.LoggedID())
			x.Annotate(reasonNote, "internal error")
			internalError(x.w, x.r, err)
		default:
			x.Annotate(decisionNote, "forbid")
			x.Annotate(reasonNote, reason)
			s.Logger.Debug("Forbidden", "URI", x.r.RequestURI, "reason", reason)
			x.deny(authz.Forbidden(a, reason))
		}
		return false
	}}
}

// outcome returns the metric label of a decision.
func outcome(decision authz.Decision, err error) string {
	switch {
	case decision == authz.Allow:
		return "allowed"
	case err != nil:
		return "error"
	case decision == authz.Deny:
		return "denied"
	}
	return "no-opinion"
}

// deny answers a request with an error and ends it.
func (x *exchange) deny(err *apierrors.StatusError) {
	x.w.Header().Set("X-Content-Type-Options", "nosniff")
	writeError(x.w, x.r, err)
}
