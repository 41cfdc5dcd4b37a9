// Package serviceaccount issues and verifies service account tokens. Start at Issuer
// and Verifier.
//
// There are two kinds. Bound tokens come from the TokenRequest subresource: they
// expire, have audiences, and may be bound to a pod, a secret, a node or the
// configuration of admission webhooks, with whose deletion they end. Legacy tokens are stored in secrets and live as long as these.
//
// The signature proves for whom a token was issued; whether account and bound objects
// still exist is looked up for each verification.
package serviceaccount

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/apikeel/kelson/request"
)

const (
	userPrefix  = "system:serviceaccount:"
	groupAll    = "system:serviceaccounts"
	groupPrefix = "system:serviceaccounts:"

	// legacyIssuer is the issuer of legacy tokens.
	legacyIssuer = "kubernetes/serviceaccount"

	extraPrefix  = "authentication.kubernetes.io/"
	credentialID = extraPrefix + "credential-id"
	attestPrefix = "attestation." + extraPrefix

	// leeway is the tolerated clock difference: a token is accepted this long after its
	// expiry, and after the deletion of a bound object has begun.
	leeway = time.Minute
)

// Objects reads the objects that tokens refer to. If an object does not exist,
// apierrors.IsNotFound is true for the error.
type Objects interface {
	ServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error)
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
	Pod(ctx context.Context, namespace, name string) (metav1.Object, error)
	Node(ctx context.Context, name string) (metav1.Object, error)
	// WebhookConfiguration returns one of the validatingwebhookconfigurations or
	// mutatingwebhookconfigurations.
	WebhookConfiguration(ctx context.Context, resource, name string) (metav1.Object, error)
	// Exists reports, from the cache, whether an object exists.
	Exists(ctx context.Context, ref Reference) bool
	// LabelSecret sets a label of the secret with this UID.
	LabelSecret(ctx context.Context, namespace, name string, uid types.UID, key, value string) error
}

// Reference identifies an object.
type Reference struct {
	Resource, Namespace, Name string
	Group                     string // "" is the core group
}

// Verified is the result of verifying a token.
type Verified struct {
	User request.User
	// Audiences are the audiences of the token that were asked for.
	Audiences []string
	// Expires is when the token expires, zero for never.
	Expires time.Time
	// Needs are the objects with whose deletion the token ends.
	Needs []Reference
	// Annotations are for the audit event, Warnings for the client.
	Annotations map[string]string
	Warnings    []string
}

// user returns the user of a service account.
func user(namespace, name, uid string) request.User {
	return request.User{
		Name: userPrefix + namespace + ":" + name, UID: uid,
		Groups: []string{groupAll, groupPrefix + namespace},
	}
}

// SplitUser returns the namespace and name of the service account with a user name.
func SplitUser(user string) (namespace, name string, ok bool) {
	rest, ok := strings.CutPrefix(user, userPrefix)
	if !ok {
		return "", "", false
	}
	namespace, name, ok = strings.Cut(rest, ":")
	ok = ok && len(apivalidation.ValidateNamespaceName(namespace, false)) == 0 &&
		len(apivalidation.ValidateServiceAccountName(name, false)) == 0
	return namespace, name, ok
}
