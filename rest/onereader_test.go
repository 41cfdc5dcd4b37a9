package rest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/apikeel/kelson/internal/yamltext"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/wire"
)

// mapKinds are where custom objects are created, by how they are stored.
func mapKinds(t testing.TB) map[string]*Handler {
	inCBOR, _ := serve(t, things)
	inJSON, _ := serve(t, func(def *resource.Definition) { things(def); def.StoreCBOR = false })
	return map[string]*Handler{"CBOR": inCBOR, "JSON": inJSON}
}

const thingsPath = "/apis/example.com/v1/things"

// TestKindIsThatOfWhatIsStored sends bodies that say of what kind they are in several ways.
// One that is accepted can be read, listed and deleted.
func TestKindIsThatOfWhatIsStored(t *testing.T) {
	const (
		good = `"apiVersion":"example.com/v1","kind":"Thing",`
		twin = `"spec":{"a":1,"a":2}`
	)
	deep := `"spec":` + strings.Repeat(`{"a":`, 1001) + "1" + strings.Repeat("}", 1001)
	for name, head := range map[string]string{
		"other kind, right in another case":    `"apiVersion":"example.com/v1","kind":"Other","Kind":"Thing",`,
		"right in another case, other kind":    `"apiVersion":"example.com/v1","Kind":"Thing","kind":"Other",`,
		"only in another case":                 `"apiVersion":"example.com/v1","KIND":"Thing",`,
		"other version, right in another case": `"apiVersion":"example.com/v9","apiversion":"example.com/v1","kind":"Thing",`,
		"other group, right in another case":   `"apiVersion":"other.com/v1","APIVERSION":"example.com/v1","kind":"Thing",`,
		"twice, the last one right":            `"kind":"Other",` + good,
		"twice, the last one wrong":            good + `"kind":"Other",`,
		"null":                                 `"apiVersion":"example.com/v1","kind":null,"Kind":"Thing",`,
		"number":                               `"apiVersion":"example.com/v1","kind":7,"Kind":"Thing",`,
		"long s":                               "\"apiVersion\":\"example.com/v9\",\"apiVer\u017fion\":\"example.com/v1\",\"kind\":\"Other\",\"\u212aind\":\"Thing\",",
		"right":                                good,
	} {
		for _, rest := range []string{twin, deep, `"spec":{}`} {
			for _, validation := range []string{"", "Ignore", "Warn", "Strict"} {
				for format, contentType := range map[string]string{"JSON": wire.TypeJSON, "YAML": wire.TypeYAML} {
					for store, h := range mapKinds(t) {
						what := fmt.Sprintf("%s, %.10s, %s, %s, stored in %s", name, rest, validation, format, store)
						body := "{" + head + `"metadata":{"name":"a"},` + rest + "}"
						if format == "YAML" {
							if _, err := yamltext.ToJSON([]byte(body)); err != nil {
								continue
							}
						}
						judgeWrite(t, h, what, do(t, h, "POST", thingsPath+"?fieldValidation="+validation, body, "Content-Type", contentType))
						do(t, h, "POST", thingsPath, `{"apiVersion":"example.com/v1","kind":"Thing","metadata":{"name":"a"}}`)
						judgeWrite(t, h, what+", PUT", do(t, h, "PUT", thingsPath+"/a?fieldValidation="+validation, body, "Content-Type", contentType))
						for _, patch := range []string{"{" + head + rest + "}", `{"kind":"Other","Kind":"Thing"}`} {
							judgeWrite(t, h, what+", PATCH", do(t, h, "PATCH", thingsPath+"/a?fieldValidation="+validation, patch, "Content-Type", "application/merge-patch+json"))
						}
					}
				}
			}
		}
	}
}

// judgeWrite checks the answer to a write, and that everything can be read after it.
func judgeWrite(t *testing.T, h *Handler, what string, a answer) {
	t.Helper()
	switch {
	case a.code >= 500:
		t.Errorf("%s: got %d %.200s, want no error of the server", what, a.code, a.body)
	case a.code < 300 && (a.object["kind"] != "Thing" || a.object["apiVersion"] != "example.com/v1"):
		t.Errorf("%s: got %d %.200s, want a Thing", what, a.code, a.body)
	}
	list := do(t, h, "GET", thingsPath, "")
	if items, _ := list.object["items"].([]any); list.code != 200 || a.code < 300 && len(items) == 0 {
		t.Errorf("%s: then the list is %d %.200s", what, list.code, list.body)
	}
	if get := do(t, h, "GET", thingsPath+"/a", ""); get.code != 200 && get.code != 404 {
		t.Errorf("%s: then the object is %d %.200s", what, get.code, get.body)
	}
}

// TestDeepObjectsAreRefused stores objects at the limit of depth, which readers of lists
// have to decode with some levels around them.
func TestDeepObjectsAreRefused(t *testing.T) {
	for store, h := range mapKinds(t) {
		for levels, want := range map[int]int{wire.MaxDepth - 1: 201, wire.MaxDepth: 400, 9990: 400} {
			body := fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Thing","metadata":{"name":"d%d"},"spec":%s1%s}`,
				levels, strings.Repeat(`{"a":`, levels), strings.Repeat("}", levels))
			if a := do(t, h, "POST", thingsPath, body); a.code != want {
				t.Errorf("%d levels, stored in %s: got %d %.200s, want %d", levels, store, a.code, a.body, want)
			}
		}
		if list := do(t, h, "GET", thingsPath, ""); list.code != 200 {
			t.Errorf("the list of what is stored in %s: got %d %.200s, want 200", store, list.code, list.body)
		}
	}
}

// FuzzStoredCanBeRead writes any bodies and patches. What was accepted can be read in every
// form, alone and in a list.
func FuzzStoredCanBeRead(f *testing.F) {
	types := []string{wire.TypeJSON, wire.TypeYAML, wire.TypeCBOR, "application/merge-patch+json", "application/json-patch+json"}
	for _, body := range []string{
		`{"apiVersion":"example.com/v1","kind":"Other","Kind":"Thing","metadata":{"name":"a"},"spec":{"a":1,"a":2}}`,
		`{"apiVersion":"example.com/v1","kind":"Thing","metadata":{"name":"a"},"spec":[1,1.5,null,-0.0,1e300,"\ud800"]}`,
		`{"apiVersion":"example.com/v1","kind":"Thing","metadata":{"name":"a","managedFields":[{"fieldsV1":{"f:a":{}}}]}}`,
		"apiVersion: example.com/v1\nkind: Thing\nmetadata: {name: a}\n", `{"kind":"Other","metadata":null}`, `[{"op":"add","path":"/kind","value":"Other"}]`,
	} {
		for i := range types {
			f.Add(i, body)
		}
	}
	handlers := mapKinds(f)
	f.Fuzz(func(t *testing.T, format int, body string) {
		if format < 0 || format >= len(types) {
			return
		}
		for store, h := range handlers {
			do(t, h, "POST", thingsPath, `{"apiVersion":"example.com/v1","kind":"Thing","metadata":{"name":"a"}}`)
			writes := [][2]string{{"POST", ""}, {"PUT", "/a"}}
			if format > 2 {
				writes = [][2]string{{"PATCH", "/a"}}
			}
			for _, w := range writes {
				a := doCBOR(t, h, w[0], thingsPath+w[1], body, "Content-Type", types[format])
				readable(t, a)
				if a.code >= 300 {
					continue
				}
				for _, accept := range []string{wire.TypeJSON, wire.TypeYAML, wire.TypeCBOR} {
					if list := doCBOR(t, h, "GET", thingsPath, "", "Accept", accept); list.code != 200 {
						t.Fatalf("%s %q, stored in %s: then the list is %d %s", w[0], body, store, list.code, list.body)
					}
				}
			}
			if d := do(t, h, "DELETE", thingsPath+"/a", ""); d.code != 200 {
				t.Fatalf("%q, stored in %s: the object cannot be deleted: %d %s", body, store, d.code, d.body)
			}
			if list := do(t, h, "DELETE", thingsPath, ""); list.code != 200 {
				t.Fatalf("%q, stored in %s: objects cannot be deleted: %d %s", body, store, list.code, list.body)
			}
		}
	})
}
