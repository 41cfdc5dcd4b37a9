package controller

import (
	"bytes"
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// named is the namespace and name of an object; its kind is known from the context.
type named struct{ namespace, name string }

// Tokens fills secrets of type service-account-token, and deletes them with their
// account. issue signs the token of an account for a secret.
func Tokens(certificates []byte, issue func(*corev1.ServiceAccount, *corev1.Secret) (string, error)) Controller {
	return Controller{Name: "serviceaccount-token-controller", Alias: "serviceaccount-token", Account: "tokens-controller", Start: func(env *Env) Observer {
		t := &tokens{Env: env, ca: certificates, issue: issue}
		t.secrets = NewQueue(env, 4, t.fill)
		t.accounts = NewQueue(env, 2, t.clean)
		return t
	}}
}

type tokens struct {
	*Env
	ca       []byte
	issue    func(*corev1.ServiceAccount, *corev1.Secret) (string, error)
	secrets  *Queue[named]
	accounts *Queue[string] // namespaces in which a service account was deleted
}

// Observe implements Observer.
func (t *tokens) Observe(changes []Change) {
	for i := range changes {
		c := &changes[i]
		switch {
		case c.Kind.Is("", "secrets"):
			if !c.Gone {
				t.secrets.Add(named{c.Namespace, c.Name})
			} else {
				t.accounts.Add(c.Namespace)
			}
		case c.Gone && c.Kind.Is("", "serviceaccounts"):
			t.accounts.Add(c.Namespace)
		}
	}
}

// fill sets token and CA of a secret, or deletes the secret if its account is gone.
func (t *tokens) fill(ctx context.Context, key named) error {
	secrets := t.Kind("v1", "Secret")
	var s corev1.Secret
	if err := t.Get(ctx, secrets, key.namespace, key.name, &s); err != nil {
		return ignoreNotFound(err)
	}
	name := s.Annotations[corev1.ServiceAccountNameKey]
	if s.Type != corev1.SecretTypeServiceAccountToken || name == "" {
		return nil
	}
	var account corev1.ServiceAccount
	err := t.Get(ctx, t.Kind("v1", "ServiceAccount"), key.namespace, name, &account)
	uid := s.Annotations[corev1.ServiceAccountUIDKey]
	if apierrors.IsNotFound(err) || err == nil && uid != "" && uid != string(account.UID) {
		return t.delete(ctx, secrets, &s)
	}
	if err != nil {
		return err
	}
	if bytes.Equal(s.Data[corev1.ServiceAccountRootCAKey], t.ca) && len(s.Data[corev1.ServiceAccountNamespaceKey]) > 0 && len(s.Data[corev1.ServiceAccountTokenKey]) > 0 {
		return nil
	}
	if s.Data == nil {
		s.Data = map[string][]byte{}
	}
	s.Data[corev1.ServiceAccountRootCAKey] = t.ca
	if len(s.Data[corev1.ServiceAccountNamespaceKey]) == 0 {
		s.Data[corev1.ServiceAccountNamespaceKey] = []byte(s.Namespace)
	}
	if len(s.Data[corev1.ServiceAccountTokenKey]) == 0 {
		token, err := t.issue(&account, &s)
		if err != nil {
			return err
		}
		s.Data[corev1.ServiceAccountTokenKey] = []byte(token)
	}
	s.Annotations[corev1.ServiceAccountUIDKey] = string(account.UID)
	return mapOutdated(t.Update(ctx, secrets, key.namespace, key.name, "", &s, nil))
}

func (t *tokens) delete(ctx context.Context, secrets *Kind, s *corev1.Secret) error {
	err := t.Delete(ctx, secrets, s.Namespace, s.Name, &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &s.UID}})
	if apierrors.IsConflict(err) {
		return nil // the name was reused by another secret
	}
	return ignoreNotFound(err)
}

// clean deletes the secrets of deleted accounts in a namespace, and removes references
// to deleted secrets from accounts.
func (t *tokens) clean(ctx context.Context, namespace string) error {
	if ending, err := t.isTerminating(ctx, namespace); ending || err != nil {
		return err
	}
	secrets, accounts := t.Kind("v1", "Secret"), t.Kind("v1", "ServiceAccount")
	var all corev1.SecretList
	if err := t.List(ctx, secrets, namespace, &all); err != nil {
		return err
	}
	var known corev1.ServiceAccountList
	if err := t.List(ctx, accounts, namespace, &known); err != nil {
		return err
	}
	uids := map[string]types.UID{}
	for i := range known.Items {
		uids[known.Items[i].Name] = known.Items[i].UID
	}
	held := map[string]bool{}
	for i := range all.Items {
		s := &all.Items[i]
		held[s.Name] = true
		if s.Type != corev1.SecretTypeServiceAccountToken {
			continue
		}
		uid := s.Annotations[corev1.ServiceAccountUIDKey]
		if is, ok := uids[s.Annotations[corev1.ServiceAccountNameKey]]; !ok || uid != "" && uid != string(is) {
			if err := t.delete(ctx, secrets, s); err != nil {
				return err
			}
		}
	}
	for i := range known.Items {
		a := &known.Items[i]
		n := len(a.Secrets)
		a.Secrets = slices.DeleteFunc(a.Secrets, func(r corev1.ObjectReference) bool { return !held[r.Name] })
		if len(a.Secrets) != n {
			if err := mapOutdated(t.Update(ctx, accounts, namespace, a.Name, "", a, nil)); err != nil {
				return err
			}
		}
	}
	return nil
}

// isTerminating reports whether a namespace is Terminating or gone.
func (e *Env) isTerminating(ctx context.Context, namespace string) (bool, error) {
	ns, err := e.Metadata(ctx, e.Kind("v1", "Namespace"), "", namespace)
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	return err == nil && ns.DeletionTimestamp != nil, err
}
