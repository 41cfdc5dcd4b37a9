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

func TestMerge(t *testing.T) {
	raw := func(text string) json.RawMessage { return json.RawMessage(text) }
	l := newLibrary2(openPack())
	c := content2{entries: []entry{{at: "/own", from: &source{}}}}
	for name, text := range map[string]string{
		"Shared": `{"type":"object","x-kubernetes-group-version-kind":[{"group":"own"}]}`, "Name": `{"type":"string"}`, "Other": `{}`,
	} {
		l.made[name] = &schemaOf{text: []byte(text)}
		c.definitions = append(c.definitions, definition{name: name, number: -1})
	}
	if err := c.merge(&Remotes{Documents: []Remote{{V2: &Swagger{
		Paths: map[string]json.RawMessage{"/remote": raw(`{"a": {"$ref":"#/definitions/Name"},"b":{"$ref":"#/definitions/Shared"}}`), "/own": raw(`{"stolen":true}`)},
		Definitions: map[string]json.RawMessage{
			"Name": raw(`{"type":"integer"}`), "Shared": raw(`{"x-kubernetes-group-version-kind":[{"group":"remote"}],"type":"object"}`), "New": raw(`{ }`),
		},
		Parameters: map[string]json.RawMessage{"p": raw(`{}`)},
	}}}}, l); err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, e := range c.entries {
		got += e.at + string(e.text) + "\n"
	}
	for _, d := range c.definitions {
		got += d.name + string(d.text) + "\n"
	}
	want := `/own
/remote{"a":{"$ref":"#/definitions/Name_v2"},"b":{"$ref":"#/definitions/Shared"}}
Name
Name_v2{"type":"integer"}
New{}
Other
Shared{"type":"object","x-kubernetes-group-version-kind":[{"group":"own"},{"group":"remote"}]}
`
	if got != want || string(c.parameters["p"]) != "{}" {
		t.Errorf("got\n%s%s\nwant\n%s", got, c.parameters, want)
	}
}
