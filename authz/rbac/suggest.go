package rbac

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// Suggest returns the role and the binding that allow exactly what is asked for: to the
// user, or, if the user has no name, to the first group. It returns nil if no role could:
// if there is neither a user nor a group, or the verb or the resource has no name.
func Suggest(at *authz.Attributes) []resource.Object {
	subject, ok := suggestedSubject(at.User)
	if !ok || at.Verb == "" || at.IsResource && at.Resource == "" || !at.IsResource && at.Path == "" {
		return nil
	}
	rules := []rbacv1.PolicyRule{suggestedRule(at)}
	meta := metav1.ObjectMeta{Name: suggestedName(subject.Name, at), Namespace: at.Namespace}
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name}
	if !at.IsResource || at.Namespace == "" {
		meta.Namespace = ""
		return []resource.Object{
			&rbacv1.ClusterRole{TypeMeta: typeMeta("ClusterRole"), ObjectMeta: meta, Rules: rules},
			&rbacv1.ClusterRoleBinding{TypeMeta: typeMeta("ClusterRoleBinding"), ObjectMeta: meta, RoleRef: ref, Subjects: []rbacv1.Subject{subject}},
		}
	}
	ref.Kind = "Role"
	return []resource.Object{
		&rbacv1.Role{TypeMeta: typeMeta("Role"), ObjectMeta: meta, Rules: rules},
		&rbacv1.RoleBinding{TypeMeta: typeMeta("RoleBinding"), ObjectMeta: meta, RoleRef: ref, Subjects: []rbacv1.Subject{subject}},
	}
}

func typeMeta(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: kind}
}

// suggestedRule returns the smallest rule that allows the request.
func suggestedRule(at *authz.Attributes) rbacv1.PolicyRule {
	if !at.IsResource {
		return rbacv1.PolicyRule{Verbs: []string{at.Verb}, NonResourceURLs: []string{at.Path}}
	}
	rule := rbacv1.PolicyRule{Verbs: []string{at.Verb}, APIGroups: []string{at.Group}, Resources: []string{newQuery(at).resource}}
	// A request to create an object, or to delete several, has no name, so that a rule with
	// a name would not allow it.
	nameless := at.Subresource == "" && (at.Verb == request.Create || at.Verb == request.DeleteCollection)
	if at.Name != "" && !nameless {
		rule.ResourceNames = []string{at.Name}
	}
	return rule
}

// suggestedSubject returns the subject of a binding for a user.
func suggestedSubject(user *request.User) (s rbacv1.Subject, ok bool) {
	switch {
	case user == nil || user.Name == "" && len(user.Groups) == 0:
		return s, false
	case user.Name == "":
		return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: user.Groups[0]}, user.Groups[0] != ""
	}
	if account, isAccount := strings.CutPrefix(user.Name, authz.ServiceAccountPrefix); isAccount {
		if namespace, name, ok := strings.Cut(account, ":"); ok && namespace != "" && name != "" {
			return rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}, true
		}
	}
	return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user.Name}, true
}

// suggestedName returns a name that tells people what the role is for, and that differs
// for different requests.
func suggestedName(subject string, at *authz.Attributes) string {
	what := at.Resource
	if !at.IsResource {
		what = at.Path
	}
	words := []string{slug(subject), slug(at.Verb), slug(what)}
	if at.Subresource != "" {
		words = append(words, slug(at.Subresource))
	}
	sum := sha256.Sum256([]byte(strings.Join([]string{subject, at.Verb, at.Group, at.Namespace, at.Resource, at.Subresource, at.Name, at.Path}, "\x00")))
	return strings.Join(append(words, hex.EncodeToString(sum[:4])), "-")
}

// maxSlug is the largest length of a part of a name.
const maxSlug = 40

// slug returns the letters and digits of a text, and dashes for the rest.
func slug(text string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(text[:min(len(text), 4*maxSlug)]) {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			b.WriteRune(r)
		} else if b.Len() > 0 && !strings.HasSuffix(b.String(), "-") {
			b.WriteByte('-')
		}
		if b.Len() >= maxSlug {
			break
		}
	}
	if s := strings.Trim(b.String(), "-"); s != "" {
		return s
	}
	return "x"
}
