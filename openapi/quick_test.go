package openapi_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/apikeel/kelson/openapi"
	"github.com/apikeel/kelson/resource"
)

// TestQuick: messages that are made quickly are those that the models make, byte
// by byte, and all of our own documents are plain.
func TestQuick(t *testing.T) {
	catalog, err := newCatalog(t).Change([]*resource.Definition{databases(1, "A database.")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var document struct {
		Paths, Definitions map[string]json.RawMessage
	}
	if err := json.Unmarshal(get(t, newHandler(catalog), "/openapi/v2"), &document); err != nil {
		t.Fatal(err)
	}
	check := func(what string, wantPlain bool) func(quick, models []byte, plain bool, err error) {
		return func(quick, models []byte, plain bool, err error) {
			switch {
			case plain != wantPlain:
				t.Errorf("%s is plain: %v", what, plain)
			case plain && err != nil:
				t.Errorf("%s is no message: %v", what, err)
			case plain && !bytes.Equal(quick, models):
				t.Errorf("%s is\n%x, want\n%x", what, quick, models)
			}
		}
	}
	if len(document.Paths) < 400 || len(document.Definitions) < 400 {
		t.Fatalf("%d paths, %d definitions", len(document.Paths), len(document.Definitions))
	}
	for name, text := range document.Definitions {
		check(name, true)(openapi.QuickDefinitions(fmt.Appendf(nil, "{%q:%s}", name, text)))
	}
	for path, text := range document.Paths {
		check(path, true)(openapi.QuickPaths(fmt.Appendf(nil, "{%q:%s}", path, text)))
	}
	for _, text := range []string{
		`{}`, `{"type":"object","properties":{},"x-empty":{},"x-null":null,"x-list":["a",1,true,"yes","1"]}`,
		`{"type":["string","null"],"default":"","enum":["a",1,1.5,null,{"b":[]}],"minLength":0,"maxLength":9007199254740993,"required":["","b"]}`,
		`{"multipleOf":0.1,"maximum":-1,"minimum":0,"exclusiveMinimum":false,"uniqueItems":true,"title":"","description":"\u00e4\n\"x\""}`,
		`{"additionalProperties":false}`, `{"additionalProperties":{"type":"string"}}`, `{"additionalProperties":true,"allOf":[{},{"$ref":"#/x"}]}`,
		`{"items":{"items":{"type":"integer","format":"int32"}},"maxItems":300,"properties":{"x-a":{"type":"string"},"":{}},"readOnly":true}`,
	} {
		check(text, true)(openapi.QuickDefinitions([]byte(`{"x":` + text + `}`)))
	}
	for _, text := range []string{
		`{"type":5}`, `{"description":1}`, `{"unknown":1}`, `{"maxLength":1.5}`, `{"required":"a"}`, `{"properties":[]}`, `{"readOnly":"true"}`, `[]`, `"a"`, `{`, `{"items":[{}]}`,
		"{\"title\":\"\xff\"}", `{"xml":{}}`,
	} {
		check(text, false)(openapi.QuickDefinitions([]byte(`{"x":` + text + `}`)))
	}
	for _, text := range []string{
		`{"/a":{"get":{}}}`, `{"/a":{"get":{"responses":{"200":{}}}}}`, `{"/a":{"get":{"responses":{"200":{"description":"","schema":{"type":"file"}}}}}}`,
		`{"/a":{"parameters":[{"in":"header","name":"a","type":"string"}]}}`, `{"/a":{"parameters":[{"in":"path","name":"a","type":"string"}]}}`,
		`{"/a":{"parameters":[{"in":"query","name":"a","type":"object"}]}}`, `{"/a":{"trace":{}}}`,
	} {
		check(text, false)(openapi.QuickPaths([]byte(text)))
	}
}
