package authn

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/apikeel/kelson/egress"
	"github.com/apikeel/kelson/internal/configfile"
	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/metrics/servercert"
	"github.com/apikeel/kelson/request"
	hooks "github.com/apikeel/kelson/webhook"
)

const (
	webhookTimeout = 30 * time.Second
	// maxReview is the largest response in bytes that is read.
	maxReview = 3 << 20
)

// webhook authenticates tokens with a TokenReview webhook, described by a kubeconfig
// file. Both versions of TokenReview have the same form.
type webhook struct {
	url        string
	client     *http.Client
	apiVersion string
	audiences  []string // of the server
	backoff    wait.Backoff
	log        *slog.Logger
}

// newWebhook reads the kubeconfig file.
func newWebhook(kubeconfig, version string, audiences []string, backoff wait.Backoff, dial egress.Dial, metrics measure.Sink, log *slog.Logger) (*webhook, error) {
	switch version {
	case "v1", "v1beta1":
	default:
		return nil, fmt.Errorf("unsupported authentication webhook version %q, supported versions are %q, %q", version, "v1", "v1beta1")
	}
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig}
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, configfile.Unquoted(err)
	}
	cfg.Timeout, cfg.Dial = webhookTimeout, dial
	cfg.Wrap(servercert.OfWebhooks(metrics, log).Wrap)
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, err
	}
	return &webhook{
		url: cfg.Host, client: client, apiVersion: authenticationv1.GroupName + "/" + version,
		audiences: audiences, backoff: backoff, log: log,
	}, nil
}

// AuthenticateToken implements Tokens.
func (w *webhook) AuthenticateToken(ctx context.Context, token string, audiences []string) (*Identity, error) {
	// The webhook always gets audiences: by default those of the server.
	if audiences == nil {
		audiences = w.audiences
	}
	status, err := w.review(ctx, authenticationv1.TokenReviewSpec{Token: token, Audiences: audiences})
	if err != nil {
		w.log.Error("authentication webhook failed", "url", w.url, "error", err)
		return nil, err
	}
	id := &Identity{}
	if len(audiences) > 0 {
		// A webhook that does not support audiences authenticates for those of the
		// server.
		own := w.audiences
		if len(status.Audiences) > 0 {
			own = status.Audiences
		}
		if id.Audiences = intersect(audiences, own); len(id.Audiences) == 0 {
			return nil, nil
		}
	}
	if !status.Authenticated {
		if status.Error != "" {
			return nil, errors.New(status.Error)
		}
		return nil, nil
	}
	id.User = request.User{Name: status.User.Username, UID: status.User.UID, Groups: status.User.Groups}
	for key, value := range status.User.Extra {
		if id.User.Extra == nil {
			id.User.Extra = map[string][]string{}
		}
		id.User.Extra[key] = value
	}
	return authenticated(id), nil
}

// review sends a TokenReview, with retries.
func (w *webhook) review(ctx context.Context, spec authenticationv1.TokenReviewSpec) (*authenticationv1.TokenReviewStatus, error) {
	body, err := json.Marshal(&authenticationv1.TokenReview{
		TypeMeta: metav1.TypeMeta{APIVersion: w.apiVersion, Kind: "TokenReview"}, Spec: spec,
	})
	if err != nil {
		return nil, err
	}
	request.EndArrival(ctx)
	var status *authenticationv1.TokenReviewStatus
	var last error
	err = wait.ExponentialBackoffWithContext(ctx, w.backoff, func(ctx context.Context) (bool, error) {
		status, last = w.post(ctx, body)
		if last == nil {
			return true, nil
		}
		if hooks.MayPass(last) {
			return false, nil
		}
		return false, last
	})
	if last != nil {
		return nil, last
	}
	if err != nil {
		return nil, fmt.Errorf("webhook call failed: %w", err)
	}
	return status, nil
}

func (w *webhook) post(ctx context.Context, body []byte) (*authenticationv1.TokenReviewStatus, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json")
	resp, err := w.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxReview))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		delay, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
		message := strings.TrimSpace(string(answer))
		if message == "" {
			message = resp.Status
		}
		return nil, apierrors.NewGenericServerResponse(resp.StatusCode, http.MethodPost, schema.GroupResource{}, "", message, delay, true)
	}
	var review authenticationv1.TokenReview
	if err := json.Unmarshal(answer, &review); err != nil {
		return nil, fmt.Errorf("the authentication webhook's answer is not a TokenReview: %w", err)
	}
	if review.APIVersion != w.apiVersion || review.Kind != "TokenReview" {
		return nil, fmt.Errorf("the authentication webhook's answer is a %q of %q instead of a TokenReview of %q", review.Kind, review.APIVersion, w.apiVersion)
	}
	return &review.Status, nil
}

// Close closes idle connections.
func (w *webhook) Close() { w.client.CloseIdleConnections() }
