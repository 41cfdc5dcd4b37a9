package controller_test

import (
	"slices"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestServiceAccounts(t *testing.T) {
	c := start(t)
	// Who finds the server ready finds the accounts.
	for _, where := range []string{"default", "kube-system", "kube-public", "kube-node-lease"} {
		must(c.CoreV1().ServiceAccounts(where).Get(t.Context(), "default", metav1.GetOptions{}))(t)
	}
	c.namespace("new")
	there := func(objs map[string]*unstructured.Unstructured) bool { return objs["new/default"] != nil }
	c.until(serviceAccounts, "new", there)
	before := must(c.CoreV1().ServiceAccounts("new").Get(t.Context(), "default", metav1.GetOptions{}))(t)
	if err := c.CoreV1().ServiceAccounts("new").Delete(t.Context(), "default", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.until(serviceAccounts, "new", func(objs map[string]*unstructured.Unstructured) bool {
		return there(objs) && objs["new/default"].GetUID() != before.UID
	})
}

func TestRootCA(t *testing.T) {
	c := start(t)
	want := string(c.Config().CAData)
	good := func(objs map[string]*unstructured.Unstructured) bool {
		m := objs["default/kube-root-ca.crt"]
		if m == nil {
			return false
		}
		ca, _, _ := unstructured.NestedString(m.Object, "data", "ca.crt")
		return ca == want
	}
	c.until(configMaps, "default", good)
	m := must(c.CoreV1().ConfigMaps("default").Get(t.Context(), "kube-root-ca.crt", metav1.GetOptions{}))(t)
	m.Data["ca.crt"] = "another"
	must(c.CoreV1().ConfigMaps("default").Update(t.Context(), m, metav1.UpdateOptions{}))(t)
	c.until(configMaps, "default", good)
}

func TestTokens(t *testing.T) {
	c := start(t)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}
	must(c.CoreV1().ServiceAccounts(ns).Create(t.Context(), account, metav1.CreateOptions{}))(t)
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "token", Annotations: map[string]string{corev1.ServiceAccountNameKey: "robot"}},
		Type:       corev1.SecretTypeServiceAccountToken,
	}
	must(c.CoreV1().Secrets(ns).Create(t.Context(), secret, metav1.CreateOptions{}))(t)
	c.until(secrets, ns, func(objs map[string]*unstructured.Unstructured) bool {
		data, _, _ := unstructured.NestedMap(objs[ns+"/token"].Object, "data")
		return data["token"] != nil && data["ca.crt"] != nil && data["namespace"] != nil
	})
	secret = must(c.CoreV1().Secrets(ns).Get(t.Context(), "token", metav1.GetOptions{}))(t)
	review := must(c.AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: string(secret.Data["token"])},
	}, metav1.CreateOptions{}))(t)
	if !review.Status.Authenticated || review.Status.User.Username != "system:serviceaccount:default:robot" {
		t.Errorf("the token is for %+v", review.Status)
	}
	if err := c.CoreV1().ServiceAccounts(ns).Delete(t.Context(), "robot", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.until(secrets, ns, func(objs map[string]*unstructured.Unstructured) bool { return objs[ns+"/token"] == nil })
	// Without an account there is nothing to hold a token of.
	secret = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "nobody", Annotations: map[string]string{corev1.ServiceAccountNameKey: "nobody"}}, Type: corev1.SecretTypeServiceAccountToken}
	must(c.CoreV1().Secrets(ns).Create(t.Context(), secret, metav1.CreateOptions{}))(t)
	c.until(secrets, ns, func(objs map[string]*unstructured.Unstructured) bool { return objs[ns+"/nobody"] == nil })
}

func TestAggregation(t *testing.T) {
	c := start(t)
	roles := rbacv1.SchemeGroupVersion.WithResource("clusterroles")
	verbs := func(want ...string) {
		t.Helper()
		c.until(roles, "", func(objs map[string]*unstructured.Unstructured) bool {
			if objs["/sum"] == nil {
				return false
			}
			rules, _, _ := unstructured.NestedSlice(objs["/sum"].Object, "rules")
			var got []string
			for _, r := range rules {
				got = append(got, r.(map[string]any)["verbs"].([]any)[0].(string))
			}
			return slices.Equal(got, want)
		})
	}
	role := func(name, verb string) {
		t.Helper()
		must(c.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"part": "yes"}},
			Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{verb}}},
		}, metav1.CreateOptions{}))(t)
	}
	role("a", "get")
	must(c.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta:      metav1.ObjectMeta{Name: "sum"},
		AggregationRule: &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"part": "yes"}}}},
	}, metav1.CreateOptions{}))(t)
	verbs("get")
	role("b", "list")
	verbs("get", "list")
	if err := c.RbacV1().ClusterRoles().Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	verbs("list")
}
