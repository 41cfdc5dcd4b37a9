package controlplane

import (
	"crypto"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/audit"
	"github.com/apikeel/kelson/authn"
	"github.com/apikeel/kelson/authn/serviceaccount"
	"github.com/apikeel/kelson/metrics/servercert"
	"github.com/apikeel/kelson/rest"
	"github.com/apikeel/kelson/why"
)

// remoteUID is the gate of the UID of a user in the headers of proxies and of backends.
const remoteUID = "RemoteRequestHeaderUID"

// stages makes what requests go through before they are routed.
func (a *assembly) stages() (err error) {
	cfg := a.Authentication
	cfg.Log, cfg.Objects, cfg.Metrics = a.Logger, authn.Live(a.resources.Objects), a.measured
	cfg.Reloaded = func() {
		if publish := a.publishTrust.Load(); publish != nil {
			(*publish)()
		}
	}
	if a.Now != nil {
		cfg.Now, cfg.X509.Now = a.Now, time.Now
	}
	// Without a folder and a kubeconfig nobody has a certificate of the own authority.
	if a.authority != nil && (a.Kubeconfig != "" || !a.NoFolder) {
		cfg.X509.CAs = append(cfg.X509.CAs, a.authority.CertificatePEM()...)
	}
	cfg.X509.NoUID, cfg.RequestHeader.NoUID = !a.Gates.Enabled("AllowParsingUserUIDFromCertAuth"), !a.Gates.Enabled(remoteUID)
	cfg.NoEgress = !a.Gates.Enabled("StructuredAuthenticationConfigurationEgressSelector")
	cfg.NoKeyMetrics = !a.Gates.Enabled("StructuredAuthenticationConfigurationJWKSMetrics")
	cfg.ServiceAccounts.WebhookTokens = a.Gates.Enabled(webhookTokens)
	if sa := &cfg.ServiceAccounts; sa.SigningKey == nil && sa.SigningKeyFile == "" && sa.SigningEndpoint == "" {
		if cfg.ServiceAccounts.SigningKey, err = a.signingKey(); err != nil {
			return err
		}
	}
	a.signer = cfg.ServiceAccounts.SigningKey
	if a.authn, err = cfg.New(); err != nil {
		return err
	}
	a.onClose(a.authn.Close)
	authorize := a.Authorization
	authorize.Logger, authorize.Metrics = a.Logger, a.measured
	if a.authz, a.guard, err = authorizers(authorize, a.resources, a.Gates); err != nil {
		return err
	}
	if a.places.shared() {
		a.guard.Roles.Newest = a.newestRoles
	}
	if a.Audit.PolicyFile != "" || a.Audit.Log.Path != "" || a.Audit.Webhook.ConfigFile != "" {
		auditing := a.Audit
		auditing.Logger, auditing.Webhook.Certificates = a.Logger, servercert.OfWebhooks(a.measured, a.Logger)
		if a.audit, err = audit.New(auditing); err != nil {
			return err
		}
	}
	s := a.outer
	s.Authenticate, s.Strip, s.ConnContext = a.authn.User, a.authn.Strip, authn.WithConnection
	a.denials = &why.Denials{}
	s.Authorizer, s.Audit = a.resources.NoteNamespaces(a.denials.Watch(a.authz)), a.audit
	a.resources.Authorizer = a.authz
	a.measuring()
	a.accounting()
	a.control()
	s.Serving.ClientCAs = a.authn.ClientCAs
	s.Paths = a.authn.Paths(func() string {
		address, err := s.ExternalAddress()
		if err != nil {
			a.Logger.Warn("where clients reach the server is not known", "error", err)
		}
		return address
	})
	for path, handler := range s.Paths {
		s.Paths[path] = a.only(handler, http.MethodGet) // not even HEAD
	}
	maps.Copy(s.Paths, a.debugging())
	return nil
}

// only passes on requests with some methods.
func (a *assembly) only(next http.Handler, methods ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains(methods, r.Method) {
			rest.WriteError(w, r, apierrors.NewGenericServerResponse(http.StatusMethodNotAllowed, "", schema.GroupResource{}, "", "", 0, false), a.resources)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// signingKey is what tokens of service accounts are signed with: that of the
// data folder, unless nothing is kept.
func (a *assembly) signingKey() (crypto.Signer, error) {
	if !a.keeps() {
		return serviceaccount.NewKey()
	}
	return serviceaccount.OpenKey(filepath.Join(a.DataDir, "pki", "sa.key"))
}
