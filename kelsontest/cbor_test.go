package kelsontest_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/apikeel/kelson/kelsontest"
)

// speaker sends bodies in one format, and gets answers in it.
type speaker struct {
	*testing.T
	transport http.RoundTripper
	host      string
	// namespace replaces NS in paths.
	namespace string
	cbor      bool
}

// spoken is an answer without what differs from request to request.
type spoken struct {
	Code    int
	Objects []any // more than one in a watch
}

func (s *speaker) do(method, path, media, body string) spoken {
	s.Helper()
	accept := "application/json"
	if s.cbor {
		accept, media = "application/cbor", strings.NewReplacer("application/json", "application/cbor", "apply-patch+yaml", "apply-patch+cbor").Replace(media)
		if strings.HasSuffix(media, "cbor") && body != "" {
			body = s.encode(body)
		}
	}
	r, err := http.NewRequestWithContext(s.Context(), method, s.host+strings.ReplaceAll(path, "NS", s.namespace), strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	r.Header.Set("Accept", accept)
	if body != "" {
		r.Header.Set("Content-Type", media)
	}
	resp, err := s.transport.RoundTrip(r)
	if err != nil {
		s.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.Fatal(err)
	}
	if got := resp.Header.Get("Content-Type"); !strings.HasPrefix(got, accept) {
		s.Errorf("%s %s: got an answer in %q, want %q", method, path, got, accept)
	}
	return spoken{resp.StatusCode, s.decode(text)}
}

func (s *speaker) encode(text string) string {
	var v any
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		s.Fatal(err)
	}
	body, err := direct.Marshal(numbers(v))
	if err != nil {
		s.Fatal(err)
	}
	return "\xd9\xd9\xf7" + string(body)
}

// numbers makes integers of numbers without a fraction.
func numbers(v any) any {
	switch v := v.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		f, _ := v.Float64()
		return f
	case map[string]any:
		for key := range v {
			v[key] = numbers(v[key])
		}
	case []any:
		for i := range v {
			v[i] = numbers(v[i])
		}
	}
	return v
}

// decode returns the values of an answer as they are in JSON.
func (s *speaker) decode(text []byte) (all []any) {
	if s.cbor {
		var lines bytes.Buffer
		for _, item := range items(text) {
			var v any
			if err := direct.Unmarshal(item, &v); err != nil {
				s.Fatalf("%v in % x", err, item)
			}
			line, err := json.Marshal(v)
			if err != nil {
				s.Fatal(err)
			}
			lines.Write(line)
		}
		text = lines.Bytes()
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	for {
		var v any
		if err := d.Decode(&v); err == io.EOF {
			return all
		} else if err != nil {
			s.Fatalf("%v in %q", err, text)
		}
		all = append(all, s.plain("", v))
	}
}

// items returns the items of a sequence in CBOR: each event of a watch is a map of two, and any
// other answer is one item.
func items(text []byte) (all [][]byte) {
	begins := func(at int) bool {
		rest, isMap := bytes.CutPrefix(text[at:], []byte("\xd9\xd9\xf7\xa2"))
		return isMap && (bytes.HasPrefix(rest, []byte("\x44type")) || bytes.HasPrefix(rest, []byte("\x46object")))
	}
	from := 0
	for at := range text {
		if at > 0 && begins(at) {
			all, from = append(all, text[from:at]), at
		}
	}
	return append(all, text[from:])
}

// plain removes what is another value in each request, and the messages of errors, which name
// the format.
func (s *speaker) plain(key string, v any) any {
	switch key {
	case "uid", "resourceVersion", "creationTimestamp", "time", "message", "lastTransitionTime":
		return nil
	}
	switch t := v.(type) {
	case map[string]any:
		for k := range t {
			t[k] = s.plain(k, t[k])
		}
	case []any:
		for i := range t {
			t[i] = s.plain("", t[i])
		}
	case string:
		return strings.ReplaceAll(t, s.namespace, "NS")
	}
	return v
}

// TestCBORDoesWhatJSONDoes sends the same requests in JSON and in CBOR, each to a namespace of its
// own: they are answered alike, and what is stored is the same.
func TestCBORDoesWhatJSONDoes(t *testing.T) {
	server := kelsontest.Start(t, kelsontest.NoControllers(), kelsontest.FeatureGates(map[string]bool{"CBORServingAndStorage": true}))
	config := server.Config()
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	defineFoos(t, server)
	inJSON := &speaker{t, transport, config.Host, "json-ns", false}
	inCBOR := &speaker{t, transport, config.Host, "cbor-ns", true}
	const (
		core, apps, foos = "/api/v1/namespaces/NS/configmaps", "/apis/apps/v1/namespaces/NS/deployments", "/apis/ex.io/v1/namespaces/NS/foos"
		plain, merge     = "application/json", "application/merge-patch+json"
		apply            = "application/apply-patch+yaml"
		deployment       = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"},"spec":{"replicas":2,"selector":{"matchLabels":{"a":"b"}},` +
			`"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i","resources":{"requests":{"cpu":"100m"}}}]}}}}`
	)
	for _, c := range []struct {
		method, path, media, body string
		code                      int
	}{
		{"POST", "/api/v1/namespaces", plain, `{"metadata":{"name":"NS"}}`, 201},
		{"POST", core, plain, `{"metadata":{"name":"a","labels":{"l":"1"}},` +
			`"data":{"k":"v","u":"ü\u0000 \ud83d\ude00"},"binaryData":{"b":"AP8="},"immutable":false}`, 201},
		{"POST", core, plain, `{"metadata":{"name":"a"}}`, 409},
		{"POST", core, plain, `{"metadata":{}}`, 422},
		{"POST", core, plain, `{"metadata":{"name":"A_"}}`, 422},
		{"POST", core, plain, `{"metadata":{"name":"x","namespace":"other"}}`, 400},
		{"POST", core, plain, `{"kind":"Secret","apiVersion":"v1","metadata":{"name":"x"}}`, 400},
		{"POST", core, plain, `{"kind":"ConfigMap","apiVersion":"v2","metadata":{"name":"x"}}`, 400},
		{"POST", core + "?fieldValidation=Strict", plain, `{"metadata":{"name":"x"},"more":1}`, 400},
		{"POST", core + "?fieldValidation=Ignore&dryRun=All", plain, `{"METADATA":{"name":"y"},"metadata":{"name":"x"},"more":1}`, 201},
		{"POST", core, plain, `{"metadata":{"name":"x"},"data":{"k":1}}`, 400},
		{"POST", core, plain, `[1]`, 400},
		{"PUT", core + "/a", plain, `{"metadata":{"name":"a"},"data":{"k":"w"}}`, 200},
		{"PUT", core + "/a", plain, `{"metadata":{"name":"b"},"data":{"k":"w"}}`, 400},
		{"PUT", core + "/a", plain, `{"metadata":{"name":"a","resourceVersion":"1"}}`, 409},
		{"PUT", core + "/a", plain, `{"metadata":{"name":"a","uid":"1"}}`, 409},
		{"PATCH", core + "/a", merge, `{"data":{"m":"p"}}`, 200},
		{"PATCH", core + "/a?fieldManager=f", apply, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"m":"q"}}`, 409},
		{"PATCH", core + "/a?fieldManager=f&force=true", apply, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"m":"q"}}`, 200},
		{"PATCH", core + "/new?fieldManager=f", apply, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"new"},"data":{"n":"1"}}`, 201},
		{"PATCH", core + "/new?fieldManager=f", apply, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"old"}}`, 400},
		{"PATCH", core + "/new?fieldManager=f", apply, `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"new"}}`, 400},
		{"PATCH", core + "/new", apply, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"new"}}`, 422},
		{"GET", core + "/a", "", "", 200},
		{"GET", core, "", "", 200},
		{"GET", core + "?limit=1&labelSelector=l", "", "", 200},
		{"GET", core + "?watch=1&timeoutSeconds=1&resourceVersion=0&fieldSelector=metadata.name%3Da", "", "", 200},
		{"POST", apps, plain, deployment, 201},
		{"POST", apps, plain, `{"metadata":{"name":"e"},"spec":{"replicas":1.5}}`, 400},
		{"POST", apps, plain, `{"metadata":{"name":"e"},"spec":{"replicas":3000000000}}`, 400},
		{"GET", apps + "/d/scale", "", "", 200},
		{"PUT", apps + "/d/scale", plain, `{"metadata":{"name":"d"},"spec":{"replicas":5}}`, 200},
		{"PATCH", apps + "/d?fieldManager=f&force=true", apply, deployment, 200},
		{"GET", apps + "/d", "", "", 200},
		{"POST", foos, plain, `{"apiVersion":"ex.io/v1","kind":"Foo","metadata":{"name":"f"},` +
			`"spec":{"n":7,"big":9007199254740993,"f":1.5,"t":"x","l":[null,true,{"a":-1}],"o":{"kind":"Inner"}}}`, 201},
		{"POST", foos, plain, `{"apiVersion":"ex.io/v1","kind":"Foo","Kind":"Other","metadata":{"name":"g"},"spec":{"n":1}}`, 201},
		{"POST", foos, plain, `{"apiVersion":"ex.io/v1","kind":"Other","Kind":"Foo","metadata":{"name":"h"}}`, 422},
		{"POST", foos, plain, `{"apiVersion":"ex.io/v2","kind":"Foo","metadata":{"name":"h"}}`, 400},
		{"POST", foos, plain, `{"apiVersion":"ex.io/v1","kind":"Foo","metadata":{"name":"h"},"spec":{"n":"x"}}`, 422},
		{"PATCH", foos + "/f?fieldManager=f&force=true", apply, `{"apiVersion":"ex.io/v1","kind":"Foo","metadata":{"name":"f"},` +
			`"spec":{"n":8,"f":2.5,"big":9007199254740993}}`, 200},
		{"PATCH", foos + "/f", merge, `{"spec":{"t":null}}`, 200},
		{"GET", foos, "", "", 200},
		{"GET", foos + "?watch=1&timeoutSeconds=1&resourceVersion=0", "", "", 200},
		{"DELETE", core + "/a", plain, `{"preconditions":{"uid":"other"}}`, 409},
		{"DELETE", core + "/a", plain, `{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":0,"dryRun":["All"]}`, 200},
		{"DELETE", core + "/a", plain, `{"kind":"Other","apiVersion":"v1"}`, 400},
		{"DELETE", core + "/a", plain, `{"kind":"DeleteOptions","apiVersion":"v1"}`, 200},
		{"DELETE", foos, plain, `{"propagationPolicy":"Background"}`, 200},
	} {
		want := inJSON.do(c.method, c.path, c.media, strings.ReplaceAll(c.body, "NS", "json-ns"))
		got := inCBOR.do(c.method, c.path, c.media, strings.ReplaceAll(c.body, "NS", "cbor-ns"))
		if want.Code != c.code {
			t.Errorf("%s %s %s in JSON: got %d %v, want %d", c.method, c.path, c.body, want.Code, want.Objects, c.code)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s %s %s:\nin CBOR %v\nin JSON %v", c.method, c.path, c.body, got, want)
		}
		if c.method != "GET" && strings.Contains(c.path, "/NS/") { // what is stored, in the other's format
			object, _, _ := strings.Cut(c.path, "?")
			inJSON.namespace, inCBOR.namespace = "cbor-ns", "json-ns"
			a, b := inJSON.do("GET", object, "", ""), inCBOR.do("GET", object, "", "")
			inJSON.namespace, inCBOR.namespace = "json-ns", "cbor-ns"
			if !reflect.DeepEqual(a, b) {
				t.Errorf("after %s %s %s:\nin CBOR was stored %v\nin JSON %v", c.method, c.path, c.body, a, b)
			}
		}
	}
}

// TestHostileCBORIsNotStored sends custom objects and config maps that other readers than the decoder
// of CBOR may not take for the same: they are refused, or can be read in all formats.
func TestHostileCBORIsNotStored(t *testing.T) {
	server := kelsontest.Start(t, kelsontest.NoControllers(), kelsontest.FeatureGates(map[string]bool{"CBORServingAndStorage": true}))
	config := server.Config()
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	defineFoos(t, server)
	do := func(method, path, media, accept, body string) (int, string) {
		r, err := http.NewRequestWithContext(t.Context(), method, config.Host+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", media)
		r.Header.Set("Accept", accept)
		resp, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	const (
		foos, configMaps = "/apis/ex.io/v1/namespaces/default/foos", "/api/v1/namespaces/default/configmaps"
		foo              = "\x4aapiVersion\x48ex.io/v1\x44kind\x43Foo\x48metadata\xa1\x44name\x43raw"
		annotated        = "\x4aapiVersion\x42v1\x44kind\x49ConfigMap\x48metadata\xa2\x44name\x43raw\x4bannotations\xa1\x41a\x42\xff\xfe"
		configMap        = "\x4aapiVersion\x42v1\x44kind\x49ConfigMap\x48metadata\xa1\x44name\x43raw"
	)
	for name, c := range map[string]struct {
		path, body string
		code       int
	}{
		"plain":                           {foos, "\xa3" + foo, 201},
		"marked twice":                    {foos, "\xd9\xd9\xf7\xd9\xd9\xf7\xa3" + foo, 201},
		"indefinite":                      {foos, "\xbf" + foo + "\x44spec\xbf\x41x\x5f\x41a\x41b\xff\xff\xff", 201},
		"kind as text and bytes":          {foos, "\xa4" + foo + "\x64kind\x45Other", 400},
		"kind twice":                      {foos, "\xa4" + foo + "\x44kind\x45Other", 400},
		"kind in another case":            {foos, "\xa4" + foo + "\x44Kind\x45Other", 201},
		"kind in pieces":                  {foos, "\xa4" + foo + "\x5f\x42ki\x42nd\xff\x45Other", 400},
		"not a number":                    {foos, "\xa4" + foo + "\x44spec\xa1\x41x\xf9\x7e\x00", 400},
		"infinite":                        {foos, "\xa4" + foo + "\x44spec\xa1\x41x\xf9\x7c\x00", 400},
		"undefined":                       {foos, "\xa4" + foo + "\x44spec\xa1\x41x\xf7", 400},
		"large number":                    {foos, "\xa4" + foo + "\x44spec\xa1\x41x\x1b\xff\xff\xff\xff\xff\xff\xff\xff", 400},
		"bytes that are no text":          {foos, "\xa4" + foo + "\x44spec\xa1\x41x\x42\xff\xfe", 400},
		"a key that is no text":           {foos, "\xa4" + foo + "\x44spec\xa1\x42\xff\xfe\x41x", 400},
		"a number as a key":               {foos, "\xa4" + foo + "\x44spec\xa1\x01\x41x", 400},
		"a map of a config map":           {configMaps, "\xa4" + configMap + "\x44data\xa1\x41a\x41b", 201},
		"data that is no text":            {configMaps, "\xa4" + configMap + "\x44data\xa1\x41x\x42\xff\xfe", 400},
		"data with a key twice":           {configMaps, "\xa4" + configMap + "\x44data\xa2\x41x\x41a\x61x\x41b", 400},
		"an annotation that is no text":   {configMaps, "\xa3" + annotated, 400},
		"a tag before a map":              {configMaps, "\xa4" + configMap + "\x44data\xd9\xd9\xf7\xa1\x41a\x41b", 201},
		"kind of a config map, two times": {configMaps, "\xa4" + configMap + "\x64kind\x46Secret", 400},
	} {
		code, text := do("POST", c.path, "application/cbor", "application/json", c.body)
		if code != c.code {
			t.Errorf("%s: got %d %.300q, want %d", name, code, text, c.code)
		}
		// The same as a configuration that is applied is no better.
		applied, text := do("PATCH", c.path+"/raw?fieldManager=f&force=true", "application/apply-patch+cbor", "application/json", c.body)
		if c.code == 400 && applied < 300 {
			t.Errorf("%s, applied: got %d %.300q, want it refused as when it is created", name, applied, text)
		}
		for _, accept := range []string{"application/json", "application/yaml", "application/cbor"} {
			for _, path := range []string{c.path, c.path + "/raw"} {
				code, text := do("GET", path, "", accept, "")
				if code >= 500 || accept != "application/cbor" && !utf8.ValidString(text) || accept == "application/json" && !json.Valid([]byte(text)) {
					t.Errorf("%s, then GET %s in %s: got %d %.300q", name, path, accept, code, text)
				}
			}
		}
		_, _ = do("DELETE", c.path+"/raw", "", "application/json", "")
	}
}

// defineFoos defines a custom resource with fields that are kept whatever they are.
func defineFoos(t *testing.T, s *kelsontest.Server) {
	keep := true
	field := func(kind string) apiextensionsv1.JSONSchemaProps { return apiextensionsv1.JSONSchemaProps{Type: kind} }
	definition := &apiextensionsv1.CustomResourceDefinition{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: "foos.ex.io"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "ex.io", Scope: apiextensionsv1.NamespaceScoped, Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "foos", Kind: "Foo"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": {
						Type: "object", XPreserveUnknownFields: &keep, Properties: map[string]apiextensionsv1.JSONSchemaProps{"n": field("integer"), "f": field("number")},
					}},
				}},
			}},
		},
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(definition)
	if err != nil {
		t.Fatal(err)
	}
	client := dynamic.NewForConfigOrDie(s.Config()).Resource(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"))
	if _, err := client.Create(t.Context(), &unstructured.Unstructured{Object: fields}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}
