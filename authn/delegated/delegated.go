// Package delegated authenticates for an aggregated API server: by the headers of the
// aggregator, by client certificates, and by TokenReviews of the parent server. Start
// at New. The CAs and header names are read from the ConfigMap
// extension-apiserver-authentication of the parent, and followed with a watch.
package delegated

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/apikeel/kelson/authn"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/webhook"
)

const (
	trustFolder = "/api/v1/namespaces/kube-system/configmaps"
	trustName   = "extension-apiserver-authentication"
	// refreshInterval is the longest time between two reads of the ConfigMap, pause the delay
	// after a watch has ended.
	refreshInterval = 10 * time.Minute
	rewatchDelay    = time.Second
)

// Authenticator authenticates with the configuration and the TokenReviews of a parent.
type Authenticator struct {
	client *rest.RESTClient
	log    *slog.Logger
	stage  atomic.Pointer[authn.Stage]
	data   map[string]string // of the ConfigMap that stage was created from; used by Refresh only
}

// New returns an authenticator after it has read the ConfigMap once.
func New(ctx context.Context, parent *rest.Config, log *slog.Logger) (*Authenticator, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	cfg := rest.CopyConfig(parent)
	// Objects are encoded here; the client decodes only errors.
	cfg.ContentType, cfg.NegotiatedSerializer = runtime.ContentTypeJSON, webhook.OnlyErrors()
	cfg.QPS = -1 // no client-side rate limit
	client, err := rest.UnversionedRESTClientFor(cfg)
	if err != nil {
		return nil, err
	}
	a := &Authenticator{client: client, log: log}
	return a, a.Refresh(ctx)
}

// Watch follows the ConfigMap until ctx ends, with a watch and a read every refresh
// interval.
func (a *Authenticator) Watch(ctx context.Context) {
	for ctx.Err() == nil {
		version, err := a.refresh(ctx)
		if err == nil {
			err = a.follow(ctx, version)
		}
		if err != nil && ctx.Err() == nil {
			a.log.Warn("the ConfigMap extension-apiserver-authentication cannot be read from the parent server; the old CAs and headers stay in use", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(rewatchDelay):
		}
	}
}

// follow applies changes until the watch ends.
func (a *Authenticator) follow(ctx context.Context, version string) error {
	ctx, cancel := context.WithTimeout(ctx, refreshInterval)
	defer cancel()
	events, err := a.client.Get().AbsPath(trustFolder).Param("watch", "true").Param("resourceVersion", version).
		Param("fieldSelector", "metadata.name="+trustName).Stream(ctx)
	if err != nil {
		return err
	}
	defer events.Close()
	for decoder := json.NewDecoder(events); ; {
		var event struct {
			Type   string
			Object corev1.ConfigMap
		}
		if err := decoder.Decode(&event); err != nil {
			return nil // the watch has ended
		}
		switch event.Type {
		case "ADDED", "MODIFIED":
			if err := a.trust(&event.Object); err != nil {
				a.log.Warn("the ConfigMap extension-apiserver-authentication is not valid; the old CAs and headers stay in use", "error", err)
			}
		case "ERROR":
			return nil // the resourceVersion is too old: read again
		}
	}
}

// Refresh reads the ConfigMap. It is not safe for concurrent use.
func (a *Authenticator) Refresh(ctx context.Context) error {
	_, err := a.refresh(ctx)
	return err
}

func (a *Authenticator) refresh(ctx context.Context) (version string, err error) {
	raw, err := a.client.Get().AbsPath(trustFolder, trustName).Do(ctx).Raw()
	if err != nil {
		return "", fmt.Errorf("reading the ConfigMap extension-apiserver-authentication from the parent server: %w", err)
	}
	var published corev1.ConfigMap
	if err := json.Unmarshal(raw, &published); err != nil {
		return "", err
	}
	return published.ResourceVersion, a.trust(&published)
}

// trust switches to the configuration in a ConfigMap.
func (a *Authenticator) trust(published *corev1.ConfigMap) error {
	if a.stage.Load() != nil && equality.Semantic.DeepEqual(a.data, published.Data) {
		return nil
	}
	stage, err := a.configure(published.Data)
	if err != nil {
		return err
	}
	a.data = published.Data
	a.stage.Store(stage)
	return nil
}

func (a *Authenticator) configure(data map[string]string) (*authn.Stage, error) {
	cfg := authn.Config{Log: a.log, Tokens: authn.TokensFunc(a.review)}
	cfg.X509.CAs = []byte(data["client-ca-file"])
	header := &cfg.RequestHeader
	header.CAs = []byte(data["requestheader-client-ca-file"])
	for key, into := range map[string]*[]string{
		"allowed-names": &header.AllowedNames, "username-headers": &header.UsernameHeaders, "uid-headers": &header.UIDHeaders,
		"group-headers": &header.GroupHeaders, "extra-headers-prefix": &header.ExtraHeaderPrefixes,
	} {
		if text := data["requestheader-"+key]; text != "" {
			if err := json.Unmarshal([]byte(text), into); err != nil {
				return nil, fmt.Errorf("requestheader-%s: %w", key, err)
			}
		}
	}
	return cfg.New()
}

// review sends a TokenReview to the parent.
func (a *Authenticator) review(ctx context.Context, token string, audiences []string) (*authn.Identity, error) {
	body, err := json.Marshal(&authenticationv1.TokenReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenReview"},
		Spec:     authenticationv1.TokenReviewSpec{Token: token, Audiences: audiences},
	})
	if err != nil {
		return nil, err
	}
	request.EndArrival(ctx)
	raw, err := a.client.Post().AbsPath("/apis/authentication.k8s.io/v1/tokenreviews").
		SetHeader("Content-Type", runtime.ContentTypeJSON).Body(bytes.NewReader(body)).Do(ctx).Raw()
	if err != nil {
		return nil, err
	}
	var review authenticationv1.TokenReview
	if err := json.Unmarshal(raw, &review); err != nil {
		return nil, err
	}
	if !review.Status.Authenticated {
		if problem := strings.TrimSpace(review.Status.Error); problem != "" {
			return nil, fmt.Errorf("the parent does not know the token: %s", problem)
		}
		return nil, nil
	}
	u := review.Status.User
	identity := &authn.Identity{User: request.User{Name: u.Username, UID: u.UID, Groups: u.Groups}, Audiences: review.Status.Audiences}
	for key, values := range u.Extra {
		if identity.User.Extra == nil {
			identity.User.Extra = map[string][]string{}
		}
		identity.User.Extra[key] = values
	}
	return identity, nil
}

// User returns the user of a request: for kelson.Server.Authenticate.
func (a *Authenticator) User(r *http.Request) (request.User, bool, error) {
	return a.stage.Load().User(r)
}

// Strip removes the credentials from headers: for kelson.Server.Strip.
func (a *Authenticator) Strip(h http.Header) { a.stage.Load().Strip(h) }

// ClientCAs are the accepted CAs of client certificates.
func (a *Authenticator) ClientCAs() *x509.CertPool { return a.stage.Load().ClientCAs() }
