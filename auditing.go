package kelson

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/metrics"
	"github.com/apikeel/kelson/request"
)

// audit writes down who asks, and what the answer is. What is behind it adds to
// the record through request.Request.
func (s *Server) audit() stage {
	if s.Audit == nil {
		return stage{}
	}
	return stage{
		metric: metrics.Audit,
		begin: func(x *exchange) bool {
			if !x.record.Begin(x.r, &x.Request) {
				x.forget()
				return true
			}
			if !x.record.Received() {
				x.forget()
				internalError(x.w, x.r, errors.New("failed to store audit event"))
				return false
			}
			return true
		},
		end: func(x *exchange, cause any) {
			record := x.record
			if record == nil {
				return
			}
			// What is written from now on is not the handler's answer.
			x.forget()
			if cause != nil {
				record.Panic(cause)
			} else {
				record.Complete(x.unanswered())
			}
		},
	}
}

// beginRecord makes the record of a request: what comes before the audit may
// have something to say to it.
func (s *Server) beginRecord(x *exchange) {
	if s.Audit != nil {
		x.record = s.Audit.Record()
		x.Audit = x.record
	}
}

// refuse writes down a request that is about to be answered before the audit
// comes. Why is for those who do not get to read the answer either.
func (x *exchange) refuse(why string) {
	switch {
	case x.record == nil:
	case x.record.Begin(x.r, &x.Request):
		x.record.Refuse(why)
	default:
		x.forget()
	}
}

// attempted says how somebody has tried to authenticate.
func attempted(r *http.Request) string {
	var methods []string
	if _, _, ok := r.BasicAuth(); ok {
		methods = append(methods, "basic")
	}
	if scheme, _, ok := strings.Cut(strings.TrimSpace(r.Header.Get("Authorization")), " "); ok && strings.EqualFold(scheme, "bearer") {
		methods = append(methods, "bearer")
	}
	if token, _ := request.Param(r.URL.RawQuery, "access_token"); strings.TrimSpace(token) != "" {
		methods = append(methods, "access_token")
	}
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		methods = append(methods, "x509")
	}
	if len(methods) == 0 {
		return "Authentication failed, no credentials provided"
	}
	return "Authentication failed, attempted: " + strings.Join(methods, ", ")
}

// forget ends the record.
func (x *exchange) forget() { x.record, x.Audit = nil, nil }

// unanswered is the status of a request whose handler has written nothing.
func (x *exchange) unanswered() *metav1.Status {
	if x.late() {
		status := apierrors.NewTimeoutError(timeoutMessage, 0).ErrStatus
		return &status
	}
	return &metav1.Status{Code: http.StatusOK, Status: metav1.StatusSuccess, Message: "Connection closed early"}
}

// internalError answers for the server itself. The text must not look like HTML
// to browsers that guess.
func internalError(w http.ResponseWriter, r *http.Request, err error) {
	text := fmt.Sprintf("Internal Server Error: %q: %v", r.RequestURI, err)
	http.Error(w, strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(text), http.StatusInternalServerError)
}
