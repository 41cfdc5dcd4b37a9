package openapi

import (
	"encoding/json"
	"fmt"
	"testing"

	yaml "go.yaml.in/yaml/v3"
)

func TestNodes(t *testing.T) {
	for _, text := range []string{
		`{}`, `[]`, `""`, `{"b":[1,-2.5,1e3,true,false,null],"a":{"c":"d\"\u00e9\\"}, "e" : [ ] }`, ` [ {"a":1} , 2 ] `, `"é"`,
	} {
		p := nodeParser{text: []byte(text)}
		n, ok := p.node()
		if !ok {
			t.Errorf("%s: not read", text)
			continue
		}
		var got, want any
		if err := n.Decode(&got); err != nil {
			t.Error(err)
		}
		if err := yaml.Unmarshal([]byte(text), &want); err != nil {
			t.Error(err)
		}
		if fmt.Sprintf("%#v", got) != fmt.Sprintf("%#v", want) {
			t.Errorf("%s:\n got %#v\nwant %#v", text, got, want)
		}
	}
	for _, text := range []string{``, `{`, `{"a"}`, `{"a":}`, `[1`, `[1 2]`, `{1:2}`, `"a`, `tru`, `{"a":1,}`, `-`} {
		p := nodeParser{text: []byte(text)}
		if n, ok := p.node(); ok {
			got, _ := json.Marshal(n)
			t.Errorf("%s: read as %s", text, got)
		}
	}
}
