package wire

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// TestEncodableCheck has values that a codec takes and another cannot write.
func TestEncodableCheck(t *testing.T) {
	late := time.Date(126756924, 1, 1, 0, 0, 0, 0, time.UTC)
	zone := time.Date(9999, 12, 31, 23, 59, 59, 0, time.FixedZone("", -3600)) // in the year 10000
	nan := math.NaN()
	var c EncodableCheck
	for name, test := range map[string]struct {
		obj  any
		want string // a part of the error
	}{
		"nothing":       {&corev1.Pod{}, ""},
		"micro time":    {&coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: late}}}, "spec: renewTime: the time is not"},
		"time":          {&corev1.Pod{Status: corev1.PodStatus{StartTime: &metav1.Time{Time: zone}}}, "status: startTime: the time"},
		"early":         {&corev1.Event{LastTimestamp: metav1.Time{Time: time.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC)}}, "lastTimestamp"},
		"last second":   {&corev1.Event{LastTimestamp: metav1.Time{Time: time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)}}, ""},
		"owner's time":  {&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{{}, {Time: &metav1.Time{Time: late}}}}}, "[1]time"},
		"fields":        {&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{{FieldsV1: metav1.NewFieldsV1("{\"f:\xff\":{}}")}}}}, "not UTF-8"},
		"no JSON":       {&appsv1.ControllerRevision{Data: runtime.RawExtension{Raw: []byte("{")}}, "data: it is not JSON"},
		"JSON":          {&appsv1.ControllerRevision{Data: runtime.RawExtension{Raw: []byte(`{"a":1}`)}}, ""},
		"deep":          {&appsv1.ControllerRevision{Data: runtime.RawExtension{Raw: []byte(strings.Repeat("[", 9500) + strings.Repeat("]", 9500))}}, "deeper"},
		"int or string": {&corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{TargetPort: intstr.IntOrString{Type: 7}}}}}, "type 7"},
		"recursive":     {&apiextensions.JSONSchemaProps{Properties: map[string]apiextensions.JSONSchemaProps{"a": {Items: &apiextensions.JSONSchemaPropsOrArray{Schema: &apiextensions.JSONSchemaProps{Maximum: &nan}}}}}, "maximum"},
		"default":       {&apiextensions.JSONSchemaProps{Properties: map[string]apiextensions.JSONSchemaProps{"a": {Default: &apiextensions.JSON{Raw: []byte("x")}}}}, "default: it is not JSON"},
		"map": {&unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"managedFields": []any{map[string]any{"time": "10000-01-01T00:00:00Z"}}}}},
			"metadata.managedFields[0].time"},
	} {
		err := c.Check(test.obj)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
		if err == nil {
			if text, err := json.Marshal(test.obj); err != nil || !json.Valid(text) {
				t.Errorf("%s: got %s, %v as JSON", name, text, err)
			}
		}
	}
}

func BenchmarkEncodableCheck(b *testing.B) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: make([]corev1.Container, 3)}, Status: corev1.PodStatus{Conditions: make([]corev1.PodCondition, 5)}}
	pod.ManagedFields = []metav1.ManagedFieldsEntry{{FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{".":{},"f:a":{}}}}`)}}
	var c EncodableCheck
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Check(pod); err != nil {
			b.Fatal(err)
		}
	}
}
