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
	"github.com/apikeel/kelson/status"
)

// audit is the stage that records a request and its response in the audit log. Later stages
// and handlers add to the record through request.Request.
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
			// What is written from here on is not the response of the handler.
			x.forget()
			if cause != nil {
				record.Panic(cause)
			} else {
				record.Complete(x.unanswered())
			}
		},
	}
}

// beginRecord makes the audit record of a request, before the audit stage, because earlier
// stages may add to it.
func (s *Server) beginRecord(x *exchange) {
	if s.Audit != nil {
		x.record = s.Audit.Record()
		x.Audit = x.record
	}
}

// refuse records a request that is answered before the audit stage. why is only for the audit
// log, not for the client.
func (x *exchange) refuse(why string) {
	switch {
	case x.record == nil:
	case x.record.Begin(x.r, &x.Request):
		x.record.Refuse(why)
	default:
		x.forget()
	}
}

// authAttempt returns the authentication methods that a request has tried.
func authAttempt(r *http.Request) string {
	var methods []string
	if _, _, ok := r.BasicAuth(); ok {
		methods = append(methods, "basic")
	}
	if scheme, _, ok := strings.Cut(strings.TrimSpace(r.Header.Get("Authorization")), " "); ok && strings.EqualFold(scheme, "bearer") {
		methods = append(methods, "bearer")
	}
	if token := request.QueryOf(r).Get("access_token"); strings.TrimSpace(token) != "" {
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

// forget ends the record: later writes are not audited.
func (x *exchange) forget() { x.record, x.Audit = nil, nil }

// unanswered returns the status of a request whose handler has written nothing.
func (x *exchange) unanswered() *metav1.Status {
	if x.late() {
		timeout := apierrors.NewTimeoutError(status.TimeoutMessage, 0).ErrStatus
		return &timeout
	}
	return &metav1.Status{Code: http.StatusOK, Status: metav1.StatusSuccess, Message: "Connection closed early"}
}

// internalError writes a 500 response. The text is escaped, so that browsers do not take it
// for HTML.
func internalError(w http.ResponseWriter, r *http.Request, err error) {
	text := fmt.Sprintf("Internal Server Error: %q: %v", r.RequestURI, err)
	http.Error(w, strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(text), http.StatusInternalServerError)
}
