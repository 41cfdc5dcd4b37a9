// Package serviceaccount issues and verifies the tokens of service accounts.
//
// Two kinds are known. Bound tokens come from the TokenRequest subresource: they
// expire, name their audiences, and may be bound to a pod, a secret or a node,
// with which they end. Legacy tokens are kept in secrets and last as long as
// those do.
//
// A token that is verified says who it was made for; whether that is still true
// is asked of the live objects each time.
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

	// legacyIssuer is who signs tokens that are kept in secrets.
	legacyIssuer = "kubernetes/serviceaccount"

	extraPrefix  = "authentication.kubernetes.io/"
	credentialID = extraPrefix + "credential-id"

	// leeway is how far clocks may differ: so long a token works after its end,
	// and with an object whose deletion has begun.
	leeway = time.Minute
)

// Objects reads the live objects that tokens are about. An object that does not
// exist is an error of which apierrors.IsNotFound is true.
type Objects interface {
	ServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error)
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
	Pod(ctx context.Context, namespace, name string) (metav1.Object, error)
	Node(ctx context.Context, name string) (metav1.Object, error)
	// Exists reports, quickly, whether there is an object, as far as is known by
	// now.
	Exists(ctx context.Context, ref Reference) bool
	// LabelSecret sets a label of the secret with this uid.
	LabelSecret(ctx context.Context, namespace, name string, uid types.UID, key, value string) error
}

// Reference names an object of the core group.
type Reference struct{ Resource, Namespace, Name string }

// Verified is what a valid token says.
type Verified struct {
	User request.User
	// Audiences are those of the token among the ones asked for.
	Audiences []string
	// Expires is when the token ends, zero for never.
	Expires time.Time
	// Needs are the objects that the token ends with.
	Needs []Reference
	// Annotations are for the audit, Warnings for the client.
	Annotations map[string]string
	Warnings    []string
}

// user returns the user that a service account is.
func user(namespace, name, uid string) request.User {
	return request.User{
		Name: userPrefix + namespace + ":" + name, UID: uid,
		Groups: []string{groupAll, groupPrefix + namespace},
	}
}

// SplitUser returns the namespace and name of the service account that a user
// name stands for.
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
