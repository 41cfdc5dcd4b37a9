//go:build linux

package attack

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/internal/testsize"
	"github.com/apikeel/kelson/test/replay"
)

// TestGrowth sends objects of every built-in kind with one list or map that is long, for
// every list and map that the schema of the kind has: what the server spends grows with
// the bytes, not with their square. A body of four times the size may cost at most
// steepest times as much, unless it costs less than a floor. That takes hours;
// ordinarily only the lists are sent that were once at fault.
func TestGrowth(t *testing.T) {
	seen := map[string]bool{}
	sent := 0
	for _, k := range describe(t) {
		for _, f := range k.collections() {
			if seen[f.key] && !slices.ContainsFunc(steep, func(at string) bool { return strings.HasPrefix(at, k.name()+" "+f.where()+" ") }) {
				continue
			}
			seen[f.key] = true
			for _, style := range styles {
				name := k.name() + " " + f.where() + " " + style.name
				item := k.item(f, style)
				if item == nil || !testsize.Long() && !slices.Contains(steep, name) {
					continue
				}
				sent++
				grows(t, name, func(size int) *message {
					return &message{http.MethodPost, k.path + "?dryRun=All&fieldValidation=Strict", "application/json", k.body(f, item, size)}
				})
			}
		}
	}
	if sent < len(steep) {
		t.Errorf("%d lists were sent, want at least the %d that were at fault", sent, len(steep))
	}
}

// steep is the lists whose cost once grew with the square of their length.
var steep = []string{
	"v1 Pod metadata.finalizers empty", // the error of each
	"v1 Pod metadata.ownerReferences distinct",
	"v1 Pod spec.containers.[].env distinct",
	"v1 Pod spec.containers.[].resources.claims distinct",
	"v1 Pod spec.imagePullSecrets distinct",
	"v1 Pod spec.schedulingGates distinct",
	"v1 Pod spec.hostAliases distinct",
	"v1 Pod spec.securityContext.sysctls distinct",
	"v1 Pod spec.topologySpreadConstraints distinct",
	"batch/v1 CronJob spec.jobTemplate.spec.podFailurePolicy.rules.[].onExitCodes.values distinct",
	"storage.k8s.io/v1 StorageClass allowedTopologies like, distinct",
}

// TestPatchGrowth changes long lists of an object by patches, and applies lists in another
// order.
func TestPatchGrowth(t *testing.T) {
	const path = "/apis/apps/v1/namespaces/default/deployments"
	// variables returns variables of that many bytes, in the form that is given.
	variables := func(size int, form string, reverse bool) string {
		var all []string
		for i := range size / len(`{"name":"n10000","value":"old"},`) {
			all = append(all, fmt.Sprintf(form, i))
		}
		if reverse {
			slices.Reverse(all)
		}
		return "[" + strings.Join(all, ",") + "]"
	}
	deployment := func(name, env string) string {
		return `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"` + name + `"},"spec":{"selector":{"matchLabels":{"a":"b"}},
			"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"a","image":"i","env":` + env + `}]}}}}`
	}
	const old = `{"name":"n%d","value":"old"}`
	for name, patch := range map[string]func(name string, size int) *message{
		"order": func(name string, size int) *message {
			return &message{contentType: "application/strategic-merge-patch+json", body: `{"spec":{"template":{"spec":{"containers":[{"name":"a","$setElementOrder/env":` +
				variables(size, `{"name":"n%d"}`, true) + `}]}}}}`}
		},
		"values": func(name string, size int) *message {
			return &message{contentType: "application/strategic-merge-patch+json", body: `{"spec":{"template":{"spec":{"containers":[{"name":"a","env":` +
				variables(size, `{"name":"n%d","value":"new"}`, false) + `}]}}}}`}
		},
		"additions": func(name string, size int) *message {
			return &message{contentType: "application/strategic-merge-patch+json", body: `{"spec":{"template":{"spec":{"containers":[{"name":"a","env":` +
				variables(size, `{"name":"m%d","value":"new"}`, false) + `}]}}}}`}
		},
		"apply": func(name string, size int) *message {
			return &message{contentType: "application/apply-patch+yaml", body: deployment(name, variables(size, old, true))}
		},
	} {
		t.Run(name, func(t *testing.T) {
			grows(t, name, func(size int) *message {
				object := fmt.Sprintf("growth-%s-%d", name, size)
				made := &message{http.MethodPost, path, "application/json", deployment(object, variables(size, old, false))}
				if _, _, text := filledVictim.cost(t, made); !strings.HasPrefix(text, "201") {
					t.Fatalf("the deployment is not created: %s", text)
				}
				m := patch(object, size)
				m.method, m.path = http.MethodPatch, path+"/"+object+"?dryRun=All&fieldManager=growth&force=true"
				if m.contentType != "application/apply-patch+yaml" {
					m.path = path + "/" + object + "?dryRun=All"
				}
				return m
			})
		})
	}
}

// TestPodGrowth sends pods in which something is looked for in a long list, for each item of
// another.
func TestPodGrowth(t *testing.T) {
	const path = "/api/v1/namespaces/default/pods"
	// list returns items of that many bytes, in the form that is given.
	list := func(size int, form string) string {
		var all []string
		for i := range size / len(form) {
			all = append(all, fmt.Sprintf(form, i))
		}
		return strings.Join(all, ",")
	}
	pod := func(name, annotations, containers, more string) string {
		return `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"` + name + `","annotations":{` + annotations + `}},"spec":{"containers":[` + containers + `]` + more + `}}`
	}
	const container, toleration = `{"name":"c%d","image":"i"}`, `{"key":"k%d","operator":"Exists"}`
	grows(t, "profiles of containers", func(size int) *message {
		size *= 4
		annotations := list(size/2, `"container.apparmor.security.beta.kubernetes.io/other%d":"unconfined"`)
		return &message{http.MethodPost, path + "?dryRun=All", "application/json", pod("growth", annotations, list(size/2, container), "")}
	})
	for name, change := range map[string]struct{ before, after func(size int) string }{
		"gates": {func(int) string { return "" }, func(size int) string { return `"schedulingGates":[` + list(size, `{"name":"g%d"}`) + `]` }},
		"tolerations": {func(size int) string { return `,"tolerations":[` + list(size, toleration) + `]` }, func(size int) string {
			return `"tolerations":[{"key":"a","operator":"Exists"},` + list(size, toleration) + `]`
		}},
	} {
		grows(t, name, func(size int) *message {
			object := fmt.Sprintf("growth-%s-%d", name, size)
			made := &message{http.MethodPost, path, "application/json", pod(object, "", `{"name":"a","image":"i"}`, change.before(size))}
			if _, _, text := filledVictim.cost(t, made); !strings.HasPrefix(text, "201") {
				t.Fatalf("the pod is not created: %s", text)
			}
			return &message{http.MethodPatch, path + "/" + object + "?dryRun=All", "application/merge-patch+json", `{"spec":{` + change.after(size) + `}}`}
		})
	}
}

// TestCustomGrowth sends custom objects with lists in which everything is wrong.
func TestCustomGrowth(t *testing.T) {
	definitions := "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	if _, err := filledVictim.do(filledVictim.admin, http.MethodPost, definitions, fields{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": fields{"name": "bags.growth.example.com"},
		"spec": fields{
			"group": "growth.example.com", "scope": "Namespaced", "names": fields{"plural": "bags", "singular": "bag", "kind": "Bag", "listKind": "BagList"},
			"versions": []any{fields{"name": "v1", "served": true, "storage": true, "schema": fields{"openAPIV3Schema": fields{
				"type": "object", "properties": fields{"texts": fields{"type": "array", "items": fields{"type": "string"}}},
			}}}},
		},
	}); err != nil {
		t.Fatal(err)
	}
	const path = "/apis/growth.example.com/v1/namespaces/default/bags"
	within(t, patience, "bags are served", func() bool {
		_, err := filledVictim.get(filledVictim.admin, path)
		return err == nil
	})
	grows(t, "wrong items", func(size int) *message {
		return &message{http.MethodPost, path + "?dryRun=All", "application/json",
			`{"apiVersion":"growth.example.com/v1","kind":"Bag","metadata":{"name":"a"},"texts":[` + strings.Repeat("1,", size/2) + `1]}`}
	})
	if _, err := filledVictim.do(filledVictim.admin, http.MethodDelete, definitions+"/bags.growth.example.com", nil); err != nil {
		t.Error(err)
	}
}

// largeBody is the size of a body, and costFloor what it may cost in any case.
const (
	largeBody = 192 << 10
	costFloor = 80 * time.Millisecond
	// costCeiling is what it may not cost, however that grows.
	costCeiling = 5 * time.Second
)

const (
	steepest = 8
	// answerFloor is the size of an answer that nobody minds, and answerRatio how many
	// bytes may be answered for a byte that was sent: a refusal has a sentence and a
	// cause for each item.
	answerFloor = 1 << 20
	answerRatio = 400
)

// message is a request.
type message struct {
	method, path, contentType, body string
}

// grows sends a message of a large size. If that is expensive, it is to be less than the
// ceiling, and no more than steepest times as expensive as one of a quarter of the size.
func grows(t *testing.T, what string, make func(size int) *message) {
	t.Helper()
	large := make(largeBody)
	cost, answered, _ := filledVictim.cost(t, large)
	if answered > answerFloor && answered > answerRatio*len(large.body) {
		t.Errorf("%s: the answer to %d bytes has %d", what, len(large.body), answered)
	}
	if cost < costFloor {
		return
	}
	if cost > costCeiling {
		t.Errorf("%s: %d bytes cost %v of CPU time", what, len(large.body), cost)
		return
	}
	// Again, to be sure that it was this request, and not a garbage collection.
	small := make(largeBody / 4)
	cheap, _, _ := filledVictim.cost(t, small)
	again, _, text := filledVictim.cost(t, large)
	cost = min(cost, again)
	if cost > steepest*cheap {
		again, _, _ = filledVictim.cost(t, large)
		cost = min(cost, again)
	}
	if cost >= costFloor && cost > steepest*max(cheap, 5*time.Millisecond) {
		t.Errorf("%s: %d bytes cost %v of CPU time, and %d bytes %v: %.200s", what, len(large.body), cost, len(small.body), cheap, text)
	}
}

// cost sends a message and returns what the server has spent, and the answer.
func (s *server) cost(t *testing.T, m *message) (spent time.Duration, answered int, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, m.method, s.url+m.path, strings.NewReader(m.body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", m.contentType)
	before := s.cpu(t)
	resp, err := s.admin.Do(req)
	if err == nil {
		var head bytes.Buffer
		_, _ = io.CopyN(&head, resp.Body, 600)
		var rest int64
		rest, err = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		answered, text = head.Len()+int(rest), resp.Status+" "+head.String()
		for name, values := range resp.Header {
			for _, v := range values {
				answered += len(name) + len(v)
			}
		}
	}
	spent = s.cpu(t) - before
	if !s.alive() {
		t.Fatalf("the server has ended after %s %s with %.2000s", m.method, m.path, m.body)
	}
	if err != nil {
		// It may still be at it, which is not the cost of the next message.
		text = err.Error()
		within(t, patience, "the server has finished "+m.path, func() bool {
			begin, before := time.Now(), s.cpu(t)
			<-time.After(50 * time.Millisecond)
			return s.cpu(t)-before < time.Since(begin)/10
		})
		spent = s.cpu(t) - before
	}
	return spent, answered, text
}

// kind is a resource whose objects can be created.
type kind struct {
	path, apiVersion, kind string
	schema                 *schema
	schemas                map[string]*schema
	sample                 fields // a valid object, or nil
}

func (k *kind) name() string { return k.apiVersion + " " + k.kind }

// schema is what an OpenAPI document says about a value.
type schema struct {
	Ref        string             `json:"$ref"`
	AllOf      []*schema          `json:"allOf"`
	Type       string             `json:"type"`
	Format     string             `json:"format"`
	Properties map[string]*schema `json:"properties"`
	Items      *schema            `json:"items"`
	Additional *schema            `json:"additionalProperties"`
	Required   []string           `json:"required"`
	Enum       []any              `json:"enum"`
	GVK        []struct {
		Group, Version, Kind string
	} `json:"x-kubernetes-group-version-kind"`
}

// target returns the schema that a reference means, and its name.
func (k *kind) target(s *schema) (*schema, string) {
	for s != nil {
		ref := s.Ref
		if ref == "" && len(s.AllOf) > 0 {
			ref = s.AllOf[0].Ref
		}
		if ref == "" {
			return s, ""
		}
		name := ref[strings.LastIndexByte(ref, '/')+1:]
		if to := k.schemas[name]; to == nil || to.Ref == "" {
			return to, name
		}
		s = k.schemas[name]
	}
	return nil, ""
}

// describe reads the OpenAPI documents of the server: what can be created, with a valid
// object of each kind from the recordings.
func describe(t *testing.T) (kinds []*kind) {
	t.Helper()
	samples := recorded(t)
	var root struct {
		Paths map[string]struct{ ServerRelativeURL string }
	}
	filledVictim.read(t, "/openapi/v3", &root)
	for _, group := range slices.Sorted(maps.Keys(root.Paths)) {
		if !strings.HasPrefix(group, "api/") && strings.Count(group, "/") != 2 {
			continue
		}
		var doc struct {
			Paths map[string]struct {
				Post *struct {
					RequestBody struct {
						Content map[string]struct{ Schema *schema }
					}
					GVK struct{ Group, Version, Kind string } `json:"x-kubernetes-group-version-kind"`
				}
			}
			Components struct{ Schemas map[string]*schema }
		}
		filledVictim.read(t, root.Paths[group].ServerRelativeURL, &doc)
		for _, path := range slices.Sorted(maps.Keys(doc.Paths)) {
			post := doc.Paths[path].Post
			if post == nil || strings.Contains(path, "/proxy") {
				continue
			}
			k := &kind{path: path, kind: post.GVK.Kind, apiVersion: strings.TrimPrefix(post.GVK.Group+"/"+post.GVK.Version, "/"), schemas: doc.Components.Schemas}
			for _, content := range post.RequestBody.Content {
				k.schema, _ = k.target(content.Schema)
			}
			if k.schema == nil {
				continue
			}
			k.path = strings.NewReplacer("{namespace}", "default", "{name}", "reader").Replace(path)
			k.sample = samples[k.name()]
			if k.sample == nil {
				k.sample, _ = k.value("", k.schema, style{required: true}, 0, 0).(fields)
				k.sample["apiVersion"], k.sample["kind"] = k.apiVersion, k.kind
				k.sample["metadata"] = fields{"name": "growth"}
			}
			kinds = append(kinds, k)
		}
	}
	// Pods come first, so that what others have in common with them is looked at there.
	slices.SortStableFunc(kinds, func(a, b *kind) int {
		first := func(k *kind) int {
			if k.name() == "v1 Pod" {
				return 0
			}
			return 1
		}
		return first(a) - first(b)
	})
	return kinds
}

func (s *server) read(t *testing.T, path string, into any) {
	t.Helper()
	text, err := s.get(s.admin, path)
	if err == nil {
		err = json.Unmarshal([]byte(text), into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// richest is the size of the largest recorded object that is used as a sample.
const richest = 3 << 10

// recorded returns objects that kube-apiserver has created, by version and kind.
func recorded(t *testing.T) map[string]fields {
	t.Helper()
	files, err := filepath.Glob("../replay/testdata/*/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no recordings: %v", err)
	}
	sizes, samples := map[string]int{}, map[string]fields{}
	for _, file := range files {
		a, err := replay.ReadArchive(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range a.Recordings {
			for _, s := range r.Steps {
				text := strings.ReplaceAll(string(s.Body), "{{ns}}", "default")
				if s.Method != http.MethodPost || s.Status != http.StatusCreated || s.BodyFrom != nil || s.BodyEncoding != "" || len(text) > richest || strings.Contains(text, "{{") {
					continue
				}
				var obj fields
				if json.Unmarshal([]byte(text), &obj) != nil {
					continue
				}
				kind, _ := obj["kind"].(string)
				version, _ := obj["apiVersion"].(string)
				if name := version + " " + kind; len(text) > sizes[name] {
					sizes[name], samples[name] = len(text), obj
				}
			}
		}
	}
	return samples
}

// collection is a list or map in objects of a kind.
type collection struct {
	path []string // names of fields; "[]" goes into a list and "{}" into a map
	list bool
	item *schema
	key  string // the same for one that is the same type in another kind
}

func (c *collection) where() string { return strings.Join(c.path, ".") }
func (c *collection) field() string {
	for _, name := range slices.Backward(c.path) {
		if name != "[]" && name != "{}" {
			return name
		}
	}
	return ""
}

const deepest = 12

// collections returns the lists and maps in objects of the kind.
func (k *kind) collections() (all []*collection) {
	var walk func(s *schema, path []string, within []string)
	walk = func(s *schema, path []string, within []string) {
		s, name := k.target(s)
		if s == nil || len(path) > deepest {
			return
		}
		if name != "" {
			if slices.Contains(within, name) {
				return
			}
			within = append(slices.Clip(within), name)
		}
		add := func(list bool, item *schema) {
			key := strings.Join(append(slices.Clone(within[max(0, len(within)-2):]), path[max(0, len(path)-2):]...), "|")
			all = append(all, &collection{path: path, list: list, item: item, key: key})
		}
		switch {
		case s.Items != nil:
			add(true, s.Items)
			walk(s.Items, append(slices.Clip(path), "[]"), within)
		case s.Additional != nil:
			add(false, s.Additional)
			walk(s.Additional, append(slices.Clip(path), "{}"), within)
		}
		for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
			walk(s.Properties[name], append(slices.Clip(path), name), within)
		}
	}
	walk(k.schema, nil, nil)
	return all
}

// style says how items are made.
type style struct {
	name     string
	required bool // with the fields that are required
	full     bool // with all fields that have a plain value
	numbered bool // each is different
	like     bool // like the first item of the sample
}

var styles = []style{
	{name: "empty"},
	{name: "equal", required: true},
	{name: "distinct", required: true, numbered: true},
	{name: "full", required: true, full: true, numbered: true},
	{name: "like", like: true},
	{name: "like, distinct", like: true, numbered: true},
}

// item returns what makes items of a collection, nil if the style has none.
func (k *kind) item(f *collection, st style) func(i int) string {
	if !f.list && !st.numbered {
		return nil
	}
	make := func(i int) any { return k.value(f.field(), f.item, st, i, 0) }
	if st.like {
		first := k.first(f)
		if first == nil {
			return nil
		}
		make = func(i int) any { return first }
		if st.numbered {
			make = func(i int) any { return number(f.field(), first, i) }
		}
	}
	return func(i int) string {
		text, err := json.Marshal(make(i))
		if err != nil {
			panic(err)
		}
		if !f.list {
			return strconv.Quote(text1(f.field(), i)) + ":" + string(text)
		}
		return string(text)
	}
}

// first returns the first item that the sample has in a collection.
func (k *kind) first(f *collection) any {
	var v any = k.sample
	for _, name := range append(slices.Clip(f.path), "[]") {
		v = step(v, name)
	}
	return v
}

func step(v any, name string) any {
	switch v := v.(type) {
	case fields:
		if name == "{}" || name == "[]" {
			for _, key := range slices.Sorted(maps.Keys(v)) {
				return v[key]
			}
		}
		return v[name]
	case []any:
		if len(v) > 0 && name == "[]" {
			return v[0]
		}
	}
	return nil
}

// number returns a copy of a value with other names, numbers and addresses in it.
func number(name string, v any, i int) any {
	switch v := v.(type) {
	case fields:
		c := fields{}
		for key, value := range v {
			c[key] = number(key, value, i)
		}
		return c
	case []any:
		c := slices.Clone(v)
		for j := range c {
			c[j] = number(name, c[j], i)
		}
		return c
	case string:
		if word(name, "name", "key", "path", "ip", "address", "cidr", "host", "value", "uid", "topic", "url", "driver", "pool", "device", "request") || shaped(name) {
			return text1(name, i)
		}
		return v
	case float64:
		return float64(i%60000 + 1)
	}
	return v
}

func word(name string, words ...string) bool {
	name = strings.ToLower(name)
	return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(name, w) })
}

// shaped tells whether text1 knows the form of a field's text.
func shaped(name string) bool { return text1(name, 1) != "n1" }

// text1 returns a text for a field, with a number in it.
func text1(name string, i int) string {
	switch {
	case word(name, "cidr", "ipBlock", "except", "sourceRanges"):
		return fmt.Sprintf("10.%d.%d.0/24", i>>8&255, i&255)
	case word(name, "ips", "addresses", "podIP", "hostIP", "clusterIP", "nameservers") || strings.EqualFold(name, "ip"):
		return fmt.Sprintf("10.%d.%d.%d", i>>16&255, i>>8&255, i&255)
	case word(name, "path"):
		return fmt.Sprintf("/p%d", i)
	case word(name, "host"):
		return fmt.Sprintf("h%d.example.com", i)
	case word(name, "limits", "requests", "hard", "capacity", "allocatable", "finalizers", "overhead", "conditionType"):
		return fmt.Sprintf("example.com/r%d", i)
	case word(name, "timestamp", "time"):
		return "2026-01-02T03:04:05Z"
	}
	return "n" + strconv.Itoa(i)
}

// value makes a value for a schema.
func (k *kind) value(name string, s *schema, st style, i, depth int) any {
	s, _ = k.target(s)
	if s == nil {
		return nil
	}
	if !st.numbered {
		i = 0
	}
	switch {
	case len(s.Enum) > 0 && st.required:
		return s.Enum[0]
	case s.Properties != nil:
		v := fields{}
		for _, property := range slices.Sorted(maps.Keys(s.Properties)) {
			p, _ := k.target(s.Properties[property])
			if p == nil || !st.required {
				continue
			}
			required := slices.Contains(s.Required, property) || depth == 0 && slices.Contains([]string{"name", "key", "operator", "port", "path", "type", "ip"}, property)
			plain := p.Properties == nil && p.Items == nil && p.Additional == nil && p.Type != "object"
			if required && depth < 6 || st.full && plain && depth < 2 {
				v[property] = k.value(property, p, st, i, depth+1)
			}
		}
		return v
	case s.Items != nil:
		if !st.required || depth > 6 {
			return []any{}
		}
		return []any{k.value(name, s.Items, st, i, depth+1)}
	case s.Type == "integer" || s.Type == "number":
		if !st.required {
			return 0
		}
		return i%60000 + 1
	case s.Type == "boolean":
		return st.required
	case s.Type == "string":
		switch {
		case !st.required:
			return ""
		case s.Format == "date-time":
			return "2026-01-02T03:04:05Z"
		case s.Format == "byte":
			return "YQ=="
		case strings.EqualFold(name, "operator"):
			return "Exists"
		case strings.EqualFold(name, "protocol"):
			return "TCP"
		}
		return text1(name, i)
	case s.Type == "object":
		return fields{}
	}
	if name == "limits" || name == "requests" || name == "hard" || name == "capacity" || name == "allocatable" {
		return strconv.Itoa(i + 1)
	}
	return text1(name, i)
}

// body returns an object whose collection has as many items as the size allows.
func (k *kind) body(f *collection, item func(i int) string, size int) string {
	const mark = "@@items@@"
	text, err := json.Marshal(k.with(k.sample, k.schema, f.path, mark))
	if err != nil {
		panic(err)
	}
	before, after, found := strings.Cut(string(text), strconv.Quote(mark))
	if !found {
		panic("no place for " + f.where())
	}
	var b strings.Builder
	open, end := "{", "}"
	if f.list {
		open, end = "[", "]"
	}
	b.WriteString(before + open)
	for i := 0; b.Len() < size; i++ {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(item(i))
	}
	b.WriteString(end + after)
	return b.String()
}

// with returns a copy of a value with another at a path in it. What is missing on the
// way is made.
func (k *kind) with(v any, s *schema, path []string, at any) any {
	if len(path) == 0 {
		return at
	}
	s, _ = k.target(s)
	name := path[0]
	switch name {
	case "[]":
		list, _ := v.([]any)
		if len(list) == 0 {
			list = []any{k.value("", s.Items, style{required: true}, 1, 0)}
		}
		list = slices.Clone(list)
		list[0] = k.with(list[0], s.Items, path[1:], at)
		return list
	case "{}":
		m, _ := v.(fields)
		c := fields{"a": nil}
		for key := range m {
			c = fields{key: m[key]}
			break
		}
		for key := range c {
			c[key] = k.with(c[key], s.Additional, path[1:], at)
		}
		return c
	}
	m, ok := v.(fields)
	if !ok {
		m, _ = k.value("", s, style{required: true}, 1, 0).(fields)
	}
	c := maps.Clone(m)
	if c == nil {
		c = fields{}
	}
	c[name] = k.with(c[name], s.Properties[name], path[1:], at)
	return c
}
