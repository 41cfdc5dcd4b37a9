package rest

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/store"
	"github.com/apikeel/kelson/wire"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestGracefulDeletion: a kind with grace periods is marked before it goes, even
// if it goes at once.
func TestGracefulDeletion(t *testing.T) {
	h, _ := serve(t, func(def *resource.Definition) {
		def.Strategy = resource.Rules[*corev1.ConfigMap]{
			Generation:    func(obj, old *corev1.ConfigMap) bool { return obj.Data["k"] != old.Data["k"] },
			ReturnDeleted: true,
			GracePeriod: func(_ *corev1.ConfigMap, asked *int64) int64 {
				if asked == nil {
					return 30
				}
				return *asked
			},
		}.Strategy()
	})
	create := func(name string) string {
		a := do(t, h, "POST", configMaps, fmt.Sprintf(`{"metadata":{"name":%q}}`, name))
		if a.code != 201 {
			t.Fatal(a.body)
		}
		return a.meta("resourceVersion").(string)
	}
	def, _ := h.Catalog().Definition("", "configmaps")
	events := func(name, since string, n int) (out string) {
		revision, _ := strconv.ParseInt(since, 10, 64)
		w, err := h.objects(def).Watch(t.Context(), revision, func(rec *store.Record) bool { return rec.Name == name })
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		for got := 0; got < n; {
			seen, more, err := w.Poll(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, ev := range seen {
				out += string(eventType(ev.Type)) + " "
			}
			if got += len(seen); got < n {
				<-more
			}
		}
		return out
	}
	at := create("now")
	a := do(t, h, "DELETE", configMaps+"/now?gracePeriodSeconds=0", "")
	if a.code != 200 || a.object["kind"] != "ConfigMap" || a.meta("deletionGracePeriodSeconds") != 0.0 || a.meta("generation") != 2.0 || a.meta("deletionTimestamp") == nil {
		t.Errorf("at once: %s", a.body)
	}
	if got := events("now", at, 2); got != "MODIFIED DELETED " {
		t.Errorf("at once: %s", got)
	}

	create("later")
	steps := []struct {
		query string
		grace float64
	}{{"", 30}, {"?gracePeriodSeconds=40", 30}, {"?gracePeriodSeconds=10", 10}, {"", 10}, {"?gracePeriodSeconds=-5", 1}}
	for _, s := range steps {
		a := do(t, h, "DELETE", configMaps+"/later"+s.query, "")
		if a.code != 200 || a.meta("deletionGracePeriodSeconds") != s.grace || a.meta("generation") != 2.0 {
			t.Errorf("%q: %s", s.query, a.body)
		}
	}
	if a := do(t, h, "POST", configMaps, `{"metadata":{"name":"later"}}`); a.code != 409 || a.message() != `object is being deleted: configmaps "later" already exists` {
		t.Errorf("%d %s", a.code, a.message())
	}
	if a := do(t, h, "DELETE", configMaps+"/later?gracePeriodSeconds=0", ""); a.meta("deletionGracePeriodSeconds") != 0.0 {
		t.Error(a.body)
	}
	if a := do(t, h, "GET", configMaps+"/later", ""); a.code != 404 {
		t.Errorf("it is still there: %s", a.body)
	}
}

// A grace period that is made shorter than the time that has passed ends now, but
// not without any grace if somebody has asked for some.
func TestShortenedGrace(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	strategy := resource.Rules[*corev1.ConfigMap]{GracePeriod: func(*corev1.ConfigMap, *int64) int64 { return 60 }}.Strategy()
	s := &scope{def: &resource.Definition{Strategy: strategy}, served: &resource.Served{Version: &resource.Version{}}, req: &request.Request{Received: now}}
	ends, was := metav1.NewTime(now.Add(20*time.Second)), int64(60) // it began 40 seconds ago
	for _, test := range []struct{ asked, grace, in int64 }{{50, 50, 10}, {41, 41, 1}, {39, 1, 0}, {1, 1, 0}, {0, 0, 0}} {
		live := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &ends, DeletionGracePeriodSeconds: &was}}
		obj, err := s.mark(live, &metav1.DeleteOptions{GracePeriodSeconds: &test.asked})
		if err != nil {
			t.Fatal(err)
		}
		if got, in := *obj.GetDeletionGracePeriodSeconds(), obj.GetDeletionTimestamp().Sub(now); got != test.grace || in != time.Duration(test.in)*time.Second {
			t.Errorf("asked for %d: %d seconds, in %v", test.asked, got, in)
		}
	}
}

func TestDeletion(t *testing.T) {
	h, _ := serve(t, nil)
	const merge = "application/merge-patch+json"
	create := func(meta string) { do(t, h, "POST", configMaps, `{"metadata":{`+meta+`}}`) }

	create(`"name":"a"`)
	a := do(t, h, "DELETE", configMaps+"/a", `{"preconditions":{"uid":"x"}}`)
	if a.code != 409 || !strings.HasPrefix(a.message(), `Operation cannot be fulfilled on ConfigMap "a": the UID in the precondition (x) does not match the UID in record (`) {
		t.Error(a.body)
	}
	if a := do(t, h, "DELETE", configMaps+"/a?dryRun=All", ""); a.code != 200 || a.object["status"] != "Success" {
		t.Error(a.body)
	}
	if a := do(t, h, "DELETE", configMaps+"/a", ""); a.code != 200 || a.object["status"] != "Success" || a.meta("deletionTimestamp") != nil {
		t.Error(a.body)
	}

	// A finalizer holds it, and the last one that goes lets it go.
	create(`"name":"b","finalizers":["x.y/z"]`)
	if a := do(t, h, "DELETE", configMaps+"/b?propagationPolicy=Foreground", ""); a.meta("deletionGracePeriodSeconds") != 0.0 || fmt.Sprint(a.meta("finalizers")) != "[x.y/z foregroundDeletion]" {
		t.Error(a.body)
	}
	if a := do(t, h, "PATCH", configMaps+"/b", `{"metadata":{"finalizers":["n.o/t"]}}`, "Content-Type", merge); a.code != 422 || !strings.Contains(a.message(), "no new finalizers can be added") {
		t.Error(a.body)
	}
	if a := do(t, h, "PATCH", configMaps+"/b", `{"metadata":{"finalizers":null}}`, "Content-Type", merge); a.code != 200 {
		t.Error(a.body)
	}
	if a := do(t, h, "GET", configMaps+"/b", ""); a.code != 404 {
		t.Error(a.body)
	}

	create(`"name":"c"`)
	for body, want := range map[string]string{
		`{"kind":"X"}`:                   `400 no kind "X" is registered for version "meta.k8s.io/v1" in scheme "pkg/runtime/scheme.go:111"`,
		`[]`:                             `400 couldn't get version/kind; json parse error: json: cannot unmarshal array into Go value of type struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }`,
		`{"propagationPolicy":"X"}`:      `422 DeleteOptions.meta.k8s.io "" is invalid: propagationPolicy: Unsupported value: "X": supported values: "Foreground", "Background", "Orphan", "nil"`,
		`{"gracePeriodSeconds":"soon"}`:  `400 json: cannot unmarshal string into Go struct field DeleteOptions.gracePeriodSeconds of type int64`,
		`{"preconditions":{"uid":null}}`: `200 `,
	} {
		if a := do(t, h, "DELETE", configMaps+"/c", body); fmt.Sprint(a.code, " ", a.message()) != want {
			t.Errorf("%s: %d %s", body, a.code, a.message())
		}
		create(`"name":"c"`)
	}
}

// TestDeleteCollectionInParallel: the workers of a collection may all warn at once,
// and a panic on one of them is that of the request, not the end of the process.
func TestDeleteCollectionInParallel(t *testing.T) {
	const objects = 4 * deleteWorkers
	fails := ""
	h, _ := serve(t, func(def *resource.Definition) {
		def.Strategy.Begin = func(ctx context.Context, _, old resource.Object) (func(resource.Outcome), error) {
			if old == nil {
				return nil, nil
			}
			if old.GetName() == fails {
				panic("no " + fails)
			}
			request.From(ctx).Warn(old.GetName() + " goes")
			return nil, nil
		}
	})
	fill := func() {
		for i := range objects {
			do(t, h, "POST", "/api/v1/namespaces/a/configmaps", fmt.Sprintf(`{"metadata":{"name":"c%03d"}}`, i))
		}
	}
	fill()
	a := do(t, h, "DELETE", "/api/v1/namespaces/a/configmaps", "")
	if a.code != http.StatusOK || len(a.warned) != objects {
		t.Errorf("got %d and %d warnings, want 200 and %d: %s", a.code, len(a.warned), objects, a.body)
	}
	fill()
	fails = "c020"
	func() {
		defer func() {
			if cause := fmt.Sprint(recover()); cause != "panic: no c020" {
				t.Errorf("got %s, want the panic of the worker", cause)
			}
		}()
		do(t, h, "DELETE", "/api/v1/namespaces/a/configmaps", "")
	}()
	if a := do(t, h, "GET", "/api/v1/namespaces/a/configmaps/c020", ""); a.code != http.StatusOK {
		t.Errorf("got %d for the object that could not be deleted, want 200", a.code)
	}
}

// TestDeleteAnswersWithWhatIsRead checks that an object that is gone is shown as it was read, with
// defaults that it was not stored with, and one that is marked as it was written.
func TestDeleteAnswersWithWhatIsRead(t *testing.T) {
	h, backend := serve(t, func(def *resource.Definition) {
		def.Strategy = resource.Rules[*corev1.ConfigMap]{ReturnDeleted: true}.Strategy()
		def.Versions[0].Default = func(obj resource.Object) {
			if cm := obj.(*corev1.ConfigMap); cm.Data == nil {
				cm.Data = map[string]string{"k": "default"}
			}
		}
	})
	def, _ := h.Catalog().Definition("", "configmaps")
	for name, finalizers := range map[string][]string{"gone": nil, "held": {"example.com/hold"}} {
		stored, err := wire.EncodeStored(def, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", Finalizers: finalizers}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := backend.Create(t.Context(), h.objects(def).Key("ns", name), stored, 0); err != nil {
			t.Fatal(err)
		}
		a := do(t, h, "DELETE", configMaps+"/"+name, "")
		data, _ := a.object["data"].(map[string]any)
		revision, _ := backend.Revision(t.Context())
		if a.code != 200 || data["k"] != "default" || a.meta("resourceVersion") != strconv.FormatInt(revision, 10) {
			t.Errorf("%s: got %d %s, want the default and revision %d", name, a.code, a.body, revision)
		}
		if marked := a.meta("deletionTimestamp") != nil; marked != (finalizers != nil) {
			t.Errorf("%s: marked is %v", name, marked)
		}
	}
}

// TestDeleteThatIsDoneIsAnswered checks that a delete is not refused for want of memory when the
// object is gone.
func TestDeleteThatIsDoneIsAnswered(t *testing.T) {
	h, _ := serve(t, func(def *resource.Definition) {
		def.Strategy = resource.Rules[*corev1.ConfigMap]{ReturnDeleted: true}.Strategy()
	})
	text := strings.Repeat("x", 200<<10)
	if a := do(t, h, "POST", configMaps, `{"metadata":{"name":"large"},"data":{"k":"`+text+`"}}`); a.code != 201 {
		t.Fatal(a.body)
	}
	h.Memory = budget.New(512 << 20)
	free, err := h.Memory.Answers.Acquire(t.Context(), 1<<40, true)
	if err != nil {
		t.Fatal(err)
	}
	defer free()
	if a := do(t, h, "DELETE", configMaps+"/large", ""); a.code != 200 || a.meta("name") != "large" {
		t.Errorf("got %d %.200s, want the object", a.code, a.body)
	}
}
