package protojson

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func pod() *corev1.Pod {
	now := metav1.NewTime(time.Unix(1_700_000_000, 0))
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "a", Namespace: "b", UID: "c", CreationTimestamp: now, DeletionTimestamp: &now, Labels: map[string]string{"x": "y", "a": "<b>"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m", Time: &now, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{".":{}}}`)}, {FieldsV1: metav1.NewFieldsV1(`{ "f:a b" : {} }`)}},
		},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{
				Name: "é\n\"", Args: []string{"", "b"}, Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": resource.MustParse("250m")}},
				LivenessProbe:  &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromString("http")}}, PeriodSeconds: -3},
				ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(80)}}},
			}},
			Volumes: []corev1.Volume{{Name: "t", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
		},
		Status: corev1.PodStatus{StartTime: &now, Conditions: []corev1.PodCondition{{Type: "Ready"}}},
	}
}

// check compares with the JSON of the object that the protobuf is decoded into, if it is
// not refused.
func check(t *testing.T, raw []byte) bool {
	t.Helper()
	got, ok := Append([]byte("before"), reflect.TypeFor[corev1.Pod](), raw)
	if !ok {
		if string(got) != "before" {
			t.Errorf("got %s with false, want what was there", got)
		}
		return false
	}
	var back corev1.Pod
	if err := back.Unmarshal(raw); err != nil {
		t.Errorf("%x was accepted, want %v", raw, err)
		return true
	}
	want, err := json.Marshal(&back)
	if err != nil || string(got) != "before"+string(want) {
		t.Errorf("got  %s\nwant before%s (%v)", got, want, err)
	}
	return true
}

func TestAppend(t *testing.T) {
	for name, obj := range map[string]*corev1.Pod{"full": pod(), "empty": {}, "epoch": {ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.Unix(0, 0)}}} {
		raw, err := obj.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if !check(t, raw) {
			t.Errorf("%s: an ordinary pod was refused", name)
		}
	}
	if !check(t, nil) {
		t.Error("no bytes were refused")
	}
	type other struct{ A any }
	if _, ok := Append(nil, reflect.TypeFor[other](), nil); ok {
		t.Error("a type without protobuf was accepted")
	}
}

// FuzzAppend changes the bytes of a pod.
func FuzzAppend(f *testing.F) {
	raw, err := pod().Marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	for i := range raw {
		changed := append([]byte{}, raw...)
		changed[i]++
		f.Add(changed)
		f.Add(raw[:i])
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var back corev1.Pod
		if back.Unmarshal(raw) == nil { // else nobody has written it
			check(t, raw)
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	configMap := &corev1.ConfigMap{ObjectMeta: pod().ObjectMeta, Data: map[string]string{"a": strings.Repeat("x", 500), "b": strings.Repeat("y\n", 250)}}
	for name, obj := range map[string]interface {
		Marshal() ([]byte, error)
		Unmarshal([]byte) error
	}{"pod": pod(), "configmap": configMap} {
		raw, err := obj.Marshal()
		if err != nil {
			b.Fatal(err)
		}
		typ := reflect.TypeOf(obj).Elem()
		b.Run(name+"/quick", func(b *testing.B) {
			b.ReportAllocs()
			var buf []byte
			for b.Loop() {
				var ok bool
				if buf, ok = Append(buf[:0], typ, raw); !ok {
					b.Fatal("refused")
				}
			}
		})
		b.Run(name+"/decoded", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				back := reflect.New(typ).Interface()
				if err := back.(interface{ Unmarshal([]byte) error }).Unmarshal(raw); err != nil {
					b.Fatal(err)
				}
				if _, err := json.Marshal(back); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
