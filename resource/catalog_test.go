package resource

import (
	"fmt"
	"slices"
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

func TestCatalogChange(t *testing.T) {
	named := func(resource, kind string, versions ...string) *Definition {
		d := widgetDefinition(versions...)
		d.Group, d.Resource, d.Kind = "example.com", resource, kind
		return &d
	}
	base := mustCatalog(t, Group{Resources: []Definition{podDefinition()}})
	first, err := base.Change([]*Definition{named("b", "B", "v1"), named("a", "A", "v1", "v2")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := groupNames(first), "=v1 example.com=v2+v1"; got != want {
		t.Errorf("groups %q, want %q", got, want)
	}
	second, err := first.Change([]*Definition{named("a", "A", "v1"), named("c", "C", "v1")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := groupNames(second), "=v1 example.com=v1"; got != want {
		t.Errorf("groups %q, want %q", got, want)
	}
	v, _ := second.Groups()[1].Version("v1")
	var order []string
	for _, s := range v.Resources {
		order = append(order, s.Definition.Resource)
	}
	if !slices.Equal(order, []string{"a", "b", "c"}) {
		t.Errorf("resources %q", order)
	}
	was, _ := first.Lookup("example.com", "v1", "b")
	if is, _ := second.Lookup("example.com", "v1", "b"); is != was {
		t.Error("an unchanged resource was made anew")
	}
	was, _ = first.Lookup("example.com", "v1", "a")
	if is, _ := second.Lookup("example.com", "v1", "a"); is == was || is == nil {
		t.Error("a changed resource was not made anew")
	}
	if _, ok := first.Lookup("example.com", "v2", "a"); !ok {
		t.Error("the older catalog has changed")
	}
	if _, err := second.Change([]*Definition{named("d", "A", "v1")}, nil); err == nil {
		t.Error("two resources have the same kind")
	}
	third, err := second.Change([]*Definition{named("d", "A", "v1")}, []schema.GroupResource{
		{Group: "example.com", Resource: "a"}, {Group: "example.com", Resource: "nope"}, {Group: "nope", Resource: "nope"}})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(third.Definitions()); n != 4 {
		t.Errorf("%d definitions", n)
	}
	if _, ok := third.LookupKind(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "A"}); !ok {
		t.Error("no kind A")
	}
	last, err := third.Change(nil, []schema.GroupResource{{Group: "example.com", Resource: "b"}, {Group: "example.com", Resource: "c"}, {Group: "example.com", Resource: "d"}})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := groupNames(last), "=v1"; got != want {
		t.Errorf("groups %q, want %q", got, want)
	}
	if _, ok := last.Group("example.com"); ok || len(last.Definitions()) != 1 {
		t.Error("something is left")
	}
}

// One more resource in a group of a thousand.
func BenchmarkCatalogChange(b *testing.B) {
	many := make([]*Definition, 1000)
	for i := range many {
		d := widgetDefinition("v1")
		many[i] = &d
		many[i].Group, many[i].Resource, many[i].Kind = "example.com", fmt.Sprintf("widgets%03d", i), fmt.Sprintf("Widget%03d", i)
	}
	c, err := mustCatalog(b, Group{Resources: []Definition{podDefinition()}}).Change(many[1:], nil)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Change(many[:1], nil); err != nil {
			b.Fatal(err)
		}
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
