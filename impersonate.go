package kelson

import (
	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/impersonate"
	"github.com/apikeel/kelson/metrics"
	"github.com/apikeel/kelson/request"
)

// impersonate is the stage that continues a request as another user, if the requestor may
// impersonate that user.
func (s *Server) impersonate() stage {
	var counts impersonate.Metrics
	if s.Metrics != nil {
		counts = s.Metrics
	}
	judge := impersonate.New(s.Authorizer, counts)
	judge.OnlyUnconstrained = s.UnconstrainedImpersonation
	return stage{metric: metrics.Impersonation, begin: func(x *exchange) bool {
		as, err := judge.Judge(x.r.Context(), x.r.Header, func() *authz.Attributes { return authz.AttributesOf(&x.Request) })
		if as != nil {
			x.Spent(request.Impersonation, as.Took)
		}
		if err != nil {
			x.deny(err)
			return false
		}
		if as == nil {
			return true
		}
		requestor := x.User
		x.Impersonator, x.Wanted, x.User, x.ImpersonationConstraint = &requestor, as.Wanted, as.User, as.Constraint
		return true
	}}
}
