package webhooks

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/admission/admissiontest"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/webhook"
)

// service answers reviews over TLS, each path in its own way, and remembers what
// it was asked.
type service struct {
	*httptest.Server
	mu    sync.Mutex
	asked []admissionv1.AdmissionReview
	paths []string
}

// reply answers a review.
type reply func(w http.ResponseWriter, r *http.Request, review *admissionv1.AdmissionReview)

func serve(t *testing.T, replies map[string]reply) *service {
	t.Helper()
	s := &service{}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var review admissionv1.AdmissionReview
		if err := json.Unmarshal(body, &review); err != nil || review.Request == nil {
			t.Errorf("%s is asked: %s", r.URL, body)
			return
		}
		s.mu.Lock()
		s.asked, s.paths = append(s.asked, review), append(s.paths, r.URL.Path)
		s.mu.Unlock()
		replies[r.URL.Path](w, r, &review)
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func (s *service) calls() ([]admissionv1.AdmissionReview, []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked, s.paths
}

// answer replies with a response, whose uid is filled in.
func answer(change func(*admissionv1.AdmissionReview)) reply {
	return func(w http.ResponseWriter, _ *http.Request, review *admissionv1.AdmissionReview) {
		out := &admissionv1.AdmissionReview{TypeMeta: review.TypeMeta, Response: &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}}
		change(out)
		_ = json.NewEncoder(w).Encode(out)
	}
}

func patching(patch string) reply {
	return answer(func(r *admissionv1.AdmissionReview) {
		r.Response.Patch, r.Response.PatchType = []byte(patch), new(admissionv1.PatchTypeJSONPatch)
	})
}

func denying(status *metav1.Status) reply {
	return answer(func(r *admissionv1.AdmissionReview) { r.Response.Allowed, r.Response.Result = false, status })
}

func (s *service) hook(name, path string, change ...func(*registrationv1.MutatingWebhook)) registrationv1.MutatingWebhook {
	w := registrationv1.MutatingWebhook{
		Name: name,
		ClientConfig: registrationv1.WebhookClientConfig{
			URL: new(s.URL + path), CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}),
		},
		Rules: []registrationv1.RuleWithOperations{{
			Operations: []registrationv1.OperationType{"*"},
			Rule:       registrationv1.Rule{APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{"*/*"}},
		}},
		FailurePolicy: new(registrationv1.Fail), MatchPolicy: new(registrationv1.Equivalent),
		NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: &metav1.LabelSelector{},
		SideEffects: new(registrationv1.SideEffectClassNone), TimeoutSeconds: new(int32(30)), AdmissionReviewVersions: []string{"v1"},
		ReinvocationPolicy: new(registrationv1.NeverReinvocationPolicy),
	}
	w.Rules[0].Resources = []string{"*", "*/*"}
	for _, c := range change {
		c(&w)
	}
	return w
}

func mutatingConfig(name string, hooks ...registrationv1.MutatingWebhook) resource.Object {
	return &registrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: hooks}
}

func validatingConfig(name string, hooks ...registrationv1.MutatingWebhook) resource.Object {
	c := &registrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, w := range hooks {
		c.Webhooks = append(c.Webhooks, registrationv1.ValidatingWebhook{
			Name: w.Name, ClientConfig: w.ClientConfig, Rules: w.Rules, FailurePolicy: w.FailurePolicy, MatchPolicy: w.MatchPolicy,
			NamespaceSelector: w.NamespaceSelector, ObjectSelector: w.ObjectSelector, SideEffects: w.SideEffects,
			TimeoutSeconds: w.TimeoutSeconds, AdmissionReviewVersions: w.AdmissionReviewVersions, MatchConditions: w.MatchConditions,
		})
	}
	return c
}

func config(t *testing.T, objects ...resource.Object) Config {
	t.Helper()
	source := &admissiontest.Source{}
	source.Set(objects...)
	client := &webhook.Client{TellTimeout: true}
	t.Cleanup(client.Close)
	return Config{Source: source, Client: client, Objects: admissiontest.Objects{
		"namespaces": {admissiontest.Namespace("default", "env=test")},
	}}
}

func chain(t *testing.T, objects ...resource.Object) *admission.Chain {
	t.Helper()
	var mutating, validating []resource.Object
	for _, obj := range objects {
		if _, ok := obj.(*registrationv1.MutatingWebhookConfiguration); ok {
			mutating = append(mutating, obj)
		} else {
			validating = append(validating, obj)
		}
	}
	return admission.NewChain(NewMutating(config(t, mutating...)), NewValidating(config(t, validating...)))
}

func ignoring(w *registrationv1.MutatingWebhook) { w.FailurePolicy = new(registrationv1.Ignore) }

func hurried(w *registrationv1.MutatingWebhook) { w.TimeoutSeconds = new(int32(1)) }

// admitted sends a write through both stages.
func admitted(c *admission.Chain, a *admission.Attributes) error {
	if err := c.Admit(context.Background(), a); err != nil {
		return err
	}
	return c.Validate(context.Background(), a)
}

// TestFailures has services that are slow, dead, lying or mad, and asks for the
// outcome that the failure policy says, in bounded time and memory.
func TestFailures(t *testing.T) {
	s := serve(t, map[string]reply{
		"/slow": func(_ http.ResponseWriter, r *http.Request, _ *admissionv1.AdmissionReview) { <-r.Context().Done() },
		"/trickle": func(w http.ResponseWriter, r *http.Request, _ *admissionv1.AdmissionReview) {
			_, _ = w.Write([]byte("{"))
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		},
		"/liar": answer(func(r *admissionv1.AdmissionReview) { r.Response.UID = "other" }),
		"/away": func(w http.ResponseWriter, r *http.Request, _ *admissionv1.AdmissionReview) {
			http.Redirect(w, r, "/allow", http.StatusTemporaryRedirect)
		},
		"/allow": answer(func(*admissionv1.AdmissionReview) {}),
		"/garbage": func(w http.ResponseWriter, _ *http.Request, _ *admissionv1.AdmissionReview) {
			fmt.Fprint(w, "not json")
		},
		"/nothing": func(http.ResponseWriter, *http.Request, *admissionv1.AdmissionReview) {},
		"/empty":   answer(func(r *admissionv1.AdmissionReview) { r.Response = nil }),
		"/kind":    answer(func(r *admissionv1.AdmissionReview) { r.APIVersion = "admission.k8s.io/v1beta1" }),
		"/broken": func(w http.ResponseWriter, _ *http.Request, _ *admissionv1.AdmissionReview) {
			http.Error(w, "boom", http.StatusInternalServerError)
		},
		"/huge": func(w http.ResponseWriter, _ *http.Request, _ *admissionv1.AdmissionReview) {
			_, _ = w.Write([]byte(`{"apiVersion":"`))
			for range 1600 {
				if _, err := w.Write([]byte(strings.Repeat("x", 1<<16))); err != nil {
					return
				}
			}
		},
		"/reset": func(http.ResponseWriter, *http.Request, *admissionv1.AdmissionReview) { panic(http.ErrAbortHandler) },
	})
	dead := serve(t, nil)
	dead.Close()
	for _, test := range []struct {
		path, want string
		from       *service
	}{
		{path: "/slow", want: "context deadline exceeded"},
		{path: "/trickle", want: "context deadline exceeded"},
		{path: "/liar", want: `received invalid webhook response: expected response.uid=`},
		{path: "/away", want: "failed to call webhook: the server responded with the status code 307 but did not return more information"},
		{path: "/garbage", want: "failed to call webhook: couldn't get version/kind; json parse error: json: cannot unmarshal string into Go value of type struct"},
		{path: "/nothing", want: "failed to call webhook: 0-length response with status code: 200 and content type: "},
		{path: "/empty", want: "received invalid webhook response: webhook response was absent"},
		{path: "/kind", want: "converting (v1beta1.AdmissionReview) to (v1.AdmissionReview): unknown conversion"},
		{path: "/broken", want: `failed to call webhook: an error on the server ("boom") has prevented the request from succeeding`},
		{path: "/huge", want: "failed to call webhook: the answer is larger than"},
		{path: "/reset", want: "EOF"},
		{path: "/dead", want: "connect: connection refused", from: dead},
	} {
		t.Run(test.path[1:], func(t *testing.T) {
			if test.path != "/huge" { // of which the memory is measured
				t.Parallel()
			}
			from := test.from
			if from == nil {
				from = s
			}
			for _, make := range []func(string, ...registrationv1.MutatingWebhook) resource.Object{mutatingConfig, validatingConfig} {
				for _, ignore := range []bool{false, true} {
					h := from.hook("x.example.com", test.path)
					if test.path == "/slow" || test.path == "/trickle" {
						hurried(&h)
					}
					if ignore {
						ignoring(&h)
					}
					var before, after runtime.MemStats
					runtime.ReadMemStats(&before)
					began := time.Now()
					c := admissiontest.Catalog()
					err := admitted(chain(t, make("c", h)), admissiontest.Write(c, admission.Create, "v1", "configmaps", admissiontest.ConfigMap("x"), nil))
					if took := time.Since(began); took > 10*time.Second {
						t.Errorf("took %s", took)
					}
					if runtime.ReadMemStats(&after); test.path == "/huge" && after.TotalAlloc-before.TotalAlloc > 200<<20 {
						t.Errorf("allocated %d bytes", after.TotalAlloc-before.TotalAlloc)
					}
					switch {
					case ignore && err != nil:
						t.Errorf("ignored: %v", err)
					case !ignore && (err == nil || !strings.Contains(err.Error(), test.want) ||
						!strings.HasPrefix(err.Error(), `Internal error occurred: failed calling webhook "x.example.com": `)):
						t.Errorf("%v, want %q", err, test.want)
					}
				}
			}
		})
	}
}

func TestAnswers(t *testing.T) {
	s := serve(t, map[string]reply{
		"/allow":  answer(func(*admissionv1.AdmissionReview) {}),
		"/deny":   denying(&metav1.Status{Message: "no", Code: 418, Reason: "Teapot"}),
		"/silent": denying(nil),
		"/reason": denying(&metav1.Status{Reason: "Because", Code: 200, Status: metav1.StatusSuccess}),
		"/patch":  patching(`[{"op":"add","path":"/data/b","value":"2"}]`),
		"/type":   patching(`[{"op":"add","path":"/data/b","value":2}]`),
		"/path":   patching(`[{"op":"remove","path":"/data/none"}]`),
		"/bad":    patching(`{"no":"patch"}`),
		"/bomb": patching(`[{"op":"add","path":"/data/x","value":"` + strings.Repeat("x", 1<<10) + `"}` +
			strings.Repeat(`,{"op":"add","path":"/data","value":{}},{"op":"copy","from":"","path":"/data/y"}`, 30) + `]`),
		"/kind":  patching(`[{"op":"replace","path":"/kind","value":"Secret"}]`),
		"/warns": answer(func(r *admissionv1.AdmissionReview) { r.Response.Warnings = []string{"careful"} }),
		"/notes": answer(func(r *admissionv1.AdmissionReview) { r.Response.AuditAnnotations = map[string]string{"k": "v"} }),
		"/lone":  answer(func(r *admissionv1.AdmissionReview) { r.Response.Patch = []byte("[]") }),
	})
	for _, test := range []struct {
		path       string
		mutating   string // error, or "" for none
		validating string
		code       int32
	}{
		{path: "/allow"},
		{path: "/deny", mutating: `admission webhook "x.example.com" denied the request: no`, validating: `admission webhook "x.example.com" denied the request: no`},
		{path: "/silent", mutating: `admission webhook "x.example.com" denied the request without explanation`, validating: `admission webhook "x.example.com" denied the request without explanation`},
		{path: "/reason", mutating: `admission webhook "x.example.com" denied the request: Because`, validating: `admission webhook "x.example.com" denied the request: Because`},
		{path: "/patch", validating: `Internal error occurred: failed calling webhook "x.example.com": received invalid webhook response: validating webhook may not return response.patch`},
		{path: "/type", mutating: "Internal error occurred: json: cannot unmarshal number into Go struct field ConfigMap.data of type string", validating: "*"},
		{path: "/path", mutating: "Internal error occurred: error in remove for path: '/data/none': Unable to remove nonexistent key: none: missing value", validating: "*"},
		{path: "/bad", mutating: `Internal error occurred: failed calling webhook "x.example.com": received undecodable patch in webhook response: json: cannot unmarshal object into Go value of type jsonpatch.Patch`, validating: "*"},
		{path: "/bomb", mutating: "*", validating: "*"},
		{path: "/kind", mutating: "Internal error occurred: /v1, Kind=ConfigMap cannot become /v1, Kind=Secret", validating: "*"},
		{path: "/warns"},
		{path: "/notes"},
		{path: "/lone", mutating: `Internal error occurred: failed calling webhook "x.example.com": received invalid webhook response: webhook returned response.patch but not response.patchType`, validating: "*"},
	} {
		t.Run(test.path[1:], func(t *testing.T) {
			c := admissiontest.Catalog()
			for kind, want := range map[string]string{"mutating": test.mutating, "validating": test.validating} {
				config := validatingConfig("c", s.hook("x.example.com", test.path))
				if kind == "mutating" {
					config = mutatingConfig("c", s.hook("x.example.com", test.path))
				}
				obj := admissiontest.ConfigMap("x")
				a := admissiontest.Write(c, admission.Create, "v1", "configmaps", obj, nil)
				err := admitted(chain(t, config), a)
				switch {
				case want == "" && err != nil, want == "*" && err == nil, want != "" && want != "*" && (err == nil || err.Error() != want):
					t.Errorf("%s: %v, want %q", kind, err, want)
				}
				if test.path == "/patch" && kind == "mutating" && (obj.Data["b"] != "2" || obj.Data["default"] != "set") {
					t.Errorf("patched to %v", obj.Data)
				}
				if test.path == "/warns" && fmt.Sprint(a.Request.Warnings()) != "[careful]" {
					t.Errorf("%s: warnings %q", kind, a.Request.Warnings())
				}
				if test.path == "/notes" && a.Request.Audit.(*admissiontest.Notes).Get("x.example.com/k") != "v" {
					t.Errorf("%s: the audit is not told", kind)
				}
			}
		})
	}
}

// TestAsked looks at what services are asked: which, in which order, about what.
func TestAsked(t *testing.T) {
	allow := answer(func(*admissionv1.AdmissionReview) {})
	paths := func(t *testing.T, s *service, want ...string) {
		t.Helper()
		if _, got := s.calls(); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("asked %v, want %v", got, want)
		}
	}
	c := admissiontest.Catalog()
	create := func() *admission.Attributes {
		return admissiontest.Write(c, admission.Create, "v1", "configmaps", admissiontest.ConfigMap("x", "app=web"), nil)
	}
	t.Run("order", func(t *testing.T) {
		s := serve(t, map[string]reply{"/1": allow, "/2": allow, "/3": allow})
		err := admitted(chain(t, mutatingConfig("b", s.hook("c.x.io", "/2"), s.hook("a.x.io", "/3")), mutatingConfig("a", s.hook("z.x.io", "/1"))), create())
		if err != nil {
			t.Fatal(err)
		}
		paths(t, s, "/1", "/2", "/3")
	})
	t.Run("matching", func(t *testing.T) {
		s := serve(t, map[string]reply{"/yes": allow})
		var hooks []registrationv1.MutatingWebhook
		add := func(path string, change func(*registrationv1.MutatingWebhook)) {
			hooks = append(hooks, s.hook(fmt.Sprintf("h%d.x.io", len(hooks)), path, change))
		}
		selects := func(key, value string) *metav1.LabelSelector {
			return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
		}
		add("/yes", func(w *registrationv1.MutatingWebhook) { w.NamespaceSelector = selects("env", "test") })
		add("/no", func(w *registrationv1.MutatingWebhook) { w.NamespaceSelector = selects("env", "prod") })
		add("/yes", func(w *registrationv1.MutatingWebhook) { w.ObjectSelector = selects("app", "web") })
		add("/no", func(w *registrationv1.MutatingWebhook) { w.ObjectSelector = selects("app", "db") })
		add("/no", func(w *registrationv1.MutatingWebhook) {
			w.Rules[0].Operations = []registrationv1.OperationType{"DELETE"}
		})
		add("/no", func(w *registrationv1.MutatingWebhook) { w.Rules[0].Scope = new(registrationv1.ClusterScope) })
		add("/yes", func(w *registrationv1.MutatingWebhook) { w.Rules[0].Resources = []string{"configmaps"} })
		add("/no", func(w *registrationv1.MutatingWebhook) { w.Rules[0].Resources = []string{"configmaps/*x"} })
		add("/yes", func(w *registrationv1.MutatingWebhook) {
			w.MatchConditions = []registrationv1.MatchCondition{{Name: "a", Expression: "object.metadata.name == 'x' && request.userInfo.username == 'jane'"}}
		})
		add("/no", func(w *registrationv1.MutatingWebhook) {
			w.MatchConditions = []registrationv1.MatchCondition{{Name: "a", Expression: "object.none == 'x'"}, {Name: "b", Expression: "false"}}
		})
		if err := admitted(chain(t, mutatingConfig("a", hooks...)), create()); err != nil {
			t.Fatal(err)
		}
		paths(t, s, "/yes", "/yes", "/yes", "/yes")
		broken := s.hook("x.io", "/no", func(w *registrationv1.MutatingWebhook) {
			w.MatchConditions = []registrationv1.MatchCondition{{Name: "a", Expression: "object.none == 'x'"}}
		})
		const want = `configmaps "x" is forbidden: expression 'object.none == 'x'' resulted in error: no such key: none`
		if err := admitted(chain(t, validatingConfig("a", broken)), create()); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
		ignoring(&broken)
		if err := admitted(chain(t, validatingConfig("a", broken)), create()); err != nil {
			t.Error(err)
		}
	})
	t.Run("equivalent", func(t *testing.T) {
		s := serve(t, map[string]reply{"/beta": patching(`[{"op":"replace","path":"/spec/width","value":7}]`), "/check": allow})
		beta := func(w *registrationv1.MutatingWebhook) {
			w.Rules[0].APIGroups, w.Rules[0].APIVersions = []string{"example.com"}, []string{"v1beta1"}
		}
		exact := func(w *registrationv1.MutatingWebhook) { beta(w); w.MatchPolicy = new(registrationv1.Exact) }
		obj := admissiontest.Widget("w", 5)
		a := admissiontest.Write(c, admission.Create, "v1", "widgets", obj, nil)
		err := admitted(chain(t, mutatingConfig("a", s.hook("a.x.io", "/beta", beta), s.hook("b.x.io", "/no", exact)), validatingConfig("a", s.hook("c.x.io", "/check", beta))), a)
		if err != nil {
			t.Fatal(err)
		}
		if size, _, _ := unstructured.NestedInt64(obj.Object, "spec", "size"); size != 7 || obj.GetAPIVersion() != "example.com/v1" {
			t.Errorf("became %v", obj.Object)
		}
		asked, _ := s.calls()
		r := asked[0].Request
		if r.Kind.Version != "v1beta1" || r.RequestKind.Version != "v1" || r.Resource.Version != "v1beta1" || r.RequestResource.Version != "v1" {
			t.Errorf("asked about %v %v, requested %v %v", r.Kind, r.Resource, r.RequestKind, r.RequestResource)
		}
		if text := string(asked[0].Request.Object.Raw); !strings.Contains(text, `"width":5`) || !strings.Contains(text, `example.com/v1beta1`) {
			t.Error(text)
		}
		if text := string(asked[1].Request.Object.Raw); !strings.Contains(text, `"width":7`) {
			t.Error(text)
		}
	})
	t.Run("delete", func(t *testing.T) {
		s := serve(t, map[string]reply{"/ok": allow, "/patch": patching(`[{"op":"add","path":"/data/b","value":"2"}]`)})
		a := admissiontest.Write(c, admission.Delete, "v1", "configmaps", nil, admissiontest.ConfigMap("x"))
		if err := admitted(chain(t, mutatingConfig("a", s.hook("a.x.io", "/ok")), validatingConfig("a", s.hook("b.x.io", "/ok"))), a); err != nil {
			t.Fatal(err)
		}
		asked, _ := s.calls()
		for _, r := range asked {
			if r.Request.Object.Raw != nil || !strings.Contains(string(r.Request.OldObject.Raw), `"kind":"ConfigMap"`) || r.Request.Operation != admissionv1.Delete {
				t.Errorf("%s %s", r.Request.Object.Raw, r.Request.OldObject.Raw)
			}
		}
		err := admitted(chain(t, mutatingConfig("a", s.hook("a.x.io", "/patch"))), admissiontest.Write(c, admission.Delete, "v1", "configmaps", nil, admissiontest.ConfigMap("x")))
		if err == nil || !strings.Contains(err.Error(), "attempted to modify the object") {
			t.Error(err)
		}
	})
	t.Run("dry run", func(t *testing.T) {
		s := serve(t, map[string]reply{"/ok": allow})
		effects := func(w *registrationv1.MutatingWebhook) { w.SideEffects = new(registrationv1.SideEffectClassSome) }
		a := create()
		a.DryRun = true
		if err := admitted(chain(t, validatingConfig("a", s.hook("b.x.io", "/ok"))), a); err != nil {
			t.Fatal(err)
		}
		a = create()
		a.DryRun = true
		err := admitted(chain(t, validatingConfig("a", s.hook("b.x.io", "/ok", effects, ignoring))), a)
		if err == nil || err.Error() != `admission webhook "b.x.io" does not support dry run` {
			t.Error(err)
		}
		asked, _ := s.calls()
		if len(asked) != 1 || !*asked[0].Request.DryRun || !strings.Contains(string(asked[0].Request.Options.Raw), `"kind":"CreateOptions","apiVersion":"meta.k8s.io/v1"`) {
			t.Errorf("%d %s", len(asked), asked[0].Request.Options.Raw)
		}
	})
	t.Run("v1beta1", func(t *testing.T) {
		s := serve(t, map[string]reply{"/ok": answer(func(r *admissionv1.AdmissionReview) {
			r.TypeMeta, r.Response.UID, r.Response.Patch = metav1.TypeMeta{}, "", []byte(`[{"op":"add","path":"/data/b","value":"2"}]`)
		})})
		obj := admissiontest.ConfigMap("x")
		old := s.hook("a.x.io", "/ok", func(w *registrationv1.MutatingWebhook) { w.AdmissionReviewVersions = []string{"v0", "v1beta1", "v1"} })
		if err := admitted(chain(t, mutatingConfig("a", old)), admissiontest.Write(c, admission.Create, "v1", "configmaps", obj, nil)); err != nil || obj.Data["b"] != "2" {
			t.Error(err, obj.Data)
		}
		if asked, _ := s.calls(); asked[0].APIVersion != "admission.k8s.io/v1beta1" {
			t.Error(asked[0].APIVersion)
		}
	})
	t.Run("reinvocation", func(t *testing.T) {
		s := serve(t, map[string]reply{"/1": allow, "/2": patching(`[{"op":"add","path":"/data/b","value":"2"}]`), "/3": allow})
		again := func(w *registrationv1.MutatingWebhook) {
			w.ReinvocationPolicy = new(registrationv1.IfNeededReinvocationPolicy)
		}
		a := create()
		if err := admitted(chain(t, mutatingConfig("a", s.hook("a.x.io", "/1", again), s.hook("b.x.io", "/2", again), s.hook("c.x.io", "/3"))), a); err != nil {
			t.Fatal(err)
		}
		paths(t, s, "/1", "/2", "/3", "/1")
		if note := a.Request.Audit.(*admissiontest.Notes).Get("mutation.webhook.admission.k8s.io/round_0_index_1"); note != `{"configuration":"a","webhook":"b.x.io","mutated":true}` {
			t.Error(note)
		}
	})
	t.Run("audit", func(t *testing.T) {
		s := serve(t, map[string]reply{"/1": patching(`[{"op":"add","path":"/data/b","value":"2"}]`)})
		a := create()
		if err := admitted(chain(t, mutatingConfig("a", s.hook("a.x.io", "/1"))), a); err != nil {
			t.Fatal(err)
		}
		const want = `{"configuration":"a","webhook":"a.x.io","patch":[{"op":"add","path":"/data/b","value":"2"}],"patchType":"JSONPatch"}`
		if note := a.Request.Audit.(*admissiontest.Notes).Get("patch.webhook.admission.k8s.io/round_0_index_0"); note != want {
			t.Error(note)
		}
	})
	t.Run("owners", func(t *testing.T) {
		s := serve(t, map[string]reply{"/1": patching(`[{"op":"add","path":"/metadata/managedFields","value":[{"operation":"Bogus"}]}]`)})
		a := create()
		if err := admitted(chain(t, mutatingConfig("a", s.hook("a.x.io", "/1"))), a); err != nil || len(a.Object.(*corev1.ConfigMap).ManagedFields) != 0 || len(a.Request.Warnings()) != 1 {
			t.Error(err, a.Object, a.Request.Warnings())
		}
	})
	t.Run("itself", func(t *testing.T) {
		p := NewValidating(config(t))
		for resource, want := range map[string]bool{"validatingwebhookconfigurations": false, "mutatingadmissionpolicies": false, "others": true} {
			if got := p.Handles(admission.Target{Group: registrationv1.GroupName, Resource: resource}); got != want {
				t.Errorf("%s: %v", resource, got)
			}
		}
	})
	t.Run("reviews", func(t *testing.T) {
		for _, want := range []bool{false, true} {
			c := config(t)
			c.Reviews = want
			for _, target := range []admission.Target{
				{Group: "authorization.k8s.io", Resource: "localsubjectaccessreviews"}, {Group: "authentication.k8s.io", Resource: "tokenreviews"},
			} {
				if got := NewValidating(c).Handles(target); got != want {
					t.Errorf("%s with Reviews=%v: got %v", target.Resource, want, got)
				}
			}
		}
	})
}

// TestChanges has a configuration change between writes.
func TestChanges(t *testing.T) {
	s := serve(t, map[string]reply{"/no": denying(&metav1.Status{Message: "no"})})
	cfg := config(t)
	v := NewValidating(cfg)
	c := admissiontest.Catalog()
	try := func() error {
		return v.Validate(context.Background(), admissiontest.Write(c, admission.Create, "v1", "configmaps", admissiontest.ConfigMap("x"), nil))
	}
	if err := try(); err != nil {
		t.Fatal(err)
	}
	source, hook := cfg.Source.(*admissiontest.Source), validatingConfig("a", s.hook("a.x.io", "/no"))
	source.Set(hook)
	if err := try(); err == nil {
		t.Error("a webhook is not asked")
	}
	source.Delete(hook)
	if err := try(); err != nil {
		t.Error(err)
	}
}

func BenchmarkNoWebhooks(b *testing.B) {
	v := NewValidating(Config{Source: &admissiontest.Source{}, Objects: admissiontest.Objects{}, Client: &webhook.Client{}})
	c := admissiontest.Catalog()
	a := admissiontest.Write(c, admission.Create, "v1", "configmaps", admissiontest.ConfigMap("x"), nil)
	for b.Loop() {
		if err := v.Validate(context.Background(), a); err != nil {
			b.Fatal(err)
		}
	}
}

// countedMemory is an admission.Memory that notes what it is told.
type countedMemory struct {
	mu    sync.Mutex
	steps []string
}

func (m *countedMemory) note(format string, args ...any) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.steps = append(m.steps, fmt.Sprintf(format, args...))
	return nil
}

func (m *countedMemory) HoldPatch(int64) error         { return m.note("patch") }
func (m *countedMemory) HoldAnswer(bytes int64) error  { return m.note("answer") }
func (m *countedMemory) HoldDecoded(text []byte) error { return m.note("decode") }
func (m *countedMemory) Settle(replaced bool)          { _ = m.note("settle %t", replaced) }

// TestMemoryIsSettled: while a webhook takes its time a write holds nothing of what the answer before it
// took.
func TestMemoryIsSettled(t *testing.T) {
	memory := &countedMemory{}
	replies := map[string]reply{
		"/large": patching(`[{"op":"add","path":"/data/b","value":"` + strings.Repeat("x", 100<<10) + `"}]`),
		"/wrong": patching(`[{"op":"add","path":"/data/b","value":2}]`),
		"/small": answer(func(*admissionv1.AdmissionReview) {}),
	}
	for path, next := range replies {
		replies[path] = func(w http.ResponseWriter, r *http.Request, review *admissionv1.AdmissionReview) {
			_ = memory.note("%s is asked", path)
			next(w, r, review)
		}
	}
	s := serve(t, replies)
	a := admissiontest.Write(admissiontest.Catalog(), admission.Create, "v1", "configmaps", admissiontest.ConfigMap("x"), nil)
	a.Memory = memory
	c := chain(t, mutatingConfig("c", s.hook("a.x.io", "/small"), s.hook("b.x.io", "/large"), s.hook("c.x.io", "/wrong")))
	if err := admitted(c, a); err == nil {
		t.Error("a wrong patch is taken")
	}
	want := []string{
		"settle false", "/small is asked", "settle false",
		"settle false", "/large is asked", "answer", "decode", "settle true",
		"settle false", "/wrong is asked", "decode", "settle false",
	}
	if got := memory.steps; !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

// TestShorten: what of an answer lives on is bounded, and the same is dropped each time.
func TestShorten(t *testing.T) {
	large := strings.Repeat("ä", maxDenial)
	notes := map[string]string{}
	for i := range 10 {
		notes[fmt.Sprint(i)] = strings.Repeat("x", maxAnnotations/5)
	}
	r := &admissionv1.AdmissionResponse{
		Result:           &metav1.Status{Message: large, Details: &metav1.StatusDetails{Causes: make([]metav1.StatusCause, maxCauses+1)}},
		Warnings:         slices.Repeat([]string{large}, maxWarnings+1),
		AuditAnnotations: notes,
	}
	shorten(r)
	if got := r.Result.Message; len(got) > maxDenial+len("…") || !strings.HasSuffix(got, "ä…") {
		t.Errorf("the message has %d bytes and ends with %q", len(got), got[len(got)-10:])
	}
	if got := len(r.Result.Details.Causes); got != maxCauses {
		t.Errorf("%d causes, want %d", got, maxCauses)
	}
	if len(r.Warnings) != maxWarnings || len(r.Warnings[0]) > maxText+len("…") {
		t.Errorf("%d warnings of %d bytes", len(r.Warnings), len(r.Warnings[0]))
	}
	if got := slices.Sorted(maps.Keys(r.AuditAnnotations)); !slices.Equal(got, []string{"0", "1", "2", "3"}) {
		t.Errorf("the annotations %q are left", got)
	}
	notes = map[string]string{"a": strings.Repeat("x", maxAnnotations)}
	for i := range 10 {
		notes[fmt.Sprint("b", i)] = "small"
	}
	r = &admissionv1.AdmissionResponse{AuditAnnotations: notes}
	if shorten(r); len(r.AuditAnnotations) != 10 || r.AuditAnnotations["a"] != "" {
		t.Errorf("after one that is too large %d annotations are left, want the 10 others", len(r.AuditAnnotations))
	}
	few := &admissionv1.AdmissionResponse{Warnings: []string{"a"}, AuditAnnotations: map[string]string{"a": "b"}, Result: &metav1.Status{Message: "no"}}
	want := few.DeepCopy()
	if shorten(few); !reflect.DeepEqual(few, want) {
		t.Errorf("got %+v, want %+v", few, want)
	}
}

// TestShortenStatus: whatever text of a Status is large, little of it lives on.
func TestShortenStatus(t *testing.T) {
	const size, most = 256 << 10, maxDenial + maxCausesBytes + 100<<10
	large := strings.Repeat("x", size)
	for name, s := range map[string]*metav1.Status{
		"message": {Message: large},
		"names": {
			TypeMeta: metav1.TypeMeta{Kind: large, APIVersion: large}, ListMeta: metav1.ListMeta{ResourceVersion: large, Continue: large},
			Status: large, Reason: metav1.StatusReason(large),
			Details: &metav1.StatusDetails{Name: large, Group: large, Kind: large, UID: types.UID(large)},
		},
		"a cause":      {Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: metav1.CauseType(large), Message: large, Field: large}}}},
		"large causes": {Details: &metav1.StatusDetails{Causes: slices.Repeat([]metav1.StatusCause{{Message: large}}, 100)}},
		"many causes":  {Details: &metav1.StatusDetails{Causes: slices.Repeat([]metav1.StatusCause{{Message: "small"}}, 10*maxCauses)}},
	} {
		if name == "names" {
			s.SetSelfLink(large)
		}
		shorten(&admissionv1.AdmissionResponse{Result: s})
		text, err := json.Marshal(s)
		if err != nil || len(text) > most {
			t.Errorf("%s: %d bytes are left, want %d at most (%v)", name, len(text), most, err)
		}
		if d := s.Details; d != nil && name != "names" && (len(d.Causes) == 0 || d.Causes[0].Message == "") {
			t.Errorf("%s: no cause is left", name)
		}
	}
}
