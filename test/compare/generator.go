//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/apikeel/kelson/test/replay"
)

// seeds are objects out of recorded requests, by apiVersion and kind: valid has those that
// were accepted.
type seeds struct {
	valid, all map[string][]map[string]any
}

// readSeeds reads the recordings in all folders below dir.
func readSeeds(dir string) (*seeds, error) {
	s := &seeds{valid: map[string][]map[string]any{}, all: map[string][]map[string]any{}}
	folders, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, folder := range folders {
		if files, _ := filepath.Glob(filepath.Join(dir, folder.Name(), "*.txtar")); len(files) == 0 {
			continue
		}
		archives, err := replay.ReadArchives(filepath.Join(dir, folder.Name()))
		if err != nil {
			return nil, err
		}
		for _, a := range archives {
			for _, r := range a.Recordings {
				for i := range r.Steps {
					s.add(&r.Steps[i])
				}
			}
		}
	}
	if len(s.valid) == 0 {
		return nil, fmt.Errorf("%s has no recordings", dir)
	}
	return s, nil
}

func (s *seeds) add(step *replay.Step) {
	if step.Method != "POST" && step.Method != "PUT" || len(step.Body) > 16<<10 || strings.Contains(strings.ReplaceAll(string(step.Body), "{{ns}}", ""), "{{") {
		return
	}
	var o map[string]any
	if json.Unmarshal(step.Body, &o) != nil {
		return
	}
	apiVersion, _ := o["apiVersion"].(string)
	kind, _ := o["kind"].(string)
	if apiVersion == "" || kind == "" {
		return
	}
	key := apiVersion + " " + kind
	s.all[key] = append(s.all[key], o)
	if step.Status/100 == 2 {
		s.valid[key] = append(s.valid[key], o)
	}
}

// generator makes objects. It does not change after newGenerator.
type generator struct {
	api   *api
	seeds *seeds
	// pool has the values that fields had in the seeds, by component and field.
	pool map[string][]any
}

// poolSize bounds the values of a field.
const poolSize = 200

func newGenerator(a *api, s *seeds) *generator {
	g := &generator{api: a, seeds: s, pool: map[string][]any{}}
	for _, key := range slices.Sorted(maps.Keys(s.all)) {
		apiVersion, kind, _ := strings.Cut(key, " ")
		sch := a.kind(apiVersion, kind)
		if sch == nil {
			continue
		}
		for _, o := range s.all[key] {
			g.harvest(sch, o)
		}
	}
	return g
}

// harvest adds the fields of a value to the pool.
func (g *generator) harvest(s *schema, v any) {
	s = g.api.of(s)
	switch v := v.(type) {
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			p := s.Properties[k]
			if p == nil {
				if s.additional != nil {
					g.harvest(s.additional, v[k])
				}
				continue
			}
			if key := s.name + "." + k; s.name != "" && len(g.pool[key]) < poolSize {
				g.pool[key] = append(g.pool[key], v[k])
			}
			g.harvest(p, v[k])
		}
	case []any:
		for _, e := range v {
			g.harvest(s.Items, e)
		}
	}
}

func pick[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }

// chance is true in percent of all cases.
func chance(r *rand.Rand, percent int) bool { return r.IntN(100) < percent }

// object makes an object of a kind that is likely to be valid.
func (g *generator) object(r *rand.Rand, res *resource) map[string]any {
	var from []map[string]any
	if chance(r, 85) {
		from = g.seeds.valid[res.apiVersion()+" "+res.kind]
	}
	if from == nil && chance(r, 80) {
		// Another version has much the same fields.
		for _, key := range slices.Sorted(maps.Keys(g.seeds.valid)) {
			apiVersion, kind, _ := strings.Cut(key, " ")
			group, _, _ := strings.Cut(apiVersion, "/")
			if kind == res.kind && (group == res.group || res.group == "" && apiVersion == "v1") {
				from = g.seeds.valid[key]
				if chance(r, 50) {
					break
				}
			}
		}
	}
	var o map[string]any
	if len(from) > 0 {
		o, _ = clone(pick(r, from)).(map[string]any)
	} else {
		o, _ = g.value(r, g.api.kind(res.apiVersion(), res.kind), "", 0).(map[string]any)
	}
	if o == nil {
		o = map[string]any{}
	}
	delete(o, "metadata")
	delete(o, "status")
	o["apiVersion"], o["kind"] = res.apiVersion(), res.kind
	return o
}

var (
	someStrings    = []string{"", "a", "b", "app", "web", "default", "x.example.com", "example.com/x", "UPPER", "with space", "ünïcode", "a/b/c", "..", "-a", "a-", "10.0.0.1", "2001:db8::1", "10.0.0.0/8", "fd00::/64", "1.2.3.04", "80", "http", "0", "true", "null", "1Gi", "100m", "50%", "150%", "-1", "1e3", "2024-01-01T00:00:00Z", "2024-01-01T00:00:00.123456Z", "*", "*.example.com", "kubernetes.io/x", "node-role.kubernetes.io/a", "\u0000", "a\nb", "%s", "Always", "Never", "None", "ClusterIP", "TCP", "In", "Exists", "NoSchedule", "https://example.com", "self.x > 0", "object.metadata.name == 'a'"}
	someNumbers    = []any{0, 1, 2, 3, 5, 10, 80, 100, 255, 256, 443, 511, 600, 1000, 3600, 8080, 30000, 65535, 65536, -1, -2, json.Number("2147483647"), json.Number("2147483648"), json.Number("-2147483649"), json.Number("9223372036854775807"), json.Number("9223372036854775808"), json.Number("1.5"), json.Number("1e2"), json.Number("1.0"), json.Number("0.1"), json.Number("1e400"), json.Number("-0")}
	someQuantities = []any{"1", "100m", "1Gi", "1.5", "0", "-1", "1e3", "1E3", "0.1", "1Ki", "1n", "999999999999999999999", "1.0000000001", "1KI", "", "1 Gi", "+1", "500Mi", "2", json.Number("2"), json.Number("1.5"), "0.5m", "1u"}
	someTimes      = []any{"2024-01-01T00:00:00Z", "2024-01-01T00:00:00.123456Z", "2024-01-01T01:00:00+01:00", "2024-01-01", "", nil, "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "10000-01-01T00:00:00Z", json.Number("0")}
)

// value makes a value of a schema.
func (g *generator) value(r *rand.Rand, s *schema, field string, depth int) any {
	s = g.api.of(s)
	switch {
	case strings.HasSuffix(s.name, "resource.Quantity"):
		return pick(r, someQuantities)
	case strings.HasSuffix(s.name, ".Time") || strings.HasSuffix(s.name, "MicroTime"):
		return pick(r, someTimes)
	case strings.HasSuffix(s.name, "IntOrString") || s.IntOrString || s.Format == "int-or-string":
		if chance(r, 50) {
			return pick(r, []any{"50%", "http", "25%", "0%", "101%", "80"})
		}
		return pick(r, someNumbers)
	case len(s.Enum) > 0 && chance(r, 90):
		return pick(r, s.Enum)
	}
	switch s.Type {
	case "string":
		if s.Format == "byte" {
			return pick(r, []any{"", "YQ==", "YQ", "!!", "LS0tLS1CRUdJTg=="})
		}
		return g.text(r, field)
	case "integer":
		if chance(r, 70) {
			return r.IntN(10)
		}
		return pick(r, someNumbers)
	case "number":
		return pick(r, someNumbers)
	case "boolean":
		return chance(r, 50)
	case "array":
		list := []any{}
		if depth > 8 {
			return list
		}
		for range r.IntN(3) {
			list = append(list, g.value(r, s.Items, strings.TrimSuffix(field, "s"), depth+1))
		}
		return list
	case "object", "":
		o := map[string]any{}
		if s.additional != nil && depth < 8 {
			for range r.IntN(3) {
				o[g.text(r, "key")] = g.value(r, s.additional, field, depth+1)
			}
			return o
		}
		for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
			if depth == 0 && (name == "status" || name == "metadata" || name == "apiVersion" || name == "kind") {
				continue
			}
			p := s.Properties[name]
			if slices.Contains(s.Required, name) || depth < 2 && chance(r, 60) || depth < 8 && chance(r, 50/(depth+1)) {
				o[name] = g.field(r, s, name, p, depth)
			}
		}
		return o
	}
	return nil
}

// field makes the value of a field, out of the seeds if they have some.
func (g *generator) field(r *rand.Rand, s *schema, name string, p *schema, depth int) any {
	if pool := g.pool[s.name+"."+name]; len(pool) > 0 && chance(r, 65) {
		return clone(pick(r, pool))
	}
	return g.value(r, p, name, depth+1)
}

// text makes a string for a field.
func (g *generator) text(r *rand.Rand, field string) string {
	lower := strings.ToLower(field)
	switch {
	case chance(r, 12):
		return pick(r, someStrings)
	case chance(r, 2):
		return strings.Repeat(pick(r, []string{"a", "x.", "ä", "a-"}), 1+r.IntN(300))
	case strings.HasSuffix(lower, "name") || field == "key" || strings.Contains(lower, "label"):
		return pick(r, []string{"a", "b", "c", "app", "default", "obj", "x-1", "kubernetes.io/a", "example.com/b"})
	case strings.Contains(lower, "ip"):
		return pick(r, []string{"10.0.0.9", "10.1.2.3", "2001:db8::5", "192.168.0.1", "127.0.0.1", "0.0.0.0", "::1", "224.0.0.1", "::ffff:1.2.3.4", "010.0.0.1"})
	case strings.Contains(lower, "cidr"):
		return pick(r, []string{"10.0.0.0/24", "10.0.0.1/24", "fd00::/112", "0.0.0.0/0", "10.0.0.0"})
	case strings.Contains(lower, "path"):
		return pick(r, []string{"/", "/a", "/a/b", "a/b", "../x", "/a/../b", "", "/var/lib"})
	case strings.Contains(lower, "image"):
		return pick(r, []string{"i", "nginx:1", "k8s.gcr.io/x@sha256:" + strings.Repeat("a", 64), " i", ""})
	case strings.Contains(lower, "expression") || lower == "rule":
		return pick(r, []string{"true", "self.a > 1", "object.spec.replicas < 5", "object.metadata.name.startsWith('a')", "1 +", "undefined", "request.operation == 'CREATE'", "device.driver == 'x'"})
	case strings.Contains(lower, "schedule"):
		return pick(r, []string{"* * * * *", "@hourly", "0 0 31 2 *", "61 * * * *", "TZ=UTC * * * * *", ""})
	}
	return pick(r, someStrings)
}

// node is a place in an object at which something can be changed.
type node struct {
	in     any // map[string]any or []any
	key    string
	index  int
	schema *schema // of the value
	parent *schema // of in
}

// nodes collects the places in a value.
func (g *generator) nodes(s *schema, v any, out []node) []node {
	s = g.api.of(s)
	switch v := v.(type) {
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			p := s.Properties[k]
			if p == nil {
				p = s.additional
			}
			out = append(out, node{in: v, key: k, schema: p, parent: s})
			out = g.nodes(p, v[k], out)
		}
	case []any:
		for i := range v {
			out = append(out, node{in: v, index: i, schema: s.Items, parent: s})
			out = g.nodes(s.Items, v[i], out)
		}
	}
	return out
}

func (n node) get() any {
	if m, ok := n.in.(map[string]any); ok {
		return m[n.key]
	}
	return n.in.([]any)[n.index]
}

func (n node) set(v any) {
	if m, ok := n.in.(map[string]any); ok {
		m[n.key] = v
		return
	}
	n.in.([]any)[n.index] = v
}

// mutate changes one thing in an object.
func (g *generator) mutate(r *rand.Rand, s *schema, o map[string]any) {
	nodes := g.nodes(s, o, nil)
	keep := nodes[:0]
	for _, n := range nodes {
		if n.key != "apiVersion" && n.key != "kind" && n.key != "managedFields" || chance(r, 2) {
			keep = append(keep, n)
		}
	}
	if nodes = keep; len(nodes) == 0 {
		return
	}
	n := pick(r, nodes)
	switch k := r.IntN(100); {
	case k < 40:
		// A field that is not there, in an object that is on the way.
		for range 8 {
			if m, ok := n.get().(map[string]any); ok {
				if sch := g.api.of(n.schema); len(sch.Properties) > 0 {
					name := pick(r, slices.Sorted(maps.Keys(sch.Properties)))
					m[name] = g.field(r, sch, name, sch.Properties[name], 3)
					return
				}
			}
			n = pick(r, nodes)
		}
	case k < 60:
		if n.parent != nil && n.key != "" && n.schema != nil {
			n.set(g.field(r, n.parent, n.key, n.schema, 3))
		} else if n.schema != nil {
			n.set(g.value(r, n.schema, n.key, 3))
		}
	case k < 74:
		if m, ok := n.in.(map[string]any); ok {
			delete(m, n.key)
		}
	case k < 82:
		if list, ok := n.get().([]any); ok && len(list) > 0 {
			switch i := r.IntN(len(list)); r.IntN(3) {
			case 0:
				n.set(append(slices.Clone(list), clone(list[i])))
			case 1:
				n.set(slices.Delete(slices.Clone(list), i, i+1))
			default:
				n.set(append(slices.Clone(list), g.value(r, g.api.of(n.schema).Items, n.key, 3)))
			}
		} else if s, ok := n.get().(string); ok {
			n.set(pick(r, []string{s + "x", strings.ToUpper(s), s + " ", "", s + s, s + "-" + strings.Repeat("y", 60), s + ".", s + "/a"}))
		}
	case k < 88:
		n.set(pick(r, []any{"text", 7, true, nil, []any{}, map[string]any{}, []any{"a"}, map[string]any{"a": "b"}, json.Number("1.5"), "5", []any{nil}}))
	case k < 91:
		n.set(nil)
	case k < 95:
		if m, ok := n.in.(map[string]any); ok {
			m[pick(r, []string{"unknown", "Name", n.key + "X", strings.ToUpper(n.key), "", "$patch", "x-y"})] = pick(r, []any{1, "a", nil, map[string]any{"a": 1}})
		}
	default:
		switch n.get().(type) {
		case string:
			n.set(pick(r, someStrings))
		default:
			n.set(pick(r, someNumbers))
		}
	}
}

// clone copies JSON.
func clone(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			out[k] = clone(e)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = clone(e)
		}
		return out
	}
	return v
}
