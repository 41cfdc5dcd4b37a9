package serviceaccount

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/request"
)

var errInvalidated = errors.New("service account token has been invalidated")

// Verifier verifies tokens.
type Verifier struct {
	// Issuers are the accepted issuers of bound tokens. That of legacy tokens is fixed.
	Issuers []string
	// Audiences are those of the server: the audiences of tokens that have none, and
	// the default for a caller that asks for none.
	Audiences []string
	Objects   Objects
	// SkipLookup accepts legacy tokens without checking that the secret and the account
	// exist.
	SkipLookup bool
	// WebhookTokens accepts tokens that are bound to the configuration of admission
	// webhooks: the feature gate APIServerWebhookAuthenticationToken.
	WebhookTokens bool
	// Log gets the reasons for refusing a token that the client is not told.
	Log *slog.Logger
	// Now returns the time; nil is time.Now.
	Now func() time.Time
	// Metrics counts tokens by kind; nil does not.
	Metrics measure.Sink

	// Find, if it is not nil, is called with an unknown key ID, and may call SetKeys.
	Find func(ctx context.Context, id string) error

	keys atomic.Pointer[Keys]
}

// SetKeys replaces the keys.
func (v *Verifier) SetKeys(keys *Keys) { v.keys.Store(keys) }

// Verify returns the user of a token, or nil and no error if the token does not come
// from this server's service account issuer.
func (v *Verifier) Verify(ctx context.Context, token string, audiences []string) (*Verified, error) {
	issuer := UnverifiedIssuer(token)
	legacy := issuer == legacyIssuer
	if issuer == "" || !legacy && !slices.Contains(v.Issuers, issuer) {
		return nil, nil
	}
	parsed, err := jwt.ParseSigned(token, signatures())
	if err != nil {
		return nil, nil
	}
	var public jwt.Claims
	var bound boundClaims
	var old legacyClaims
	private := any(&bound)
	if legacy {
		private = &old
	}
	if err := v.claims(ctx, parsed, &public, private); err != nil {
		return nil, err
	}
	if public.Issuer != issuer {
		return nil, fmt.Errorf("token issuer %q is invalid", public.Issuer)
	}
	result := &Verified{Annotations: map[string]string{}}
	if result.Audiences, err = v.audiences(&public, audiences, result.Annotations); err != nil {
		return nil, err
	}
	if legacy {
		err = v.checkLegacy(ctx, token, &public, &old, result)
	} else {
		err = v.checkBound(ctx, &public, &bound.Kubernetes, result)
	}
	if err != nil {
		return nil, err
	}
	return result, nil
}

// UnverifiedIssuer returns the issuer claim of a token without verifying it, or "" if
// it is not a JWT. It is only for choosing the verifier.
func UnverifiedIssuer(token string) string {
	_, rest, ok := strings.Cut(token, ".")
	payload, signature, more := strings.Cut(rest, ".")
	if !ok || !more || strings.Contains(signature, ".") {
		return ""
	}
	data, err := base64.RawURLEncoding.DecodeString(payload)
	if err != nil {
		return ""
	}
	var claims struct {
		Issuer string `json:"iss"`
	}
	if json.Unmarshal(data, &claims) != nil {
		return ""
	}
	return claims.Issuer
}

// claims decodes the claims if one of the keys has signed them.
func (v *Verifier) claims(ctx context.Context, token *jwt.JSONWebToken, public *jwt.Claims, private any) error {
	id := ""
	for _, header := range token.Headers {
		if header.KeyID != "" {
			id = header.KeyID
			break
		}
	}
	keys := v.keys.Load()
	if v.Find != nil && (keys == nil || len(keys.candidates(id)) == 0) {
		if err := v.Find(ctx, id); err != nil {
			return fmt.Errorf("keys of service account tokens cannot be fetched: %w", err)
		}
		keys = v.keys.Load()
	}
	if keys == nil || len(keys.candidates(id)) == 0 {
		return errors.New("invalid signature, no keys found")
	}
	var errs []error
	for _, key := range keys.candidates(id) {
		err := token.Claims(key.Key, public, private)
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return utilerrors.NewAggregate(errs)
}

// audiences returns the audiences of the token that were asked for.
func (v *Verifier) audiences(public *jwt.Claims, asked []string, annotations map[string]string) ([]string, error) {
	own := []string(public.Audience)
	if len(own) == 0 {
		annotations["authentication.k8s.io/legacy-token"] = public.Subject
		own = v.Audiences
		measure.Count(v.Metrics, measure.LegacyTokens)
	}
	if asked == nil {
		asked = v.Audiences
	}
	var both []string
	for _, a := range own {
		if slices.Contains(asked, a) {
			both = append(both, a)
		}
	}
	if len(both) == 0 && len(v.Audiences) > 0 {
		return nil, fmt.Errorf("token audiences %q is invalid for the target audiences %q", own, asked)
	}
	return both, nil
}

func (v *Verifier) now() time.Time {
	if v.Now == nil {
		return time.Now()
	}
	return v.Now()
}

// checkBound checks the times of a bound token, and that its objects still exist with
// the same UID.
func (v *Verifier) checkBound(ctx context.Context, public *jwt.Claims, claims *kubernetesClaims, result *Verified) error {
	now := v.now()
	switch err := public.ValidateWithLeeway(jwt.Expected{Time: now}, leeway); {
	case errors.Is(err, jwt.ErrExpired):
		return errors.New("service account token has expired")
	case errors.Is(err, jwt.ErrNotValidYet):
		return errors.New("service account token is not valid yet")
	case errors.Is(err, jwt.ErrIssuedInTheFuture):
		return errors.New("service account token is issued in the future")
	case err != nil:
		return errors.New("service account token claims could not be validated due to unexpected validation error")
	}
	if public.Expiry != nil {
		result.Expires = public.Expiry.Time().Add(leeway)
	}
	if err := v.checkAccount(ctx, claims, now); err != nil {
		return err
	}
	needs, err := v.checkObjects(ctx, claims, now)
	if err != nil {
		return err
	}
	result.Needs = append(needs, Reference{"serviceaccounts", claims.Namespace, claims.ServiceAccount.Name, ""})
	result.User = user(claims.Namespace, claims.ServiceAccount.Name, claims.ServiceAccount.UID)
	addExtra(&result.User, public, claims)
	if claims.WarnAfter != nil && *claims.WarnAfter != 0 && now.After(claims.WarnAfter.Time()) {
		result.Annotations["authentication.k8s.io/stale-token"] = fmt.Sprintf("subject: %s, seconds after warning threshold: %d",
			public.Subject, now.Unix()-claims.WarnAfter.Time().Unix())
		measure.Count(v.Metrics, measure.StaleTokens)
	} else {
		measure.Count(v.Metrics, measure.ValidTokens)
	}
	return nil
}

// addExtra adds the bound objects, attestations and credential ID of the token to
// User.Extra.
func addExtra(u *request.User, public *jwt.Claims, claims *kubernetesClaims) {
	extra := map[string][]string{}
	if claims.Pod != nil && claims.Pod.Name != "" && claims.Pod.UID != "" {
		extra[extraPrefix+"pod-name"] = []string{claims.Pod.Name}
		extra[extraPrefix+"pod-uid"] = []string{claims.Pod.UID}
	}
	if public.ID != "" {
		extra[credentialID] = []string{"JTI=" + public.ID}
	}
	if claims.Node != nil && claims.Node.Name != "" {
		extra[extraPrefix+"node-name"] = []string{claims.Node.Name}
		if claims.Node.UID != "" {
			extra[extraPrefix+"node-uid"] = []string{claims.Node.UID}
		}
	}
	for kind, ref := range map[string]*reference{"validatingwebhookconfiguration": claims.Validating, "mutatingwebhookconfiguration": claims.Mutating} {
		if ref != nil && ref.Name != "" && ref.UID != "" {
			extra[extraPrefix+kind+"-name"] = []string{ref.Name}
			extra[extraPrefix+kind+"-uid"] = []string{ref.UID}
		}
	}
	if claims.isForWebhook() {
		extra[attestPrefix+admissionReviewGroups] = claims.Attestations[admissionReviewGroups]
	}
	if len(extra) > 0 {
		u.Extra = extra
	}
}

func (v *Verifier) checkAccount(ctx context.Context, claims *kubernetesClaims, now time.Time) error {
	ref := claims.ServiceAccount
	account, err := v.Objects.ServiceAccount(ctx, claims.Namespace, ref.Name)
	if err != nil {
		return err
	}
	if string(account.UID) != ref.UID {
		return fmt.Errorf("service account UID (%s) does not match claim (%s)", account.UID, ref.UID)
	}
	if isGone(account, now) {
		return fmt.Errorf("service account %s/%s has been deleted", claims.Namespace, ref.Name)
	}
	return nil
}

// checkObjects checks the objects that the token is bound to. The node of a pod is not
// checked: the token ends with the pod anyway. It returns the objects that the token
// needs.
func (v *Verifier) checkObjects(ctx context.Context, claims *kubernetesClaims, now time.Time) (needs []Reference, err error) {
	check := func(kind, namespace string, ref *reference, get func() (metav1.Object, error)) error {
		if ref == nil {
			return nil
		}
		needs = append(needs, Reference{kind + "s", namespace, ref.Name, ""})
		obj, err := get()
		switch {
		case err != nil:
			v.log().Debug("bound object of a token cannot be read", "kind", kind, "name", ref.Name, "namespace", claims.Namespace, "error", err)
			return errInvalidated
		case string(obj.GetUID()) != ref.UID:
			return fmt.Errorf("%s UID (%s) does not match service account %s ref claim (%s)", kind, obj.GetUID(), kind, ref.UID)
		case isGone(obj, now):
			return errInvalidated
		}
		return nil
	}
	node := claims.Node
	if claims.Pod != nil {
		node = nil
	}
	if err := check("secret", claims.Namespace, claims.Secret, func() (metav1.Object, error) {
		return v.Objects.Secret(ctx, claims.Namespace, claims.Secret.Name)
	}); err != nil {
		return nil, err
	}
	if err := check("pod", claims.Namespace, claims.Pod, func() (metav1.Object, error) {
		return v.Objects.Pod(ctx, claims.Namespace, claims.Pod.Name)
	}); err != nil {
		return nil, err
	}
	if err := check("node", "", node, func() (metav1.Object, error) { return v.Objects.Node(ctx, node.Name) }); err != nil {
		return nil, err
	}
	if !claims.isForWebhook() {
		return needs, nil
	}
	more, err := v.checkWebhook(ctx, claims, now)
	return append(needs, more...), err
}

// checkWebhook checks a token that is bound to the configuration of admission webhooks.
func (v *Verifier) checkWebhook(ctx context.Context, claims *kubernetesClaims, now time.Time) (needs []Reference, _ error) {
	if !v.WebhookTokens {
		return nil, errors.New(`feature gate "APIServerWebhookAuthenticationToken" is disabled, but token is webhook bound`)
	}
	if len(claims.Attestations[admissionReviewGroups]) == 0 {
		return nil, fmt.Errorf("bound object was a webhook config, but %q attestation is missing", admissionReviewGroups)
	}
	for _, c := range []struct {
		kind, resource string
		ref            *reference
	}{
		{"ValidatingWebhookConfiguration", "validatingwebhookconfigurations", claims.Validating},
		{"MutatingWebhookConfiguration", "mutatingwebhookconfigurations", claims.Mutating},
	} {
		if c.ref == nil {
			continue
		}
		needs = append(needs, Reference{c.resource, "", c.ref.Name, "admissionregistration.k8s.io"})
		obj, err := v.Objects.WebhookConfiguration(ctx, c.resource, c.ref.Name)
		switch {
		case err != nil:
			v.log().Debug("bound object of a token cannot be read", "kind", c.kind, "name", c.ref.Name, "error", err)
			return nil, errInvalidated
		case string(obj.GetUID()) != c.ref.UID:
			return nil, fmt.Errorf("%s UID (%s) does not match service account validating ref claim (%s)", c.kind, obj.GetUID(), c.ref.UID)
		case isGone(obj, now):
			return nil, errInvalidated
		}
	}
	return needs, nil
}

func (v *Verifier) log() *slog.Logger {
	if v.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return v.Log
}

// isGone reports whether the deletion of an object began more than leeway ago.
func isGone(obj metav1.Object, now time.Time) bool {
	deleted := obj.GetDeletionTimestamp()
	return deleted != nil && deleted.Time.Before(now.Add(-leeway))
}
