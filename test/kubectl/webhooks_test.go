package kubectl

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/kelsontest"
	"github.com/apikeel/kelson/pki"
	"github.com/go-logr/logr"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// hooks are services over TLS, made with controller-runtime. What each path does
// is its name.
func hooks(t *testing.T) (url string, ca []byte) {
	t.Helper()
	ctrl.SetLogger(logr.Discard())
	authority, err := pki.New("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if _, err := authority.ServerPair(dir); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	_ = l.Close()
	s := webhook.NewServer(webhook.Options{Host: "127.0.0.1", Port: port, CertDir: dir, CertName: "apiserver.crt", KeyName: "apiserver.key"})
	decoder := admission.NewDecoder(scheme.Scheme)
	asks := func(f admission.HandlerFunc) http.Handler { return &webhook.Admission{Handler: f} }
	done := make(chan struct{})
	for path, handler := range map[string]http.Handler{
		"/allow": asks(func(context.Context, admission.Request) admission.Response { return admission.Allowed("") }),
		"/deny":  asks(func(context.Context, admission.Request) admission.Response { return admission.Denied("not today") }),
		"/error": asks(func(context.Context, admission.Request) admission.Response {
			return admission.Errored(http.StatusTeapot, errors.New("a teapot"))
		}),
		"/label": asks(func(_ context.Context, r admission.Request) admission.Response {
			var m corev1.ConfigMap
			if err := decoder.Decode(r, &m); err != nil {
				return admission.Errored(http.StatusBadRequest, err)
			}
			before := bytes.Clone(r.Object.Raw)
			m.Labels = map[string]string{"seen": "yes"}
			after, err := encode(&m)
			if err != nil {
				return admission.Errored(http.StatusInternalServerError, err)
			}
			return admission.PatchResponseFromRaw(before, after)
		}),
		"/slow": http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-r.Context().Done():
			case <-done:
			}
		}),
		"/lying": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"mine","allowed":true}}`))
		}),
		"/garbage":  http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("\x00\xff<html>")) }),
		"/redirect": http.RedirectHandler("/allow", http.StatusTemporaryRedirect),
		"/huge": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			piece := bytes.Repeat([]byte(" "), 1<<20)
			for range 100 {
				if _, err := w.Write(piece); err != nil {
					return
				}
			}
		}),
		"/hangup": http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }),
	} {
		s.Register(path, handler)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Start(ctx) }()
	t.Cleanup(func() {
		close(done)
		cancel()
		<-ended
	})
	wait(t, "the webhooks do not answer", func() bool { return s.StartedChecker()(nil) == nil })
	return "https://" + l.Addr().String(), authority.CertificatePEM()
}

func encode(m *corev1.ConfigMap) ([]byte, error) {
	m.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}
	var b bytes.Buffer
	err := scheme.Codecs.LegacyCodec(corev1.SchemeGroupVersion).Encode(m, &b)
	return b.Bytes(), err
}

// wait tries until something is so.
func wait(t *testing.T, what string, so func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(patience); !so(); {
		select {
		case <-tick.C:
		case <-end:
			t.Fatal(what)
		}
	}
}

// TestWebhooks asks services that do their work, and services that do not: what
// follows is what the failure policy says, in bounded time and memory, and nothing
// else of the API is affected.
func TestWebhooks(t *testing.T) {
	url, ca := hooks(t)
	c, err := kubernetes.NewForConfig(kelsontest.Start(t, kelsontest.NoControllers()).Config())
	if err != nil {
		t.Fatal(err)
	}
	none := registrationv1.SideEffectClassNone
	seconds := int32(1)
	rules := []registrationv1.RuleWithOperations{{
		Operations: []registrationv1.OperationType{registrationv1.Create},
		Rule:       registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
	}}
	create := func() (*corev1.ConfigMap, error) {
		return c.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "m-"}}, metav1.CreateOptions{})
	}
	for _, tt := range []struct {
		path string
		// want is in the error if failures count.
		want string
		// always: the service has answered, and failures do not come into it.
		always bool
	}{
		{"/allow", "", true},
		{"/label", "", true},
		{"/deny", `denied the request: not today`, true},
		{"/error", `denied the request: a teapot`, true},
		{"/slow", "context deadline exceeded", false},
		{"/lying", `expected response.uid=`, false},
		{"/garbage", "failed to call webhook", false},
		{"/redirect", "failed to call webhook", false},
		{"/huge", "failed to call webhook", false},
		{"/hangup", "failed to call webhook", false},
		{"/nowhere", "failed to call webhook", false},
		{"dead", "failed to call webhook", false},
	} {
		for _, policy := range []registrationv1.FailurePolicyType{registrationv1.Fail, registrationv1.Ignore} {
			for _, mutating := range []bool{true, false} {
				at := url + tt.path
				if tt.path == "dead" {
					at = "https://127.0.0.1:1"
				}
				client := registrationv1.WebhookClientConfig{URL: &at, CABundle: ca}
				meta := metav1.ObjectMeta{Name: "hook"}
				if mutating {
					_, err = c.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(t.Context(), &registrationv1.MutatingWebhookConfiguration{ObjectMeta: meta, Webhooks: []registrationv1.MutatingWebhook{{
						Name: "a.b.c", ClientConfig: client, Rules: rules, SideEffects: &none, TimeoutSeconds: &seconds, FailurePolicy: &policy, AdmissionReviewVersions: []string{"v1"},
					}}}, metav1.CreateOptions{})
				} else {
					if tt.path == "/label" {
						continue
					}
					_, err = c.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), &registrationv1.ValidatingWebhookConfiguration{ObjectMeta: meta, Webhooks: []registrationv1.ValidatingWebhook{{
						Name: "a.b.c", ClientConfig: client, Rules: rules, SideEffects: &none, TimeoutSeconds: &seconds, FailurePolicy: &policy, AdmissionReviewVersions: []string{"v1"},
					}}}, metav1.CreateOptions{})
				}
				if err != nil {
					t.Fatal(err)
				}
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				made, err := create()
				runtime.ReadMemStats(&after)
				if grown := after.TotalAlloc - before.TotalAlloc; grown > 64<<20 {
					t.Errorf("%s: %d MiB were used", tt.path, grown>>20)
				}
				refused := tt.want != "" && (tt.always || policy == registrationv1.Fail)
				switch {
				case refused && (err == nil || !strings.Contains(err.Error(), tt.want)):
					t.Errorf("%s, %s, mutating %t: %v, want %q", tt.path, policy, mutating, err, tt.want)
				case !refused && err != nil:
					t.Errorf("%s, %s, mutating %t: %v", tt.path, policy, mutating, err)
				case tt.path == "/label" && made.Labels["seen"] != "yes":
					t.Errorf("the labels are %v", made.Labels)
				}
				if mutating {
					err = c.AdmissionregistrationV1().MutatingWebhookConfigurations().Delete(t.Context(), "hook", metav1.DeleteOptions{})
				} else {
					err = c.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(t.Context(), "hook", metav1.DeleteOptions{})
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		}
	}

	// Many wait for a service that does not answer; others do not wait for them.
	at, long := url+"/slow", int32(30)
	fail := registrationv1.Fail
	if _, err = c.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), &registrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "slow"}, Webhooks: []registrationv1.ValidatingWebhook{{
		Name: "a.b.c", ClientConfig: registrationv1.WebhookClientConfig{URL: &at, CABundle: ca}, Rules: rules, SideEffects: &none, TimeoutSeconds: &long, FailurePolicy: &fail, AdmissionReviewVersions: []string{"v1"},
	}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	waiting := make(chan error)
	const writers = 20
	for range writers {
		go func() {
			_, err := c.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "m-"}}, metav1.CreateOptions{})
			waiting <- err
		}()
	}
	for i := range 20 {
		if _, err := c.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{GenerateName: "s-"}}, metav1.CreateOptions{}); err != nil {
			t.Errorf("create %d meanwhile: %v", i, err)
		}
		if _, err := c.CoreV1().ConfigMaps("default").Get(t.Context(), "none", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("get %d meanwhile: %v", i, err)
		}
	}
	select {
	case err := <-waiting:
		t.Errorf("a write has not waited: %v", err)
	default:
	}
	cancel()
	for range writers {
		<-waiting
	}
}
