package jsonstruct

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	kjson "sigs.k8s.io/json"
)

const pod = `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","labels":{"a":"b","c":"d"},"annotations":{"text":"\u003ca\u003e \"b\"\n\t\u00e9 é"},
 "creationTimestamp":"2026-01-02T03:04:05Z","ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n","uid":"1","controller":true}],
 "managedFields":[{"manager":"m","operation":"Update","fieldsType":"FieldsV1","fieldsV1":{"f:data":{".":{},"f:a":{}}}}]},
 "spec":{"terminationGracePeriodSeconds":30,"securityContext":{"runAsNonRoot":true,"runAsUser":10001},"nodeSelector":{"a":"b"},
 "containers":[{"name":"web","image":"i","args":["a","b"],"ports":[{"name":"http","containerPort":8080}],
 "env":[{"name":"E","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}},{"name":"F","value":"x"}],
 "resources":{"requests":{"cpu":"250m","memory":"256Mi"},"limits":{"memory":"512Mi"}},
 "livenessProbe":{"httpGet":{"path":"/healthz","port":"http"},"periodSeconds":15},"volumeMounts":[]}],
 "volumes":[{"name":"tmp","emptyDir":{}},{"name":"c","configMap":{"name":"x","defaultMode":420}}]},"status":{"conditions":null}}`

// oddities are values that an object may have in the place of VALUE.
var oddities = []string{
	`null`, `{}`, `[]`, `""`, `0`, `-1`, `1.5`, `1e3`, `01`, `true`, `tru`, `[null]`, `{"a":null}`, `{"a":1}`, `{"a":"b"}`, `["a"]`, `[1]`, `[{}]`,
	`"\ud800"`, `"\ud83d\ude00"`, `"é"`, "\"\xff\"", "\"\n\"", `"\x"`, `"YWI="`, `"?"`, `99999999999`, `{"a":"b","a":"c"}`, `{"name":"a","name":"b"}`, `[{"name":"a"}]`,
	`{"name":"a"}`, `"2026-01-02T03:04:05Z"`, ``, `}`,
}

// positions are where an oddity may be.
var positions = []string{
	`{"metadata":VALUE}`, `{"metadata":{"name":VALUE}}`, `{"metadata":{"labels":VALUE}}`, `{"metadata":{"labels":{"x":VALUE}}}`, `{"metadata":{"creationTimestamp":VALUE}}`,
	`{"metadata":{"deletionTimestamp":VALUE}}`, `{"metadata":{"managedFields":[{"fieldsV1":VALUE}]}}`, `{"metadata":{"finalizers":VALUE}}`, `{"metadata":{"generation":VALUE}}`,
	`{"spec":VALUE}`, `{"spec":{"hostNetwork":VALUE}}`, `{"spec":{"securityContext":VALUE}}`, `{"spec":{"priority":VALUE}}`, `{"spec":{"containers":VALUE}}`,
	`{"spec":{"containers":[VALUE]}}`, `{"spec":{"containers":[{"resources":{"limits":{"cpu":VALUE}}}]}}`, `{"spec":{"containers":[{"livenessProbe":{"httpGet":{"port":VALUE}}}]}}`,
	`{"spec":{"overhead":VALUE}}`, `{"spec":{"overhead":{"cpu":VALUE}}}`, `{"kind":VALUE}`, `{"unknown":VALUE}`, `{"Metadata":VALUE}`, `{"spec":{"nodeName":"a","nodeName":VALUE}}`,
	`VALUE`, `{"spec":{}} VALUE`, `{"spec":{"tolerations":VALUE},"spec":{}}`, `{"spec" VALUE}`, ` { "spec" : { "nodeName" : VALUE } } `,
}

func eachOddity(f func(text string)) {
	for _, position := range positions {
		for _, value := range oddities {
			f(strings.Replace(position, "VALUE", value, 1))
		}
	}
}

// checkDecode compares with sigs.k8s.io/json what is decoded at all.
func checkDecode(t *testing.T, text string, into func() any) bool {
	t.Helper()
	want, got := into(), into()
	problems, err := kjson.UnmarshalStrict([]byte(text), want)
	if !Decode([]byte(text), got) {
		return false
	}
	if err != nil || len(problems) > 0 {
		t.Errorf("%s was decoded, want %v %v", text, err, problems)
	} else if !reflect.DeepEqual(got, want) {
		t.Errorf("%s was decoded as\n%+v\nwant\n%+v", text, got, want)
	}
	return true
}

func TestDecode(t *testing.T) {
	newPod := func() any { return &corev1.Pod{} }
	if !checkDecode(t, pod, newPod) {
		t.Errorf("an ordinary pod was not decoded")
	}
	if !checkDecode(t, `{"data":{"a":"YWI=","b":"","c":null},"stringData":{"a":"b"},"immutable":true}`, func() any { return &corev1.Secret{} }) {
		t.Errorf("an ordinary secret was not decoded")
	}
	decoded := 0
	eachOddity(func(text string) {
		if checkDecode(t, text, newPod) {
			decoded++
		}
	})
	if decoded < 80 {
		t.Errorf("only %d of the texts were decoded", decoded)
	}
	if Decode([]byte(`{}`), map[string]any{}) || Decode([]byte(`{}`), (*corev1.Pod)(nil)) {
		t.Error("something else than a struct was decoded")
	}
	if Decode([]byte(strings.Repeat(`{"metadata":`, 300)), &corev1.Pod{}) {
		t.Error("an endless text was decoded")
	}
}

// FuzzDecode compares with sigs.k8s.io/json.
func FuzzDecode(f *testing.F) {
	f.Add(pod)
	eachOddity(func(text string) { f.Add(text) })
	f.Fuzz(func(t *testing.T, text string) { checkDecode(t, text, func() any { return &corev1.Pod{} }) })
}

// checkMerge compares a merge with that of the text.
func checkMerge(t *testing.T, patch string) bool {
	t.Helper()
	live := func() (p corev1.Pod) {
		if err := json.Unmarshal([]byte(pod), &p); err != nil {
			t.Fatal(err)
		}
		return p
	}
	got := live()
	if !Merge([]byte(patch), &got) {
		return false
	}
	original, err := json.Marshal(live())
	if err != nil {
		t.Fatal(err)
	}
	result, err := jsonpatch.MergePatch(original, []byte(patch))
	if err != nil {
		t.Errorf("%s was merged, want %v", patch, err)
		return true
	}
	var want corev1.Pod
	if problems, err := kjson.UnmarshalStrict(result, &want); err != nil || len(problems) > 0 {
		t.Errorf("%s was merged, want %v %v", patch, err, problems)
		return true
	}
	if _, problems := kjson.UnmarshalStrict([]byte(patch), &map[string]any{}); problems != nil {
		t.Errorf("%s was merged, want %v", patch, problems)
	}
	a, errA := json.Marshal(got)
	b, errB := json.Marshal(want)
	if errA != nil || errB != nil || string(a) != string(b) {
		t.Errorf("%s made\n%s, want\n%s", patch, a, b)
	}
	return true
}

func TestMerge(t *testing.T) {
	merged := 0
	eachOddity(func(text string) {
		if checkMerge(t, text) {
			merged++
		}
	})
	for _, patch := range []string{
		`{"metadata":{"labels":{"a":"x","c":null,"e":"f"}}}`, `{"metadata":{"annotations":null}}`, `{"spec":{"securityContext":{"runAsUser":null,"fsGroup":5}}}`,
		`{"spec":{"containers":[{"name":"other"}]}}`, `{"spec":{"securityContext":null,"hostname":"h"}}`, `{"status":{"phase":"Running","startTime":"2026-01-02T03:04:05Z"}}`,
		`{"spec":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":null}}}}`, `{"spec":{"overhead":{"cpu":"1","memory":null}}}`,
	} {
		if !checkMerge(t, patch) {
			t.Errorf("%s was not merged", patch)
		}
	}
	if merged < 80 {
		t.Errorf("only %d of the texts were merged", merged)
	}
}

// FuzzMerge compares with the merge of the texts.
func FuzzMerge(f *testing.F) {
	eachOddity(func(text string) { f.Add(text) })
	f.Fuzz(func(t *testing.T, text string) {
		if strings.HasPrefix(strings.TrimSpace(text), "{") {
			checkMerge(t, text)
		}
	})
}

func TestMergeStrategicKnowsNoLists(t *testing.T) {
	for patch, want := range map[string]bool{
		`{"metadata":{"labels":{"a":null,"x":"y"}}}`:                    true,
		`{"metadata":{"finalizers":null}}`:                              true,
		`{"metadata":{"finalizers":["a"]}}`:                             false,
		`{"metadata":{"labels":{"$patch":"replace","x":"y"}}}`:          false,
		`{"spec":{"$patch":"delete"}}`:                                  false,
		`{"spec":{"containers":[{"name":"web","image":"other"}]}}`:      false,
		`{"spec":{"overhead":{"cpu":"1"}},"status":{"phase":"Failed"}}`: true,
	} {
		if got := MergeStrategic([]byte(patch), &corev1.Pod{}); got != want {
			t.Errorf("%s: %v, want %v", patch, got, want)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	configMap := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","labels":{"app":"bench"}},"data":{"a":"` + strings.Repeat("x", 500) + `","b":"` + strings.Repeat("y", 500) + `"}}`
	for _, c := range []struct {
		name, text string
		into       func() any
	}{{"pod", pod, func() any { return &corev1.Pod{} }}, {"configmap", configMap, func() any { return &corev1.ConfigMap{} }}} {
		b.Run(c.name+"/quick", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if !Decode([]byte(c.text), c.into()) {
					b.Fatal("not decoded")
				}
			}
		})
		b.Run(c.name+"/library", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := kjson.UnmarshalStrict([]byte(c.text), c.into()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// checkPatch compares with a patch of the text, and reports whether the patch was applied.
func checkPatch(t *testing.T, patch string) bool {
	live := func() (p corev1.Pod) {
		if err := json.Unmarshal([]byte(pod), &p); err != nil {
			t.Fatal(err)
		}
		return p
	}
	original, err := json.Marshal(live())
	if err != nil {
		t.Fatal(err)
	}
	got := live()
	if !Patch([]byte(patch), &got) {
		return false
	}
	ops, err := jsonpatch.DecodePatch([]byte(patch))
	var result []byte
	if err == nil {
		result, err = ops.Apply(original)
	}
	var want corev1.Pod
	var problems []error
	if err == nil {
		problems, err = kjson.UnmarshalStrict(result, &want)
	}
	if err != nil || len(problems) > 0 {
		t.Errorf("%s was applied, want %v %v", patch, err, problems)
		return true
	}
	a, errA := json.Marshal(got)
	b, errB := json.Marshal(want)
	if errA != nil || errB != nil || string(a) != string(b) {
		t.Errorf("%s made\n%s, want\n%s", patch, a, b)
	}
	return true
}

// FuzzPatch compares with a patch of the text.
func FuzzPatch(f *testing.F) {
	for _, patch := range []string{`[{"op":"add","path":"/metadata/labels/a","value":"x\`, `[{"value":"\`, `[{"op":"\`, `[{"value":{"a":"\`, `[{"value":1`, `[{"value":tr`,
		`[{"op":"remove","path":"/metadata/labels/c"}]`, `[{"op":"add","path":"/spec/tolerations","value":[{"key":"a"}]}]`} {
		f.Add(patch)
	}
	f.Fuzz(func(t *testing.T, patch string) { checkPatch(t, patch) })
}

// TestPatch compares with a patch of the text.
func TestPatch(t *testing.T) {
	check := func(patch string) bool { return checkPatch(t, patch) }
	for _, patch := range []string{
		`[]`, `[{"op":"replace","path":"/metadata/labels/a","value":"x"},{"op":"add","path":"/metadata/labels/a~1b~0","value":"y"}]`,
		`[{"op":"remove","path":"/metadata/labels/c"}]`, `[{"op":"add","path":"/spec/nodeName","value":"n"},{"op":"remove","path":"/spec/nodeName"}]`,
		`[{"op":"add","path":"/spec/tolerations","value":[{"key":"a"}]}]`, `[{"op":"replace","path":"/spec/securityContext/runAsUser","value":5}]`,
		`[{"op":"remove","path":"/spec/securityContext"}]`, `[{"op":"replace","path":"/spec/containers","value":[{"name":"x"}]}]`,
		`[{"op":"add","path":"/status/phase","value":"Running"}]`, `[{"op":"remove","path":"/metadata/labels"},{"op":"add","path":"/metadata/labels","value":{"a":null}}]`,
	} {
		if !check(patch) {
			t.Errorf("%s was not applied", patch)
		}
	}
	paths := []string{``, `/`, `metadata`, `/metadata`, `/metadata/name`, `/metadata/labels`, `/metadata/labels/a`, `/metadata/labels/none`, `/metadata/labels/a/b`,
		`/metadata/none`, `/metadata/finalizers`, `/metadata/finalizers/-`, `/metadata/creationTimestamp`, `/metadata/creationTimestamp/x`, `/spec/affinity/nodeAffinity`,
		`/spec/containers/0/image`, `/spec/overhead/cpu`, `/spec/nodeSelector/a`, `/spec/priority`, `/spec/terminationGracePeriodSeconds`, `/kind`}
	for _, path := range paths {
		for _, value := range oddities {
			for _, op := range []string{"add", "replace", "remove", "test", "copy"} {
				check(`[{"op":"` + op + `","path":"` + path + `","value":` + value + `}]`)
				check(`[{"op":"` + op + `","path":"` + path + `"}]`)
			}
		}
	}
}
