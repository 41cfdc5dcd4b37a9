package builtin

import (
	"maps"
	"slices"
	"strings"
	"testing"

	appsv1beta1 "k8s.io/api/apps/v1beta1"
	resourcev1beta1 "k8s.io/api/resource/v1beta1"
	"k8s.io/apimachinery/pkg/api/equality"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/randfill"

	"github.com/apikeel/kelson/builtin/admissionregistration"
	"github.com/apikeel/kelson/builtin/apps"
	"github.com/apikeel/kelson/builtin/autoscaling"
	"github.com/apikeel/kelson/builtin/batch"
	"github.com/apikeel/kelson/builtin/certificates"
	"github.com/apikeel/kelson/builtin/coordination"
	"github.com/apikeel/kelson/builtin/dra"
	"github.com/apikeel/kelson/builtin/policy"
	"github.com/apikeel/kelson/resource"
)

func versionedGroups() []resource.Group {
	return []resource.Group{apps.Group(), autoscaling.Group(), batch.Group(), policy.Group()}
}

// served lists what a catalog of the groups serves, as group/version/resource.
func served(t *testing.T, groups []resource.Group) []string {
	t.Helper()
	c, err := resource.NewCatalog(groups...)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, g := range c.Groups() {
		for _, v := range g.Versions {
			for _, s := range v.Resources {
				out = append(out, g.Name+"/"+v.Name+"/"+s.Definition.Resource)
			}
		}
	}
	slices.Sort(out)
	return out
}

func TestSelect(t *testing.T) {
	usual := served(t, versionedGroups())
	for _, name := range usual {
		if strings.Contains(name, "beta") {
			t.Errorf("%s is on by default", name)
		}
	}
	extensions := []string{"extensions/v1beta1/daemonsets", "extensions/v1beta1/deployments", "extensions/v1beta1/replicasets"}
	for name, test := range map[string]struct {
		config  map[string]string
		on, off []string
	}{
		"nothing":         {nil, nil, nil},
		"version":         {map[string]string{"extensions/v1beta1": "true"}, extensions, nil},
		"without a value": {map[string]string{"extensions/v1beta1": ""}, extensions, nil},
		"resource":        {map[string]string{"apps/v1beta1/deployments": "1"}, []string{"apps/v1beta1/deployments"}, nil},
		"all but one": {map[string]string{"batch/v1beta1": "true", "batch/v1/jobs": "false"},
			[]string{"batch/v1beta1/cronjobs"}, []string{"batch/v1/jobs"}},
		"hub": {map[string]string{"policy/v1": "false", "policy/v1beta1": "true"},
			[]string{"policy/v1beta1/poddisruptionbudgets"}, []string{"policy/v1/poddisruptionbudgets"}},
		// Removed versions have to be named.
		"levels": {map[string]string{"api/beta": "true", "api/alpha": "false"}, nil, nil},
		"only": {map[string]string{"api/all": "false", "batch/v1": "true"}, nil,
			slices.DeleteFunc(slices.Clone(usual), func(s string) bool { return strings.HasPrefix(s, "batch/v1/") })},
		"another server's": {map[string]string{"apiextensions.k8s.io/v1": "true"}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			groups, err := Select(versionedGroups(), test.config)
			if err != nil {
				t.Fatal(err)
			}
			want := slices.DeleteFunc(append(slices.Clone(usual), test.on...), func(s string) bool { return slices.Contains(test.off, s) })
			slices.Sort(want)
			if got := served(t, groups); !slices.Equal(got, want) {
				t.Errorf("got  %v\nwant %v", got, want)
			}
		})
	}
}

func TestSelectErrors(t *testing.T) {
	for want, config := range map[string]map[string]string{
		"invalid runtime-config with only api/all=false":                                                       {"api/all": "false"},
		"runtime-config invalid key v1":                                                                        {"v1": "true"},
		"unknown api groups a/v1,b/v1":                                                                         {"b/v1": "true", "a/v1/x": "true", "a/v1": "", "apps/v7": "true"},
		"group version apps/v7 that has not been registered":                                                   {"apps/v7": "true"},
		"invalid value api/ga=yes":                                                                             {"api/ga": "yes"},
		`invalid value of apps/v1: yes, err: strconv.ParseBool: parsing "yes": invalid syntax`:                 {"apps/v1": "yes"},
		`invalid key apps/v1/Jobs: group/version/resource and resource is always lowercase plural, not "Jobs"`: {"apps/v1/Jobs": "true"},
	} {
		if _, err := Select(versionedGroups(), config); err == nil || err.Error() != want {
			t.Errorf("%v: got %v, want %s", slices.Collect(maps.Keys(config)), err, want)
		}
	}
}

// TestSelectTakesVersionsThatAreGone wants versions to be accepted that kube-apiserver knows
// without serving anything in them.
func TestSelectTakesVersionsThatAreGone(t *testing.T) {
	usual, err := Select(Groups(Config{}), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, gv := range []string{"flowcontrol.apiserver.k8s.io/v1beta1", "flowcontrol.apiserver.k8s.io/v1beta3", "rbac.authorization.k8s.io/v1alpha1",
		"authentication.k8s.io/v1beta1", "authorization.k8s.io/v1beta1", "events.k8s.io/v1beta1", "admission.k8s.io/v1"} {
		groups, err := Select(Groups(Config{}), map[string]string{gv: "true"})
		if err != nil {
			t.Errorf("%s: %v", gv, err)
		} else if got, want := served(t, groups), served(t, usual); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", gv, got, want)
		}
	}
	for _, gv := range []string{"flowcontrol.apiserver.k8s.io/v1alpha1", "events.k8s.io/v1alpha1"} {
		if _, err := Select(Groups(Config{}), map[string]string{gv: "true"}); err == nil {
			t.Errorf("%s is accepted", gv)
		}
	}
}

// TestVersionsRoundTrip: an object of any version is the same after it has been
// stored.
func TestVersionsRoundTrip(t *testing.T) {
	fill := randfill.NewWithSeed(1).NilChance(0.3).NumElements(1, 2).MaxDepth(12).Funcs(
		func(e *runtime.RawExtension, c randfill.Continue) { e.Raw = []byte(`{"a":1}`) },
		func(f *metav1.FieldsV1, c randfill.Continue) { f.SetRawString("{}") },
		func(q *quantity.Quantity, c randfill.Continue) {
			*q = *quantity.NewQuantity(c.Int63n(1e6), quantity.DecimalSI)
		},
		// The hub cannot tell that there is none.
		func(s *appsv1beta1.StatefulSetStatus, c randfill.Continue) {
			c.FillNoCustom(s)
			s.ObservedGeneration = new(int64)
		},
		func(v *intstr.IntOrString, c randfill.Continue) { *v = intstr.FromInt32(c.Int31n(100)) },
		func(d *resourcev1beta1.Device, c randfill.Continue) {
			c.FillNoCustom(d)
			d.Basic = new(resourcev1beta1.BasicDevice)
			c.Fill(d.Basic)
		},
	)
	groups := append(versionedGroups(), admissionregistration.Group(admissionregistration.Config{}), certificates.Group(certificates.Config{}),
		coordination.Group(), dra.Group(dra.Config{}))
	for _, g := range groups {
		for _, d := range g.Resources {
			// An autoscaler of v1 has no place for most of a random one.
			if d.Resource == "horizontalpodautoscalers" {
				continue
			}
			for _, v := range d.Versions {
				if v.ToHub == nil {
					continue
				}
				t.Run(v.Group+"/"+v.Name+"/"+d.Resource, func(t *testing.T) {
					for range 20 {
						obj := v.New()
						fill.Fill(obj)
						obj.SetManagedFields(nil)
						hub, err := v.ToHub(obj.DeepCopyObject().(resource.Object))
						if err != nil {
							t.Fatal(err)
						}
						back, err := v.FromHub(hub)
						if err != nil {
							t.Fatal(err)
						}
						if !equality.Semantic.DeepEqual(obj, back) {
							t.Fatalf("became\n%+v\nfrom\n%+v", back, obj)
						}
					}
				})
			}
		}
	}
}
