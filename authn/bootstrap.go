package authn

import (
	"context"
	"crypto/subtle"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/authn/serviceaccount"
	"github.com/apikeel/kelson/request"
)

const bootstrapGroup = "system:bootstrappers"

// bootstrap authenticates with bootstrap tokens, with which nodes join: the two parts
// of a token are the name and the content of a secret in kube-system.
type bootstrap struct {
	objects serviceaccount.Objects
	log     *slog.Logger
	now     func() time.Time
}

// AuthenticateToken implements Tokens.
func (b *bootstrap) AuthenticateToken(ctx context.Context, token string, _ []string) (*Identity, error) {
	id, secretPart, ok := splitBootstrapToken(token)
	if !ok {
		return nil, nil
	}
	secret, err := b.objects.Secret(ctx, metav1.NamespaceSystem, "bootstrap-token-"+id)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	identity, why := b.identify(secret, id, secretPart)
	if identity != nil {
		identity.Valid = allExist(b.objects, serviceaccount.Reference{Resource: "secrets", Namespace: secret.Namespace, Name: secret.Name})
	}
	if why != "" {
		// The reason is only logged: it is not for somebody who guesses tokens.
		b.log.Info("bootstrap token refused", "secret", secret.Name, "reason", why)
	}
	return identity, nil
}

// identify returns the identity of a token, or the reason why it is not valid.
func (b *bootstrap) identify(secret *corev1.Secret, id, secretPart string) (*Identity, string) {
	get := func(key string) string { return string(secret.Data[key]) }
	switch {
	case secret.DeletionTimestamp != nil:
		return nil, "the secret is deleted and awaiting removal"
	case secret.Type != "bootstrap.kubernetes.io/token" || secret.Data == nil:
		return nil, "the secret has another type"
	case subtle.ConstantTimeCompare(secret.Data["token-secret"], []byte(secretPart)) != 1:
		return nil, "token-secret has another value"
	case get("token-id") != id:
		return nil, "token-id has another value"
	case get("usage-bootstrap-authentication") != "true":
		return nil, "the secret is not marked usage-bootstrap-authentication=true"
	}
	identity := &Identity{User: request.User{Name: "system:bootstrap:" + id}}
	if text := get("expiration"); text != "" {
		expires, err := time.Parse(time.RFC3339, text)
		if err != nil || !expires.After(b.now()) {
			return nil, "the token has expired"
		}
		identity.Expires = expires
	}
	groups, err := bootstrapGroups(get("auth-extra-groups"))
	if err != nil {
		return nil, err.Error()
	}
	identity.User.Groups = groups
	return authenticated(identity), ""
}

// splitBootstrapToken returns the parts of a token: six and sixteen lowercase letters
// or digits.
func splitBootstrapToken(token string) (id, secret string, ok bool) {
	id, secret, ok = strings.Cut(token, ".")
	strange := func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') }
	return id, secret, ok && len(id) == 6 && len(secret) == 16 && !strings.ContainsFunc(id+secret, strange)
}

func bootstrapGroups(extra string) ([]string, error) {
	groups := []string{bootstrapGroup}
	if extra == "" {
		return groups, nil
	}
	valid := regexp.MustCompile(`\A` + bootstrapGroup + `:[a-z0-9:-]{0,255}[a-z0-9]\z`)
	for group := range strings.SplitSeq(extra, ",") {
		if !valid.MatchString(group) {
			return nil, fmt.Errorf("bootstrap group %q is invalid (must match %s)", group, valid)
		}
		groups = append(groups, group)
	}
	slices.Sort(groups)
	return slices.Compact(groups), nil
}
