package resource

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func podDefinition() Definition {
	return Definition{
		Resource: "pods", Kind: "Pod", ShortNames: []string{"po"}, Namespaced: true,
		Versions: []Version{{
			Name:    "v1",
			New:     func() Object { return &corev1.Pod{} },
			NewList: func() runtime.Object { return &corev1.PodList{} },
		}},
	}
}

func eventDefinition() Definition {
	same := func(obj Object) (Object, error) { return obj, nil }
	return Definition{
		Resource: "events", Kind: "Event", Namespaced: true,
		Versions: []Version{{
			Name:    "v1",
			New:     func() Object { return &corev1.Event{} },
			NewList: func() runtime.Object { return &corev1.EventList{} },
		}, {
			Name: "v1", Group: "events.k8s.io",
			New:     func() Object { return &eventsv1.Event{} },
			NewList: func() runtime.Object { return &eventsv1.EventList{} },
			ToHub:   same, FromHub: same,
		}},
	}
}

func widgetDefinition(versions ...string) Definition {
	d := Definition{Resource: "widgets", Kind: "Widget"}
	for i, name := range versions {
		v := Version{
			Name:    name,
			New:     func() Object { return &unstructured.Unstructured{} },
			NewList: func() runtime.Object { return &unstructured.UnstructuredList{} },
		}
		if i > 0 {
			set := func(version string) func(Object) (Object, error) {
				return func(obj Object) (Object, error) {
					u := obj.DeepCopyObject().(*unstructured.Unstructured)
					u.SetAPIVersion("example.com/" + version)
					return u, nil
				}
			}
			v.ToHub, v.FromHub = set(versions[0]), set(name)
		}
		d.Versions = append(d.Versions, v)
	}
	return d
}

func mustCatalog(t testing.TB, groups ...Group) *Catalog {
	t.Helper()
	c, err := NewCatalog(groups...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func groupNames(c *Catalog) string {
	var names []string
	for _, g := range c.Groups() {
		var versions []string
		for _, v := range g.Versions {
			versions = append(versions, v.Name)
		}
		names = append(names, g.Name+"="+strings.Join(versions, "+"))
	}
	return strings.Join(names, " ")
}

func TestCatalogDefaultsAndLookups(t *testing.T) {
	c := mustCatalog(t,
		Group{Resources: []Definition{podDefinition(), eventDefinition()}},
		Group{Name: "example.com", Resources: []Definition{widgetDefinition("v1beta1", "v2", "v1")}},
		Group{Name: "events.k8s.io"},
	)
	pods, ok := c.Lookup("", "v1", "pods")
	if !ok {
		t.Fatal("no pods")
	}
	if d := pods.Definition; d.Singular != "pod" || d.ListKind != "PodList" || d.StorageKey != "pods" || d.Hub != "v1" || len(d.Verbs) != 8 {
		t.Errorf("defaults of pods: %+v", d)
	}
	if pods.Unstructured || !pods.IsHub() || pods.APIVersion != "v1" {
		t.Errorf("pods: %+v", pods)
	}
	widgets, ok := c.Lookup("example.com", "v2", "widgets")
	if !ok || widgets.Definition.StorageKey != "example.com/widgets" || !widgets.Unstructured || widgets.IsHub() || widgets.Definition.HubAPIVersion() != "example.com/v1beta1" {
		t.Errorf("widgets: %+v", widgets)
	}
	events, ok := c.LookupKind(schema.GroupVersionKind{Group: "events.k8s.io", Version: "v1", Kind: "Event"})
	if !ok || events.APIVersion != "events.k8s.io/v1" || events.Definition.Group != "" || events.IsHub() {
		t.Errorf("events: %+v", events)
	}
	if other, _ := c.Lookup("", "v1", "events"); other == nil || other.Definition != events.Definition || !other.IsHub() {
		t.Errorf("events in two groups: %+v", other)
	}
	if d, ok := c.Definition("events.k8s.io", "events"); !ok || d != events.Definition {
		t.Errorf("definition of events: %v", d)
	}
	for _, miss := range [][3]string{{"", "v2", "pods"}, {"apps", "v1", "pods"}, {"", "v1", "Pod"}} {
		if s, ok := c.Lookup(miss[0], miss[1], miss[2]); ok {
			t.Errorf("%v: found %+v", miss, s)
		}
	}
	if got, want := groupNames(c), "=v1 example.com=v2+v1+v1beta1 events.k8s.io=v1"; got != want {
		t.Errorf("groups %q, want %q", got, want)
	}
	if n := len(c.Definitions()); n != 3 {
		t.Errorf("%d definitions", n)
	}
	if v, ok := c.Groups()[0].Version("v1"); !ok || len(v.Resources) != 2 {
		t.Errorf("version of core: %+v", v)
	}
}

func TestCatalogWith(t *testing.T) {
	base := mustCatalog(t, Group{Resources: []Definition{podDefinition(), eventDefinition()}})
	more, err := base.With(Group{Name: "example.com", Resources: []Definition{widgetDefinition("v1")}})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := base.Lookup("example.com", "v1", "widgets"); ok {
		t.Error("the first catalog has changed")
	}
	if _, ok := more.Lookup("example.com", "v1", "widgets"); !ok {
		t.Error("no widgets")
	}
	a, _ := base.Lookup("", "v1", "pods")
	if b, _ := more.Lookup("", "v1", "pods"); a != b {
		t.Error("an unchanged group was made anew")
	}
	changed, err := more.With(Group{Name: "example.com", Resources: []Definition{widgetDefinition("v2", "v1")}})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := groupNames(changed), "=v1 events.k8s.io=v1 example.com=v2+v1"; got != want {
		t.Errorf("groups %q, want %q", got, want)
	}
	gone, err := changed.With(Group{Name: "example.com"}, Group{Resources: []Definition{podDefinition()}})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := groupNames(gone), "=v1"; got != want {
		t.Errorf("groups %q, want %q", got, want)
	}
	for _, group := range []string{"example.com", "events.k8s.io"} {
		if _, ok := gone.Group(group); ok {
			t.Errorf("group %s is still there", group)
		}
	}
	if got := len(changed.Groups()); got != 3 {
		t.Errorf("the older catalog has %d groups", got)
	}
}

func TestCatalogRefuses(t *testing.T) {
	change := func(f func(d *Definition)) []Group {
		d := podDefinition()
		f(&d)
		return []Group{{Resources: []Definition{d}}}
	}
	renamed := podDefinition()
	renamed.Resource = "pots"
	for name, test := range map[string]struct {
		groups []Group
		want   string
	}{
		"no resource":     {change(func(d *Definition) { d.Resource = "" }), "plural"},
		"upper case":      {change(func(d *Definition) { d.Resource = "Pods" }), "plural"},
		"no kind":         {change(func(d *Definition) { d.Kind = "" }), "no kind"},
		"no versions":     {change(func(d *Definition) { d.Versions = nil }), "no versions"},
		"unknown hub":     {change(func(d *Definition) { d.Hub = "v7" }), `hub "v7"`},
		"no version name": {change(func(d *Definition) { d.Versions[0].Name = ""; d.Hub = "v1" }), "no name"},
		"no New":          {change(func(d *Definition) { d.Versions[0].New = nil }), "no New"},
		"no NewList":      {change(func(d *Definition) { d.Versions[0].NewList = nil }), "no NewList"},
		"no conversion":   {change(func(d *Definition) { d.Versions = append(d.Versions, d.Versions[0]); d.Versions[1].Name = "v2" }), "does not convert"},
		"verb":            {change(func(d *Definition) { d.Verbs = []string{"get", "fly"} }), `"fly"`},
		"other group":     {change(func(d *Definition) { d.Group = "apps" }), `of group "apps"`},
		"slash":           {change(func(d *Definition) { d.StorageKey = "/pods" }), "slash"},
		"no cells":        {change(func(d *Definition) { d.Columns = []Column{{Name: "Name"}} }), "without cells"},
		"subresource":     {change(func(d *Definition) { d.Subresources = []Subresource{{}} }), "no name"},
		"subresources":    {change(func(d *Definition) { d.Subresources = []Subresource{{Name: "a"}, {Name: "a"}} }), "declared twice"},
		"two ways": {change(func(d *Definition) {
			d.Subresources = []Subresource{{Name: "a", Part: &Strategy{}, Projection: &Projection{}}}
		}), "more than one"},
		"subresource New": {change(func(d *Definition) {
			d.Subresources = []Subresource{{Name: "a", Kind: schema.GroupVersionKind{Kind: "A"}}}
		}), "no New"},
		"resource twice": {[]Group{{Resources: []Definition{podDefinition(), podDefinition()}}}, "declared twice in v1"},
		"kind twice":     {[]Group{{Resources: []Definition{podDefinition(), renamed}}}, "has the kind Pod"},
		"group twice":    {[]Group{{Resources: []Definition{podDefinition()}}, {Resources: []Definition{eventDefinition()}}}, "declared twice"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := NewCatalog(test.groups...)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want something about %q", err, test.want)
			}
		})
	}
}

func BenchmarkCatalogLookup(b *testing.B) {
	c := mustCatalog(b, Group{Resources: []Definition{podDefinition(), eventDefinition()}})
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := c.Lookup("", "v1", "pods"); !ok {
			b.Fatal("no pods")
		}
	}
}
