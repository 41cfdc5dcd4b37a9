package resource

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func TestConnect(t *testing.T) {
	good := func() *Connect {
		return &Connect{
			Methods: []string{http.MethodOptions, http.MethodPost, http.MethodGet, http.MethodDelete, http.MethodPut, http.MethodPatch, http.MethodHead},
			Options: func() runtime.Object { return &corev1.PodProxyOptions{} },
			Locate:  func(context.Context, Target, runtime.Object) (*Location, error) { return nil, nil },
		}
	}
	sub := Subresource{Name: "proxy", Kind: corev1.SchemeGroupVersion.WithKind("PodProxyOptions"), Connect: good()}
	if got := fmt.Sprint(sub.ServedVerbs()); got != "[create delete get patch update]" {
		t.Errorf("verbs %s", got)
	}
	catalog := func(sub Subresource) error {
		_, err := NewCatalog(Group{Resources: []Definition{{
			Resource: "pods", Kind: "Pod", Subresources: []Subresource{sub},
			Versions: []Version{VersionOf[corev1.Pod, corev1.PodList]("v1", (func(*corev1.Pod))(nil))},
		}}})
		return err
	}
	if err := catalog(sub); err != nil {
		t.Error(err)
	}
	for text, change := range map[string]func(*Subresource){
		"more than one of":      func(s *Subresource) { s.Part = &Strategy{} },
		"a connection needs":    func(s *Subresource) { s.Connect.Locate = nil },
		"connection needs meth": func(s *Subresource) { s.Connect.Methods = nil },
	} {
		bad := sub
		bad.Connect = good()
		change(&bad)
		if err := catalog(bad); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// nowhere is a source without objects.
type nowhere struct{}

func (nowhere) Get(context.Context, string, string) (Object, error) { return nil, nil }

func (nowhere) List(context.Context, string) ([]Object, error) { return nil, nil }

func TestSource(t *testing.T) {
	catalog, err := NewCatalog(Group{Resources: []Definition{{
		Resource: "pods", Kind: "Pod", Source: nowhere{},
		Versions: []Version{VersionOf[corev1.Pod, corev1.PodList]("v1", (func(*corev1.Pod))(nil))},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	d, _ := catalog.Definition("", "pods")
	if got := fmt.Sprint(d.Verbs); got != "[get list]" || !d.Virtual() {
		t.Errorf("verbs %s", got)
	}
}
