package patch

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	goruntime "runtime"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/internal/jsonpatched"
)

const document = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"cm","labels":{"l":"v"},"finalizers":["a.example.com/a"]},"data":{"a":"1","b":"2"}}`

// want is the expected end of a patch: a document, or code and message.
type want struct {
	doc     string
	code    int32
	reason  metav1.StatusReason
	message string
	strict  string
}

const rejected = "the server rejected our request due to an error in our request"

func (w want) check(t *testing.T, got []byte, strict []error, err error) {
	t.Helper()
	if w.code != 0 {
		var status *apierrors.StatusError
		if !errors.As(err, &status) {
			t.Fatalf("error %v (%T), want a status %d", err, err, w.code)
		}
		s := status.ErrStatus
		if s.Code != w.code || s.Reason != w.reason || s.Message != w.message {
			t.Errorf("got %d %q %q\nwant %d %q %q", s.Code, s.Reason, s.Message, w.code, w.reason, w.message)
		}
		return
	}
	if err != nil {
		t.Fatalf("unexpected error: %v", err)
	}
	var a, b any
	if json.Unmarshal(got, &a) != nil || json.Unmarshal([]byte(w.doc), &b) != nil {
		t.Fatalf("not JSON: %s", got)
	}
	if fmt.Sprint(a) != fmt.Sprint(b) {
		t.Errorf("got  %s\nwant %s", got, w.doc)
	}
	if text := fmt.Sprint(errors.Join(strict...)); w.strict != "" && text != w.strict {
		t.Errorf("strict errors: %s\nwant %s", text, w.strict)
	}
}

func TestJSON(t *testing.T) {
	data := func(d string) string { return strings.Replace(document, `{"a":"1","b":"2"}`, d, 1) }
	unprocessable := want{code: 422, reason: metav1.StatusReasonInvalid, message: rejected}
	bad := func(message string) want {
		return want{code: 400, reason: metav1.StatusReasonBadRequest, message: message}
	}
	ops := func(n int) string {
		op := `{"op":"test","path":"/data/a","value":"1"}`
		return "[" + strings.Repeat(op+",", n-1) + op + "]"
	}
	for name, c := range map[string]struct {
		patch string
		want  want
	}{
		"add":            {`[{"op":"add","path":"/data/c","value":"3"}]`, want{doc: data(`{"a":"1","b":"2","c":"3"}`)}},
		"move":           {`[{"op":"move","path":"/data/z","from":"/data/a"}]`, want{doc: data(`{"z":"1","b":"2"}`)}},
		"copy":           {`[{"op":"copy","path":"/data/z","from":"/data/a"}]`, want{doc: data(`{"a":"1","z":"1","b":"2"}`)}},
		"test null":      {`[{"op":"test","path":"/data/zz","value":null}]`, want{doc: document}},
		"test":           {`[{"op":"test","path":"/data/zz","value":"2"}]`, unprocessable},
		"remove missing": {`[{"op":"remove","path":"/data/zz"}]`, unprocessable},
		"unknown op":     {`[{"op":"frobnicate","path":"/data/a"}]`, unprocessable},
		"no path":        {`[{"op":"add","value":"x"}]`, unprocessable},
		"empty":          {`[]`, want{doc: document}},
		"null":           {`null`, want{doc: document}},
		"nothing":        {``, bad("invalid JSON patch")},
		"object":         {`{}`, bad("error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp")},
		"number":         {`[1]`, bad("error decoding patch: json: cannot unmarshal number into Go value of type handlers.jsonPatchOp")},
		"unknown field":  {`[{"op":"test","path":"/data/a","value":"1","x":2}]`, want{doc: document, strict: `json patch unknown field "[0].x"`}},
		"10000 ops":      {ops(10000), want{doc: document}},
		"10001 ops": {ops(10001), want{code: 413, reason: metav1.StatusReasonRequestEntityTooLarge,
			message: "Request entity too large: The allowed maximum operations in a JSON patch is 10000, got 10001"}},
		"many items moved": {`[{"op":"add","path":"/data/list","value":[` + strings.Repeat("0,", 100_000) + `0]},` + strings.Repeat(`{"op":"add","path":"/data/list/0","value":0},`, 5000) + `{"op":"test","path":"/data/a","value":"1"}]`,
			want{code: 413, reason: metav1.StatusReasonRequestEntityTooLarge, message: "Request entity too large: the operations of the JSON patch move too many items of lists"}},
		"doubling copies": {"[" + strings.Join(copies(40), ",") + "]", unprocessable},
	} {
		t.Run(name, func(t *testing.T) {
			got, strict, err := JSON([]byte(document), []byte(c.patch), true, nil)
			c.want.check(t, got, strict, err)
		})
	}
}

// TestJSONWithoutMemory: a patch for which there is no memory is not a bad one.
func TestJSONWithoutMemory(t *testing.T) {
	patch := "[" + strings.Join(copies(1), ",") + "]"
	_, _, err := JSON([]byte(document), []byte(patch), true, func(int64) error { return budget.ErrBusy })
	if !errors.Is(err, budget.ErrBusy) {
		t.Errorf("got %v, want budget.ErrBusy", err)
	}
}

// copies returns operations that each double the document.
func copies(n int) (ops []string) {
	for i := range n {
		ops = append(ops, fmt.Sprintf(`{"op":"copy","from":"/metadata","path":"/metadata/x%d"}`, i))
	}
	return ops
}

func TestMerge(t *testing.T) {
	bad := func(message string) want {
		return want{code: 400, reason: metav1.StatusReasonBadRequest, message: message}
	}
	for name, c := range map[string]struct {
		patch string
		want  want
	}{
		"set and remove": {`{"data":{"a":null,"n":"x"}}`, want{doc: strings.Replace(document, `"a":"1","b":"2"`, `"b":"2","n":"x"`, 1)}},
		"nothing":        {`{}`, want{doc: document}},
		"twice":          {`{"data":{"a":"1","a":"1"}}`, want{doc: document, strict: `duplicate field "data.a"`}},
		"null":           {`null`, bad("Invalid JSON Patch")},
		"list":           {`[]`, bad("error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}")},
		"string":         {`"x"`, bad("error decoding patch: json: cannot unmarshal string into Go value of type map[string]interface {}")},
		"broken":         {`{`, bad("invalid JSON patch")},
	} {
		t.Run(name, func(t *testing.T) {
			got, strict, err := Merge([]byte(document), []byte(c.patch), true)
			c.want.check(t, got, strict, err)
		})
	}
}

func TestStrategic(t *testing.T) {
	deployment := func() *appsv1.Deployment {
		d := &appsv1.Deployment{}
		d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "a", Image: "a:1"}, {Name: "b", Image: "b:1"}}
		d.Spec.Strategy = appsv1.DeploymentStrategy{Type: "RollingUpdate", RollingUpdate: &appsv1.RollingUpdateDeployment{}}
		return d
	}
	invalid := func(value, err string) want {
		return want{code: 422, reason: metav1.StatusReasonInvalid, message: fmt.Sprintf(` "" is invalid: patch: Invalid value: %q: %s`, value, err)}
	}
	bad := func(message string) want {
		return want{code: 400, reason: metav1.StatusReasonBadRequest, message: message}
	}
	for name, c := range map[string]struct {
		patch string
		edit  func(*appsv1.Deployment)
		want  want
	}{
		"merge by name": {`{"spec":{"template":{"spec":{"containers":[{"name":"b","image":"b:2"}]}}}}`,
			func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[1].Image = "b:2" }, want{}},
		"delete item": {`{"spec":{"template":{"spec":{"containers":[{"name":"b","$patch":"delete"}]}}}}`,
			func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers = d.Spec.Template.Spec.Containers[:1] }, want{}},
		"retain keys": {`{"spec":{"strategy":{"$retainKeys":["type"],"type":"Recreate"}}}`,
			func(d *appsv1.Deployment) { d.Spec.Strategy = appsv1.DeploymentStrategy{Type: "Recreate"} }, want{}},
		"null":            {`null`, func(*appsv1.Deployment) {}, want{}},
		"unknown":         {`{"bogus":1}`, func(*appsv1.Deployment) {}, want{strict: `unknown field "bogus"`}},
		"retain keys bad": {`{"spec":{"strategy":{"$retainKeys":["other"],"type":"Recreate"}}}`, nil, bad("invalid patch format of retainKeys")},
		"list":            {`[]`, nil, bad("json: cannot unmarshal array into Go value of type map[string]interface {}")},
		"string to int":   {`{"spec":{"replicas":"x"}}`, nil, invalid("map[spec:map[replicas:x]]", "unrecognized type: int32")},
		"float to int":    {`{"spec":{"replicas":1.5}}`, nil, invalid("map[spec:map[replicas:1.5]]", "cannot convert float64 to int32")},
		"no merge key": {`{"spec":{"template":{"spec":{"containers":[{"image":"x"}]}}}}`, nil,
			want{code: 500, message: "map: map[image:x] does not contain declared merge key: name"}},
	} {
		t.Run(name, func(t *testing.T) {
			into := &appsv1.Deployment{}
			strict, _, err := Strategic(deployment(), into, []byte(c.patch), true)
			got, _ := json.Marshal(into)
			if c.edit != nil {
				d := deployment()
				c.edit(d)
				doc, _ := json.Marshal(d)
				c.want.doc = string(doc)
			}
			c.want.check(t, got, strict, err)
		})
	}
}

// status fails if an error is not a status with a code.
func status(t *testing.T, err error) {
	var s *apierrors.StatusError
	if err != nil && (!errors.As(err, &s) || s.ErrStatus.Code < 400) {
		t.Fatalf("not a status: %#v", err)
	}
}

func FuzzJSON(f *testing.F) {
	f.Add(document, `[{"op":"add","path":"/data/c","value":"3"}]`)
	f.Add(document, `[{"op":"copy","from":"","path":"/data"},{"op":"move","from":"/data","path":"/data/data"}]`)
	f.Add(document, "["+strings.Join(copies(30), ",")+"]")
	f.Add(`[1,2]`, `[{"op":"remove","path":"/-1"},{"op":"test","path":"","value":null}]`)
	f.Fuzz(func(t *testing.T, original, patch string) {
		got, _, err := JSON([]byte(original), []byte(patch), true, nil)
		status(t, err)
		if limit := len(original) + 8*len(patch) + 8*jsonpatched.MaxCopied; len(got) > limit {
			t.Fatalf("%d bytes from %d and %d", len(got), len(original), len(patch))
		}
	})
}

func FuzzMerge(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"data":{"a":null,"b":"3"}}`, `{"data":null}`, `{"x":{"y":null,"z":[null,{"q":null,"r":1.0}]}}`, `{"metadata":{"finalizers":[null,{"a":null}]}}`,
		`{"metadata":[{"a":null}]}`, `{"data":"text"}`, `[{"a":null}]`, `null`, `"x"`, `{"metadata":{"labels":{"l":{"deep":null}}}}`, `{"n":1e400,"m":12345678901234567890}`,
	} {
		f.Add(document, seed)
	}
	f.Fuzz(func(t *testing.T, doc, patch string) {
		got, _, err := Merge([]byte(doc), []byte(patch), false)
		status(t, err)
		if d, p := object([]byte(doc)), object([]byte(patch)); err == nil && d != nil && p != nil {
			mergeFields(d, p) // as for deep ones
			got, err = json.Marshal(d)
		}
		want, wantErr := jsonpatch.MergePatch([]byte(doc), []byte(patch))
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("got error %v, want %v", err, wantErr)
		}
		var a, b any
		if err != nil || json.Unmarshal(want, &b) != nil {
			return
		}
		if err := json.Unmarshal(got, &a); err != nil || !reflect.DeepEqual(a, b) {
			t.Errorf("got %s (%v), want %s", got, err, want)
		}
	})
}

// TestDeepMerge: what a deep patch costs grows with its size, not with its square.
func TestDeepMerge(t *testing.T) {
	const depth = 9000
	deep := strings.Repeat(`{"a":`, depth) + "1" + strings.Repeat("}", depth)
	var before, after goruntime.MemStats
	goruntime.ReadMemStats(&before)
	if _, _, err := Merge([]byte(`{"x":1}`), []byte(deep), false); err != nil {
		t.Fatal(err)
	}
	goruntime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 32<<20 {
		t.Errorf("a patch of %d bytes allocates %d, want at most 32 MiB", len(deep), used)
	}
}

func FuzzStrategic(f *testing.F) {
	f.Add(`{"spec":{"containers":[{"name":"a","$patch":"delete"}],"$setElementOrder/containers":[{"name":"a"}]}}`)
	f.Add(`{"metadata":{"$deleteFromPrimitiveList/finalizers":["x"]},"spec":{"$patch":"replace","volumes":[{"$retainKeys":["name"],"name":"v"}]}}`)
	f.Fuzz(func(t *testing.T, patch string) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Finalizers: []string{"x", "y"}}}
		pod.Spec.Containers = []corev1.Container{{Name: "a", Image: "i", Ports: []corev1.ContainerPort{{ContainerPort: 1}}}}
		pod.Spec.Volumes = []corev1.Volume{{Name: "v"}}
		var into runtime.Object = &corev1.Pod{}
		_, _, err := Strategic(pod, into, []byte(patch), true)
		status(t, err)
	})
}
