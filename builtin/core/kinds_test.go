package core

//lint:file-ignore SA1019 deprecated kinds are served and tested

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/request"
)

// fieldsOf returns the fields of errors, once each, in their order.
func fieldsOf(errs field.ErrorList) string {
	var names []string
	for _, err := range errs {
		if len(names) == 0 || names[len(names)-1] != err.Field {
			names = append(names, err.Field)
		}
	}
	return strings.Join(names, " ")
}

func amounts(pairs ...string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		list[corev1.ResourceName(pairs[i])] = quantity.MustParse(pairs[i+1])
	}
	return list
}

func TestLimitDefaults(t *testing.T) {
	l := corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, Max: amounts("cpu", "2", "memory", "1Gi"), Min: amounts("cpu", "1", "storage", "1"), Default: amounts("memory", "512Mi")}
	defaultLimit(&l)
	if want := amounts("cpu", "2", "memory", "512Mi"); !reflect.DeepEqual(l.Default, want) {
		t.Errorf("default %v", l.Default)
	}
	if want := amounts("cpu", "2", "memory", "512Mi", "storage", "1"); !reflect.DeepEqual(l.DefaultRequest, want) {
		t.Errorf("default request %v", l.DefaultRequest)
	}
	pod := corev1.LimitRangeItem{Type: corev1.LimitTypePod, Max: amounts("cpu", "2")}
	if defaultLimit(&pod); pod.Default != nil {
		t.Errorf("the limit of a pod has a default: %v", pod.Default)
	}
}

func TestLimits(t *testing.T) {
	const p = "spec.limits[0]."
	for want, item := range map[string]corev1.LimitRangeItem{
		"":                                {Type: corev1.LimitTypeContainer, Max: amounts("cpu", "4"), Min: amounts("cpu", "1"), MaxLimitRequestRatio: amounts("cpu", "4")},
		p + "type":                        {Type: "Nope"},
		p + "limits":                      {Type: corev1.LimitTypePersistentVolumeClaim},
		p + "min[cpu]":                    {Type: corev1.LimitTypePod, Max: amounts("cpu", "1"), Min: amounts("cpu", "2")},
		p + "default":                     {Type: corev1.LimitTypePod, Default: amounts("cpu", "1")},
		p + "max[storage]":                {Type: corev1.LimitTypeContainer, Max: amounts("storage", "1")},
		p + "maxLimitRequestRatio[cpu]":   {Type: corev1.LimitTypeContainer, Max: amounts("cpu", "2"), Min: amounts("cpu", "1"), MaxLimitRequestRatio: amounts("cpu", "3")},
		p + "defaultRequest[example/gpu]": {Type: corev1.LimitTypeContainer, Default: amounts("example/gpu", "2"), DefaultRequest: amounts("example/gpu", "1")},
	} {
		if got := fieldsOf(validateLimitRange(&corev1.LimitRange{Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{item}}})); got != want {
			t.Errorf("%+v: wrong are %q, want %q", item, got, want)
		}
	}
}

func TestQuota(t *testing.T) {
	scoped := func(r ...corev1.ScopedResourceSelectorRequirement) *corev1.ScopeSelector {
		return &corev1.ScopeSelector{MatchExpressions: r}
	}
	for want, spec := range map[string]corev1.ResourceQuotaSpec{
		"":                   {Hard: amounts("pods", "1", "requests.cpu", "1", "count/x.y", "2"), Scopes: []corev1.ResourceQuotaScope{"NotTerminating"}},
		"spec.hard[storage]": {Hard: amounts("storage", "1")},
		"spec.hard[pods]":    {Hard: amounts("pods", "0.5")},
		"spec.scopes":        {Hard: amounts("configmaps", "1"), Scopes: []corev1.ResourceQuotaScope{"BestEffort", "NotBestEffort"}},
		"spec.scopeSelector.matchExpressions.operator": {ScopeSelector: scoped(corev1.ScopedResourceSelectorRequirement{ScopeName: "BestEffort", Operator: "In", Values: []string{"x"}})},
		"spec.scopeSelector.matchExpressions.values":   {ScopeSelector: scoped(corev1.ScopedResourceSelectorRequirement{ScopeName: "PriorityClass", Operator: "In"})},
	} {
		if got := fieldsOf(validateQuota(&corev1.ResourceQuota{Spec: spec})); got != want {
			t.Errorf("%+v: wrong are %q, want %q", spec, got, want)
		}
	}
	warnings := quotaWarnings(amounts("cpu", "2", "limits.cpu", "1", "requests.memory", "1", "limits.memory", "2"))
	if fmt.Sprint(warnings) != "[ResourceQuota cpu (2) should be less than limits.cpu (1)]" {
		t.Errorf("warnings %q", warnings)
	}
	cells, err := ResourceQuotas().Cells(&corev1.ResourceQuota{Status: corev1.ResourceQuotaStatus{
		Hard: amounts("pods", "2", "limits.cpu", "3", "cpu", "1"), Used: amounts("pods", "1"),
	}})
	if err != nil || cells[1] != "cpu: 0/1, pods: 1/2" || cells[2] != "limits.cpu: 0/3" {
		t.Errorf("cells %q, %v", cells, err)
	}
}

func TestEndpointsCell(t *testing.T) {
	addresses := func(ips ...string) (list []corev1.EndpointAddress) {
		for _, ip := range ips {
			list = append(list, corev1.EndpointAddress{IP: ip})
		}
		return list
	}
	for want, subsets := range map[string][]corev1.EndpointSubset{
		"<none>":                      nil,
		"":                            {{NotReadyAddresses: addresses("1.1.1.1")}},
		"1.1.1.1":                     {{Addresses: addresses("1.1.1.1")}},
		"1.1.1.1:80,[fd00::1]:80":     {{Addresses: addresses("1.1.1.1", "fd00::1"), Ports: []corev1.EndpointPort{{Port: 80}}}},
		"a:1,b:1,a:2 + 1 more...":     {{Addresses: addresses("a", "b"), Ports: []corev1.EndpointPort{{Port: 1}, {Port: 2}}}},
		"1.1.1.1,1.1.1.2,2.2.2.2:443": {{Addresses: addresses("1.1.1.1", "1.1.1.2")}, {Addresses: addresses("2.2.2.2"), Ports: []corev1.EndpointPort{{Port: 443}}}},
	} {
		if got := endpointsCell(subsets); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestClaimSources(t *testing.T) {
	claim := &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "x"}
	other := &corev1.TypedLocalObjectReference{APIGroup: ptr.To("example.com"), Kind: "Thing", Name: "x"}
	far := &corev1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "x", Namespace: ptr.To("far")}
	for name, test := range map[string]struct {
		spec, old corev1.PersistentVolumeClaimSpec
		source    bool
		ref       bool
	}{
		"a claim":            {spec: corev1.PersistentVolumeClaimSpec{DataSource: claim}, source: true, ref: true},
		"nothing known":      {spec: corev1.PersistentVolumeClaimSpec{DataSource: other}},
		"what was there":     {spec: corev1.PersistentVolumeClaimSpec{DataSource: other}, old: corev1.PersistentVolumeClaimSpec{DataSource: other}, source: true, ref: true},
		"another namespace":  {spec: corev1.PersistentVolumeClaimSpec{DataSourceRef: far}},
		"it had one already": {spec: corev1.PersistentVolumeClaimSpec{DataSourceRef: far}, old: corev1.PersistentVolumeClaimSpec{DataSourceRef: far}, ref: true},
	} {
		dropClaimFields(t.Context(), &test.spec, &test.old)
		matchDataSources(&test.spec)
		if (test.spec.DataSource != nil) != test.source || (test.spec.DataSourceRef != nil) != test.ref {
			t.Errorf("%s: %v, %v", name, test.spec.DataSource, test.spec.DataSourceRef)
		}
	}
}

func TestClaimUpdate(t *testing.T) {
	size := func(s string) corev1.VolumeResourceRequirements {
		return corev1.VolumeResourceRequirements{Requests: amounts("storage", s)}
	}
	bound := corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: amounts("storage", "1Gi")}
	for name, test := range map[string]struct {
		change func(c *corev1.PersistentVolumeClaim)
		want   string
	}{
		"nothing":          {func(*corev1.PersistentVolumeClaim) {}, ""},
		"grows":            {func(c *corev1.PersistentVolumeClaim) { c.Spec.Resources = size("5Gi") }, ""},
		"gives up growing": {func(c *corev1.PersistentVolumeClaim) { c.Spec.Resources = size("1500Mi") }, ""},
		"shrinks":          {func(c *corev1.PersistentVolumeClaim) { c.Spec.Resources = size("1Gi") }, "spec.resources.requests.storage"},
		"is bound":         {func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "v" }, ""},
		"gets a class":     {func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = ptr.To("x") }, ""},
		"other modes":      {func(c *corev1.PersistentVolumeClaim) { c.Spec.AccessModes = nil }, "spec"},
		"annotation": {func(c *corev1.PersistentVolumeClaim) {
			c.Annotations = map[string]string{corev1.BetaStorageClassAnnotation: "x"}
		}, "metadata.annotations." + corev1.BetaStorageClassAnnotation},
		"attributes": {func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeAttributesClassName = ptr.To("fast") }, ""},
	} {
		old := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{"ReadWriteOnce"}, Resources: size("2Gi")}, Status: bound}
		c := old.DeepCopy()
		test.change(c)
		if got := fieldsOf(validateClaimUpdate(t.Context(), c, old)); got != test.want {
			t.Errorf("%s: wrong are %q, want %q", name, got, test.want)
		}
	}
}

func TestPersistentVolume(t *testing.T) {
	before := metav1.NewTime(time.Unix(1000, 0))
	ctx := request.With(context.Background(), &request.Request{Received: time.Unix(2000, 0)})
	d := PersistentVolumes()
	status, _ := d.Subresource("status")
	old := &corev1.PersistentVolume{Status: corev1.PersistentVolumeStatus{Phase: "Pending", LastPhaseTransitionTime: &before}}
	for phase, want := range map[corev1.PersistentVolumePhase]int64{"Pending": 1000, "Bound": 2000} {
		pv := &corev1.PersistentVolume{Status: corev1.PersistentVolumeStatus{Phase: phase}}
		status.Part.PrepareUpdate(ctx, pv, old)
		if got := pv.Status.LastPhaseTransitionTime.Unix(); got != want {
			t.Errorf("%s since %d, want %d", phase, got, want)
		}
	}

	affinity := func(key string) *corev1.VolumeNodeAffinity {
		return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: "Exists"}},
		}}}}
	}
	for key, good := range map[string]bool{"topology.kubernetes.io/zone": true, corev1.LabelFailureDomainBetaZone: true, "kubernetes.io/os": false} {
		var e rules.Errors
		checkVolumeAffinityUpdate(&e, affinity(key), affinity(corev1.LabelFailureDomainBetaZone), field.NewPath("nodeAffinity"))
		if (len(e) == 0) != good {
			t.Errorf("%s: %v", key, e)
		}
	}
	if got := accessModesCell([]corev1.PersistentVolumeAccessMode{"ReadWriteMany", "ReadWriteOnce", "ReadWriteMany"}); got != "RWO,RWX" {
		t.Error(got)
	}
}

func TestComponentStatuses(t *testing.T) {
	d := ComponentStatuses([]Component{
		{"good", func(context.Context) (corev1.ConditionStatus, string, error) { return corev1.ConditionTrue, "ok", nil }},
		{"bad", func(context.Context) (corev1.ConditionStatus, string, error) {
			return corev1.ConditionFalse, "", errors.New("gone")
		}},
	})
	objs, err := d.Source.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	var got []any
	for _, obj := range objs {
		cells, err := d.Cells(obj)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, cells)
	}
	if fmt.Sprint(got) != "[[good Healthy ok ] [bad Unhealthy  gone]]" {
		t.Error(got)
	}
	if _, err := d.Source.Get(t.Context(), "", "x"); err == nil || err.Error() != `componentstatus "x" not found` {
		t.Error(err)
	}
}

// A generated name that is wrong is said to be wrong once: not as a label, too.
func TestNamespaceLabel(t *testing.T) {
	for name, want := range map[string]string{"a-x": "a-x", "a/x": ""} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, GenerateName: "a"}}
		if labelWithName(ns); ns.Labels[corev1.LabelMetadataName] != want {
			t.Errorf("%s: %v", name, ns.Labels)
		}
	}
}
