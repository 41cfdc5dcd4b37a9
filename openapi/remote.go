package openapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// Remotes are the documents of aggregated API servers. They must not be changed once
// they are returned.
type Remotes struct{ Documents []Remote }

// Remote is the document of another server for one group and version.
type Remote struct {
	// Name of the document of version 3: apis/wardle.example.com/v1alpha1.
	Name string
	// Address of it for the index; empty if there is none.
	Address string
	// Serve answers a request for it.
	Serve func(w http.ResponseWriter, r *http.Request)
	// V2 is the part of the other server's document of version 2; nil if there
	// is none.
	V2 *Swagger
}

// find returns the document of another server by its name, or nil.
func (r *Remotes) find(name string) *Remote {
	if r == nil {
		return nil
	}
	for i := range r.Documents {
		if d := &r.Documents[i]; d.Name == name && d.Address != "" {
			return d
		}
	}
	return nil
}

// hasV2 reports whether the document of version 2 is more than that of a catalog.
func (r *Remotes) hasV2() bool {
	return r != nil && slices.ContainsFunc(r.Documents, func(d Remote) bool { return d.V2 != nil })
}

// Swagger is a document of version 2, or a part of one.
type Swagger struct {
	Swagger             json.RawMessage            `json:"swagger,omitempty"`
	Info                json.RawMessage            `json:"info,omitempty"`
	Paths               map[string]json.RawMessage `json:"paths"`
	Definitions         map[string]json.RawMessage `json:"definitions,omitempty"`
	Parameters          map[string]json.RawMessage `json:"parameters,omitempty"`
	SecurityDefinitions json.RawMessage            `json:"securityDefinitions,omitempty"`
	Security            json.RawMessage            `json:"security,omitempty"`
}

// ReadSwagger reads the paths at and below a prefix, and what they refer to.
func ReadSwagger(data []byte, prefix string) (*Swagger, error) {
	var in Swagger
	if err := json.Unmarshal(data, &in); err != nil {
		return nil, fmt.Errorf("document of version 2: %w", err)
	}
	out := &Swagger{Paths: map[string]json.RawMessage{}, Definitions: map[string]json.RawMessage{}, Parameters: map[string]json.RawMessage{}}
	var reach func(text []byte)
	reach = func(text []byte) {
		for _, m := range reference2.FindAllSubmatch(text, -1) {
			from, to := in.Definitions, out.Definitions
			if string(m[2]) == "parameters" {
				from, to = in.Parameters, out.Parameters
			}
			name := string(m[3])
			if found, ok := from[name]; ok && to[name] == nil {
				to[name] = found
				reach(found)
			}
		}
	}
	for path, content := range in.Paths {
		if path == prefix || strings.HasPrefix(path, prefix+"/") {
			out.Paths[path] = content
			reach(content)
		}
	}
	if len(out.Paths) == 0 {
		return nil, fmt.Errorf("document of version 2: nothing below %s", prefix)
	}
	return out, nil
}

var reference2 = regexp.MustCompile(`("\$ref":\s*"#/(definitions|parameters)/)([^"]+)"`)

// merge adds the documents of other servers. A definition that differs from ours of the
// same name is renamed; of equal ones ours is used.
func (c *content2) merge(remotes *Remotes, l *library) error {
	names := map[string]bool{}
	for _, remote := range remotes.Documents {
		if remote.V2 != nil {
			for name := range remote.V2.Definitions {
				names[name] = true
			}
		}
	}
	// Ours matter only where others have the same names.
	all := Swagger{Definitions: map[string]json.RawMessage{}}
	for _, d := range c.definitions {
		if !names[d.name] {
			continue
		}
		found, err := l.get(d.name)
		if err != nil {
			return err
		}
		if found == nil {
			found = l.unknown()
		}
		all.Definitions[d.name] = found
	}
	ours := maps.Clone(all.Definitions)
	for _, remote := range remotes.Documents {
		if remote.V2 != nil {
			all.add(remote.V2)
		}
	}
	c.parameters = map[string][]byte{}
	for name, text := range all.Parameters {
		c.parameters[name] = compact(text)
	}
	for i, d := range c.definitions {
		if text := all.Definitions[d.name]; names[d.name] && !bytes.Equal(text, ours[d.name]) {
			c.definitions[i] = definition{name: d.name, number: -1, text: compact(text)}
		}
	}
	for name, text := range all.Definitions {
		if ours[name] == nil {
			c.definitions = append(c.definitions, definition{name: name, number: -1, text: compact(text)})
		}
	}
	sortDefinitions(c.definitions)
	taken := make(map[string]bool, len(c.entries))
	for _, e := range c.entries {
		taken[e.at] = true
	}
	for at, text := range all.Paths {
		if !taken[at] {
			c.entries = append(c.entries, entry{at: at, text: compact(text)})
		}
	}
	sortEntries(c.entries)
	return nil
}

// compact returns JSON as documents have it.
func compact(text []byte) []byte {
	var b bytes.Buffer
	if err := json.Compact(&b, text); err != nil {
		return text // it was read before, so there is none
	}
	return b.Bytes()
}

func (s *Swagger) add(part *Swagger) {
	renamed := map[string]string{}
	for name, definition := range part.Definitions {
		same, known := s.Definitions[name]
		if !known {
			continue
		}
		if joined, ok := join(same, definition); ok {
			s.Definitions[name] = joined
			continue
		}
		next := 2
		for ; s.Definitions[fmt.Sprintf("%s_v%d", name, next)] != nil || part.Definitions[fmt.Sprintf("%s_v%d", name, next)] != nil; next++ {
		}
		renamed[name] = fmt.Sprintf("%s_v%d", name, next)
	}
	rename := func(text json.RawMessage) json.RawMessage {
		if len(renamed) == 0 {
			return text
		}
		return reference2.ReplaceAllFunc(text, func(ref []byte) []byte {
			m := reference2.FindSubmatch(ref)
			if to, ok := renamed[string(m[3])]; ok && string(m[2]) == "definitions" {
				return append(append(slices.Clone(m[1]), to...), '"')
			}
			return ref
		})
	}
	put := func(into *map[string]json.RawMessage, from map[string]json.RawMessage) {
		if *into == nil {
			*into = map[string]json.RawMessage{}
		}
		for name, text := range from {
			if (*into)[name] == nil {
				(*into)[name] = rename(text)
			}
		}
	}
	put(&s.Paths, part.Paths)
	put(&s.Parameters, part.Parameters)
	definitions := maps.Clone(part.Definitions)
	for from, to := range renamed {
		definitions[to] = definitions[from]
		delete(definitions, from)
	}
	put(&s.Definitions, definitions)
}

// join returns a definition for two that are the same but for the kinds that
// they are known as.
func join(a, b json.RawMessage) (json.RawMessage, bool) {
	if bytes.Equal(a, b) {
		return a, true
	}
	var x, y map[string]any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return nil, false
	}
	xs, _ := x[gvkExtension].([]any)
	ys, _ := y[gvkExtension].([]any)
	delete(x, gvkExtension)
	delete(y, gvkExtension)
	if !reflect.DeepEqual(x, y) {
		return nil, false
	}
	before := len(xs)
	for _, kind := range ys {
		if !slices.ContainsFunc(xs, func(k any) bool { return reflect.DeepEqual(k, kind) }) {
			xs = append(xs, kind)
		}
	}
	if len(xs) == before {
		return a, true
	}
	x[gvkExtension] = xs
	joined, err := json.Marshal(x)
	return joined, err == nil
}
