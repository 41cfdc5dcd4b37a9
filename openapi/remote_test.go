package openapi

import (
	"encoding/json"
	"testing"
)

func TestReadSwagger(t *testing.T) {
	part, err := ReadSwagger([]byte(`{"paths":{
		"/apis/a/v1/":{"get":{"schema":{"$ref":"#/definitions/A"},"parameters":[{"$ref":"#/parameters/p-1"}]}},
		"/apis/a/v10/":{"get":{"schema":{"$ref":"#/definitions/C"}}},
		"/apis/b/v1/":{}},
		"definitions":{"A":{"properties":{"b":{"$ref": "#/definitions/B"}}},"B":{"properties":{"a":{"$ref":"#/definitions/A"}}},"C":{}},
		"parameters":{"p-1":{},"p-2":{}}}`), "/apis/a/v1")
	if err != nil {
		t.Fatal(err)
	}
	if len(part.Paths) != 1 || len(part.Definitions) != 2 || len(part.Parameters) != 1 {
		t.Errorf("%+v", part)
	}
	for _, bad := range []string{``, `[]`, `{"paths":{"/apis/b/v1":{}}}`, `{"paths":[]}`} {
		if _, err := ReadSwagger([]byte(bad), "/apis/a/v1"); err == nil {
			t.Errorf("%q is read", bad)
		}
	}
}

func TestMerge2(t *testing.T) {
	raw := func(text string) json.RawMessage { return json.RawMessage(text) }
	own := `{"swagger":"2.0","info":{"title":"T"},"paths":{"/own":{}},"definitions":{` +
		`"Shared":{"type":"object","x-kubernetes-group-version-kind":[{"group":"own"}]},"Name":{"type":"string"}},"parameters":{"p":{}}}`
	merged, err := merge2([]byte(own), &Remotes{Documents: []Remote{{V2: &Swagger{
		Paths: map[string]json.RawMessage{"/remote": raw(`{"a":{"$ref":"#/definitions/Name"},"b":{"$ref":"#/definitions/Shared"}}`), "/own": raw(`{"stolen":true}`)},
		Definitions: map[string]json.RawMessage{
			"Name": raw(`{"type":"integer"}`), "Shared": raw(`{"x-kubernetes-group-version-kind":[{"group":"remote"}],"type":"object"}`), "New": raw(`{}`),
		},
	}}}})
	if err != nil {
		t.Fatal(err)
	}
	want := `{"swagger":"2.0","info":{"title":"T"},` +
		`"paths":{"/own":{},"/remote":{"a":{"$ref":"#/definitions/Name_v2"},"b":{"$ref":"#/definitions/Shared"}}},` +
		`"definitions":{"Name":{"type":"string"},"Name_v2":{"type":"integer"},"New":{},` +
		`"Shared":{"type":"object","x-kubernetes-group-version-kind":[{"group":"own"},{"group":"remote"}]}},"parameters":{"p":{}}}`
	if string(merged) != want {
		t.Errorf("got\n%s\nwant\n%s", merged, want)
	}
}
