package api

import (
	"encoding/json"
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/apikeel/kelson/kelsontest"
	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// reviewer is a service that labels what it is asked to change, and refuses what
// is called bad.
func reviewer(t *testing.T) *httptest.Server {
	t.Helper()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
			return
		}
		answer := &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: !strings.HasPrefix(review.Request.Name, "bad")}
		if r.URL.Path == "/label" {
			answer.PatchType = new(admissionv1.PatchTypeJSONPatch)
			answer.Patch = []byte(`[{"op":"add","path":"/metadata/labels","value":{"seen":"yes"}}]`)
		}
		_ = json.NewEncoder(w).Encode(admissionv1.AdmissionReview{TypeMeta: review.TypeMeta, Response: answer})
	}))
	t.Cleanup(s.Close)
	return s
}

func ruleFor(resources ...string) []registrationv1.RuleWithOperations {
	return []registrationv1.RuleWithOperations{{
		Operations: []registrationv1.OperationType{"*"},
		Rule:       registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: resources},
	}}
}

// TestWebhooks has a write changed and refused by services, from the moment that
// their configuration is acknowledged and until it is gone.
func TestWebhooks(t *testing.T) {
	service := reviewer(t)
	where := registrationv1.WebhookClientConfig{
		URL: new(service.URL + "/label"), CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: service.Certificate().Raw}),
	}
	everywhere(t, func(t *testing.T, c kubernetes.Interface) {
		ctx, maps := t.Context(), c.CoreV1().ConfigMaps("default")
		must(c.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(ctx, &registrationv1.MutatingWebhookConfiguration{
			ObjectMeta: named("label"), Webhooks: []registrationv1.MutatingWebhook{{
				Name: "label.example.com", ClientConfig: where, Rules: ruleFor("configmaps"),
				SideEffects: new(registrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
			}},
		}, metav1.CreateOptions{}))(t)
		made := must(maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: named("good")}, metav1.CreateOptions{}))(t)
		if made.Labels["seen"] != "yes" {
			t.Errorf("labels %v", made.Labels)
		}
		_, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: named("bad")}, metav1.CreateOptions{})
		if err == nil || err.Error() != `admission webhook "label.example.com" denied the request without explanation` {
			t.Errorf("refused: %v", err)
		}
		if err := c.AdmissionregistrationV1().MutatingWebhookConfigurations().Delete(ctx, "label", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		must(maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: named("bad")}, metav1.CreateOptions{}))(t)
	})
}

// TestWebhookOfService goes to a service of the cluster under its own name.
func TestWebhookOfService(t *testing.T) {
	service := reviewer(t)
	c := client(t, kelsontest.Start(t, kelsontest.NoControllers()))
	ctx := t.Context()
	u, _ := url.Parse(service.URL)
	_, portText, _ := net.SplitHostPort(u.Host)
	port, _ := strconv.Atoi(portText)
	must(c.CoreV1().Services("default").Create(ctx, &corev1.Service{ObjectMeta: named("hook"), Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeExternalName, ExternalName: "localhost",
	}}, metav1.CreateOptions{}))(t)
	must(c.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(ctx, &registrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: named("service"), Webhooks: []registrationv1.ValidatingWebhook{{
			Name: "service.example.com", Rules: ruleFor("configmaps"),
			ClientConfig: registrationv1.WebhookClientConfig{
				Service:  &registrationv1.ServiceReference{Namespace: "default", Name: "hook", Port: new(int32(port))},
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: service.Certificate().Raw}),
			},
			SideEffects: new(registrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
		}},
	}, metav1.CreateOptions{}))(t)
	_, err := c.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: named("x")}, metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), "not hook.default.svc") {
		t.Errorf("the service answers under another name: %v", err)
	}
}

// TestPolicies has a write changed and judged by expressions.
func TestPolicies(t *testing.T) {
	everywhere(t, func(t *testing.T, c kubernetes.Interface) {
		ctx, api, maps := t.Context(), c.AdmissionregistrationV1(), c.CoreV1().ConfigMaps("default")
		match := &registrationv1.MatchResources{ResourceRules: []registrationv1.NamedRuleWithOperations{{RuleWithOperations: ruleFor("configmaps")[0]}}}
		changing := match.DeepCopy()
		changing.ResourceRules[0].Operations = []registrationv1.OperationType{"CREATE"}
		must(api.MutatingAdmissionPolicies().Create(ctx, &registrationv1.MutatingAdmissionPolicy{ObjectMeta: named("p"), Spec: registrationv1.MutatingAdmissionPolicySpec{
			MatchConstraints: changing, ReinvocationPolicy: registrationv1.NeverReinvocationPolicy,
			Mutations: []registrationv1.Mutation{{
				PatchType:          registrationv1.PatchTypeApplyConfiguration,
				ApplyConfiguration: &registrationv1.ApplyConfiguration{Expression: `Object{data: {"by": request.userInfo.groups[0]}}`},
			}},
		}}, metav1.CreateOptions{}))(t)
		must(api.MutatingAdmissionPolicyBindings().Create(ctx, &registrationv1.MutatingAdmissionPolicyBinding{
			ObjectMeta: named("p"), Spec: registrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: "p"},
		}, metav1.CreateOptions{}))(t)
		must(api.ValidatingAdmissionPolicies().Create(ctx, &registrationv1.ValidatingAdmissionPolicy{ObjectMeta: named("p"), Spec: registrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: match, Validations: []registrationv1.Validation{{
				Expression: `object == null || has(object.data.by)`, Message: "who?", Reason: new(metav1.StatusReasonForbidden),
			}},
		}}, metav1.CreateOptions{}))(t)
		must(api.ValidatingAdmissionPolicyBindings().Create(ctx, &registrationv1.ValidatingAdmissionPolicyBinding{
			ObjectMeta: named("p"), Spec: registrationv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: "p", ValidationActions: []registrationv1.ValidationAction{"Deny"}},
		}, metav1.CreateOptions{}))(t)
		made := must(maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: named("x"), Data: map[string]string{"a": "b"}}, metav1.CreateOptions{}))(t)
		if made.Data["by"] == "" {
			t.Errorf("data %v", made.Data)
		}
		delete(made.Data, "by")
		if _, err := maps.Update(ctx, made, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("refused: %v", err)
		}
		if err := maps.Delete(ctx, "x", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}
