package kelsontest_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/apikeel/kelson/internal/polltest"
	"github.com/apikeel/kelson/kelsontest"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func newMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func TestFaults(t *testing.T) {
	s := kelsontest.Start(t, kelsontest.NoControllers())
	c := client(t, s.Config())
	put := func(name string) error {
		_, err := c.CoreV1().ConfigMaps("default").Create(t.Context(), newMap(name), metav1.CreateOptions{})
		return err
	}
	creates := kelsontest.Rule{Verb: "create", Resource: "configmaps"}
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "configmaps"}, "b", errors.New("somebody was faster"))

	t.Run("fail", func(t *testing.T) {
		fault := s.On(creates, kelsontest.Nth(2, kelsontest.Fail(conflict)))
		defer fault.Remove()
		for i, want := range []bool{true, false, true} {
			if err := put("fail-" + string(rune('a'+i))); (err == nil) != want || err != nil && err.Error() != conflict.Error() {
				t.Errorf("%d: %v", i, err)
			}
		}
		if fault.Hits() != 3 {
			t.Errorf("%d hits", fault.Hits())
		}
	})
	t.Run("plain error", func(t *testing.T) {
		defer s.On(creates, kelsontest.Fail(errors.New("no"))).Remove()
		if err := put("plain"); !apierrors.IsInternalError(err) {
			t.Error(err)
		}
	})
	t.Run("drop", func(t *testing.T) {
		defer s.On(creates, kelsontest.First(1, kelsontest.Drop())).Remove()
		if err := put("drop"); err == nil {
			t.Error("it has arrived")
		}
		if err := put("drop"); err != nil {
			t.Error(err)
		}
	})
	t.Run("lose answer", func(t *testing.T) {
		defer s.On(creates, kelsontest.First(1, kelsontest.LoseAnswer())).Remove()
		if err := put("lost"); err == nil {
			t.Error("there is an answer")
		}
		if err := put("lost"); !apierrors.IsAlreadyExists(err) {
			t.Errorf("it was not done: %v", err)
		}
	})
	t.Run("delay", func(t *testing.T) {
		defer s.On(creates, kelsontest.Delay(50*time.Millisecond)).Remove()
		began := time.Now()
		if err := put("late"); err != nil || time.Since(began) < 50*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := c.CoreV1().ConfigMaps("default").Create(ctx, newMap("never"), metav1.CreateOptions{}); err == nil {
			t.Error("an answer to who has gone")
		}
	})
	t.Run("hold", func(t *testing.T) {
		gate, done := make(chan struct{}), make(chan error, 1)
		fault := s.On(creates, kelsontest.Hold(gate))
		defer fault.Remove()
		go func() { done <- put("held") }()
		polltest.Until(t, "it is held", func() bool { return fault.Hits() == 1 })
		if _, err := c.CoreV1().ConfigMaps("default").Get(t.Context(), "held", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("it was done: %v", err)
		}
		close(gate)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Run("clear", func(t *testing.T) {
		s.On(kelsontest.Rule{}, kelsontest.Drop())
		s.ClearFaults()
		if err := put("clear"); err != nil {
			t.Error(err)
		}
	})
}

func TestRules(t *testing.T) {
	s := kelsontest.Start(t, kelsontest.NoControllers())
	config := s.User("jane", "system:masters")
	config.UserAgent = "janes-tool/1.0"
	jane := client(t, config)
	for _, c := range []struct {
		name string
		rule kelsontest.Rule
		want bool
	}{
		{"any", kelsontest.Rule{}, true},
		{"verb", kelsontest.Rule{Verb: "get"}, true},
		{"one of the verbs", kelsontest.Rule{Verb: "list,get"}, true},
		{"another verb", kelsontest.Rule{Verb: "list"}, false},
		{"resource", kelsontest.Rule{Resource: "deployments.apps/scale"}, true},
		{"any resource", kelsontest.Rule{Resource: "*"}, true},
		{"any resource with a part", kelsontest.Rule{Resource: "*/scale"}, true},
		{"any part", kelsontest.Rule{Resource: "deployments.apps/*"}, true},
		{"another part", kelsontest.Rule{Resource: "deployments.apps/status"}, false},
		{"no part", kelsontest.Rule{Resource: "deployments.apps"}, false},
		{"no group", kelsontest.Rule{Resource: "deployments/scale"}, false},
		{"object", kelsontest.Rule{Namespace: "default", Name: "web"}, true},
		{"another object", kelsontest.Rule{Namespace: "default", Name: "db"}, false},
		{"another namespace", kelsontest.Rule{Namespace: "team"}, false},
		{"user", kelsontest.Rule{User: "jane"}, true},
		{"another user", kelsontest.Rule{User: "joe"}, false},
		{"user agent", kelsontest.Rule{UserAgent: "janes-tool/"}, true},
		{"another user agent", kelsontest.Rule{UserAgent: "kubectl"}, false},
		{"function", kelsontest.Rule{Match: func(r *http.Request) bool { return r.URL.Query().Get("pretty") == "" }}, true},
		{"function that does not", kelsontest.Rule{Match: func(*http.Request) bool { return false }}, false},
	} {
		rec := s.Record(c.rule)
		_, _ = jane.AppsV1().Deployments("default").GetScale(t.Context(), "web", metav1.GetOptions{})
		rec.Stop()
		if got := len(rec.Requests()) == 1; got != c.want {
			t.Errorf("%s: met %v", c.name, got)
		}
	}
}

func TestRecord(t *testing.T) {
	s := kelsontest.Start(t)
	rec := s.Record(kelsontest.Rule{User: "jane"})
	jane := client(t, s.User("jane", "system:masters"))
	create(t, jane, "a")
	create(t, client(t, s.Config()), "b")
	if _, err := jane.CoreV1().ConfigMaps("default").Patch(t.Context(), "a", "application/merge-patch+json", []byte(`{"data":{"x":"y"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	_, _ = jane.AppsV1().Deployments("team").Get(t.Context(), "none", metav1.GetOptions{})
	if _, err := jane.Discovery().ServerVersion(); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"create configmaps default", "patch configmaps default/a", "get deployments.apps team/none → 404", "get /version",
	}
	if got := rec.Strings(); !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	if patch := rec.Requests()[1]; string(patch.Body) != `{"data":{"x":"y"}}` || patch.Status != http.StatusOK {
		t.Errorf("%s, answered with %d", patch.Body, patch.Status)
	}
	rec.Reset()
	rec.Stop()
	create(t, jane, "c")
	if got := rec.Strings(); len(got) != 0 {
		t.Errorf("got %q", got)
	}
}
