//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// next makes the next request.
func (c *client) next() *request {
	var q *request
	switch k := c.r.IntN(100); {
	case k < 30 || len(c.objects) == 0 && k < 70:
		q = c.create()
	case k < 44:
		q = c.update()
	case k < 57:
		q = c.patch()
	case k < 67:
		q = c.apply()
	case k < 74:
		q = c.remove()
	case k < 76:
		q = c.removeAll()
	case k < 81:
		q = c.get()
	case k < 88:
		q = c.list()
	case k < 90:
		q = c.watch()
	case k < 97:
		q = c.subresource()
	default:
		q = c.odd()
	}
	if q == nil {
		return nil
	}
	c.dress(q)
	return q
}

// dress gives a request a user, an encoding, what it accepts, and common parameters.
func (c *client) dress(q *request) {
	r := c.r
	if q.query == nil {
		q.query = url.Values{}
	}
	if q.header == nil {
		q.header = http.Header{}
	}
	if q.user == "" {
		q.user = "admin"
		if chance(r, 10) {
			q.user = pick(r, users)
		} else if chance(r, 3) {
			q.header.Set("Impersonate-User", pick(r, []string{"jane", "bob", "system:serviceaccount:" + c.name + ":default", "system:node:n1", "system:anonymous", ""}))
			if chance(r, 40) {
				q.header.Set("Impersonate-Group", pick(r, []string{"devs", "system:masters", "system:nodes"}))
			}
			if chance(r, 20) {
				q.header.Set("Impersonate-Extra-Scopes", "a")
			}
		} else if chance(r, 1) {
			q.user = pick(r, []string{"", "wrong"})
		}
	}
	if _, raw := q.body.([]byte); !raw {
		q.body = fill(q.body, c.name)
	}
	if q.body != nil && q.encoding == "" {
		switch k := r.IntN(100); {
		case k < 8:
			q.encoding = "yaml"
		case k < 20 && (q.verb == "create" || q.verb == "update"):
			q.encoding = "protobuf"
		case k < 30 && c.scenario.name == "cbor" || k < 21:
			q.encoding = "cbor"
		}
		if _, object := q.body.(map[string]any); !object {
			q.encoding = ""
		}
	}
	if q.verb != "watch" && chance(r, 20) {
		q.header.Set("Accept", pick(r, []string{
			"application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "application/cbor", "*/*", "text/html", "application/vnd.kubernetes.protobuf,application/json",
			"application/json;as=Table;v=v1;g=meta.k8s.io", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
			"application/json;as=Table;v=v1beta1;g=meta.k8s.io", "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "application/json;as=Nothing;v=v1;g=meta.k8s.io", "application/yaml;as=Table;v=v1;g=meta.k8s.io",
		}))
		if strings.Contains(q.header.Get("Accept"), "Table") && chance(r, 50) {
			q.query.Set("includeObject", pick(r, []string{"None", "Metadata", "Object", "All"}))
		}
	}
	switch q.verb {
	case "create", "update", "patch", "apply":
		if chance(r, 25) {
			q.query.Set("fieldValidation", pick(r, []string{"Strict", "Strict", "Warn", "Ignore", "strict", ""}))
		}
		if !q.query.Has("fieldManager") && chance(r, 10) {
			q.query.Set("fieldManager", pick(r, []string{"m1", "m2", "", strings.Repeat("x", 129), "a\u0001b"}))
		}
	}
	switch q.verb {
	case "create", "update", "patch", "apply", "delete", "deletecollection":
		if chance(r, 12) {
			q.query.Set("dryRun", pick(r, []string{"All", "All", "All", "all", ""}))
			q.dry = q.query.Get("dryRun") == "All"
		}
		if q.res != nil && (slices.Contains(alwaysDry, q.res.plural) || slices.Contains(dryOnly, q.res.plural) && !c.scenario.alone) {
			q.query.Set("dryRun", "All")
			q.dry = true
		}
	}
	if chance(r, 2) {
		q.query.Set("pretty", pick(r, []string{"true", "1", "false", "x"}))
	}
	if q.body != nil && chance(r, 2) {
		q.header.Set("Content-Type", pick(r, []string{"text/plain", "application/json; charset=utf-8", "application/xml", "application/yaml", "application/vnd.kubernetes.protobuf", "application/cbor", "application/apply-patch+cbor", "application/merge-patch+json", "", "application/json;as=x"}))
	}
	if q.body != nil && q.spoil == nil && chance(r, 3) {
		n, kind := r.IntN(1000), r.IntN(6)
		q.spoil = func(text []byte) []byte { return spoil(text, n, kind) }
	}
}

// spoil damages an encoded body.
func spoil(text []byte, n, kind int) []byte {
	if len(text) == 0 {
		return text
	}
	s := string(text)
	at := n % len(s)
	switch kind {
	case 0: // a key twice
		if i := strings.Index(s[at:], `,"`); i >= 0 {
			at += i + 1
			if j := strings.Index(s[at:], `":`); j > 0 {
				return []byte(s[:at] + s[at:at+j+2] + "null," + s[at:])
			}
		}
		return text
	case 1:
		return text[:at]
	case 2:
		return []byte(s + s)
	case 3:
		return []byte(s[:at] + "\x00" + s[at:])
	case 4:
		return []byte(strings.ToUpper(s[:at]) + s[at:])
	default:
		return []byte(s + pick2(n))
	}
}

func pick2(n int) string { return []string{" ", "\n", "x", "}", "{}", "\n---\n{}"}[n%6] }

func (c *client) resource() *resource {
	if chance(c.r, 75) {
		return pick(c.r, c.favourites)
	}
	return pick(c.r, c.api.resources)
}

func (c *client) namespace(res *resource) string {
	if !res.namespaced {
		return ""
	}
	if chance(c.r, 2) {
		return pick(c.r, []string{"missing", "UPPER", "a.b"})
	}
	return pick(c.r, c.namespaces)
}

// objectName returns a name that others do not use.
func (c *client) objectName(res *resource) string {
	if chance(c.r, 3) {
		return pick(c.r, []string{"", "UPPER", "a b", "a/b", "..", ".", "ü", "a%2fb", strings.Repeat("a", 254), strings.Repeat("a", 64), "-a", "a.b", "a:b", "system:a", "10.0.0.7"})
	}
	name := pick(c.r, []string{"a", "b", "c", "d"})
	if !res.namespaced {
		return c.name + "-" + name
	}
	return name
}

// object makes an object that was not there before, with metadata.
func (c *client) object(res *resource) (map[string]any, string) {
	r := c.r
	o := c.gen.object(r, res)
	ns := c.namespace(res)
	meta := map[string]any{"labels": map[string]any{"owner": c.name, "app": pick(r, []string{"a", "b"})}}
	name := c.objectName(res)
	switch res.plural {
	case "customresourcedefinitions":
		if spec, ok := o["spec"].(map[string]any); ok {
			if names, ok := spec["names"].(map[string]any); ok {
				names["plural"] = c.name + "s"
				name = fmt.Sprint(names["plural"], ".", spec["group"])
			}
		}
	case "apiservices":
		if spec, ok := o["spec"].(map[string]any); ok {
			name = fmt.Sprint(spec["version"], ".", spec["group"])
		}
	case "ipaddresses":
		name = fmt.Sprintf("10.%d.%d.%d", r.IntN(256), r.IntN(256), r.IntN(256))
	case "clustertrustbundles":
		if spec, ok := o["spec"].(map[string]any); ok && spec["signerName"] != nil {
			name = strings.ReplaceAll(fmt.Sprint(spec["signerName"]), "/", ":") + ":" + c.name
		}
	case "priorityclasses":
		delete(o, "globalDefault")
	}
	if chance(r, 5) {
		meta["generateName"] = pick(r, []string{"gen-", "g", "G-", strings.Repeat("g", 260), c.name + "-"})
	} else {
		meta["name"] = name
	}
	if res.namespaced && chance(r, 10) {
		meta["namespace"] = pick(r, append([]string{"other", ""}, c.namespaces...))
	}
	if chance(r, 8) {
		meta["finalizers"] = pick(r, []any{[]any{"example.com/f"}, []any{"foregroundDeletion"}, []any{"orphan"}, []any{"kubernetes"}, []any{"bad"}, []any{"orphan", "foregroundDeletion"}})
	}
	if chance(r, 8) {
		meta["ownerReferences"] = []any{c.ownerReference()}
	}
	if chance(r, 8) {
		meta["annotations"] = pick(r, []any{map[string]any{"a": "b"}, map[string]any{"A/B/C": "x"}, map[string]any{"": ""}, map[string]any{"example.com/a": strings.Repeat("x", 1000)}})
	}
	if chance(r, 3) {
		meta[pick(r, []string{"uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "selfLink", "generation", "managedFields", "deletionGracePeriodSeconds"})] = pick(r, []any{"x", "1", 1, nil, "2024-01-01T00:00:00Z", []any{}, []any{map[string]any{"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": map[string]any{}}}})
	}
	o["metadata"] = meta
	return o, ns
}

// fill replaces {{ns}} of recordings.
func fill(v any, name string) any {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			v[k] = fill(e, name)
		}
	case []any:
		for i, e := range v {
			v[i] = fill(e, name)
		}
	case string:
		return strings.ReplaceAll(v, "{{ns}}", name)
	}
	return v
}

func (c *client) ownerReference() map[string]any {
	ref := map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "u1"}
	if len(c.objects) > 0 {
		k := pick(c.r, c.objects)
		meta, _ := k.last["metadata"].(map[string]any)
		ref = map[string]any{"apiVersion": k.res.apiVersion(), "kind": k.res.kind, "name": k.name, "uid": meta["uid"]}
	}
	if chance(c.r, 30) {
		ref["controller"] = chance(c.r, 70)
	}
	if chance(c.r, 30) {
		ref["blockOwnerDeletion"] = chance(c.r, 70)
	}
	if chance(c.r, 10) {
		ref[pick(c.r, []string{"apiVersion", "kind", "name", "uid"})] = pick(c.r, []any{"", "a/b/c", nil, "Event"})
	}
	return ref
}

// mutated changes an object in n places.
func (c *client) mutated(res *resource, o map[string]any, n int) {
	sch := c.api.kind(res.apiVersion(), res.kind)
	for range n {
		c.gen.mutate(c.r, sch, o)
	}
}

// few is mostly a small number.
func (c *client) few() int {
	return pick(c.r, []int{0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 5})
}

func (c *client) create() *request {
	res := c.resource()
	if !res.can("create") {
		return nil
	}
	o, ns := c.object(res)
	c.mutated(res, o, c.few())
	return &request{method: "POST", path: res.collection(ns), body: o, res: res, verb: "create"}
}

// target returns an object that is there, or a name at which nothing is.
func (c *client) target() *known {
	if len(c.objects) > 0 && chance(c.r, 93) {
		k := pick(c.r, c.objects)
		if chance(c.r, 8) {
			// The same in another version.
			for _, res := range c.api.resources {
				if res.group == k.res.group && res.plural == k.res.plural && res.version != k.res.version {
					return &known{res: res, namespace: k.namespace, name: k.name, last: k.last}
				}
			}
		}
		return k
	}
	res := c.resource()
	return &known{res: res, namespace: c.namespace(res), name: c.objectName(res)}
}

// current returns an object as it is, to be changed and sent back.
func (c *client) current(k *known) map[string]any {
	if k.last == nil || fmt.Sprint(k.last["apiVersion"]) != k.res.apiVersion() {
		o, _ := c.object(k.res)
		meta := o["metadata"].(map[string]any)
		delete(meta, "generateName")
		meta["name"] = k.name
		return o
	}
	o := clone(k.last).(map[string]any)
	meta, _ := o["metadata"].(map[string]any)
	// The servers may have begun to delete it in different seconds.
	delete(meta, "deletionTimestamp")
	if chance(c.r, 60) {
		delete(meta, "managedFields")
	} else {
		meta["managedFields"] = pick(c.r, []any{[]any{}, nil, []any{map[string]any{}}, meta["managedFields"], meta["managedFields"]})
	}
	switch k := c.r.IntN(10); {
	case k < 4:
		delete(meta, "resourceVersion")
	case k == 4:
		meta["resourceVersion"] = pick(c.r, []any{"1", "0", "abc", "", 5, nil})
	}
	if chance(c.r, 30) {
		delete(meta, "uid")
	}
	return o
}

// mutateKnown changes an object; half of the time in metadata too.
func (c *client) update() *request {
	k := c.target()
	if !k.res.can("update") {
		return nil
	}
	q := &request{method: "PUT", path: k.path(), res: k.res, verb: "update"}
	sub := ""
	if _, ok := k.res.subresources["status"]; ok && chance(c.r, 25) {
		sub = "status"
	}
	o := c.current(k)
	n := c.few()
	if sub == "status" {
		q.path, q.sub = q.path+"/status", "status"
		if st := c.api.of(c.api.kind(k.res.apiVersion(), k.res.kind)).Properties["status"]; st != nil && chance(c.r, 75) {
			o["status"] = c.gen.field(c.r, c.api.of(c.api.kind(k.res.apiVersion(), k.res.kind)), "status", st, 0)
		}
	} else if chance(c.r, 70) {
		n++
	}
	if chance(c.r, 40) {
		c.changeSpec(k.res, o)
	} else {
		c.mutated(k.res, o, n)
	}
	q.body = o
	return q
}

// changeSpec changes fields of the spec only, so that more changes are valid.
func (c *client) changeSpec(res *resource, o map[string]any) {
	sch := c.api.of(c.api.kind(res.apiVersion(), res.kind))
	for _, field := range []string{"spec", "data", "rules", "webhooks"} {
		if in, ok := o[field].(map[string]any); ok {
			c.gen.mutate(c.r, sch.Properties[field], in)
			return
		}
	}
	c.mutated(res, o, 1)
}

func (c *client) patch() *request {
	k := c.target()
	if !k.res.can("patch") {
		return nil
	}
	q := &request{method: "PATCH", path: k.path(), res: k.res, verb: "patch", header: http.Header{}}
	if _, ok := k.res.subresources["status"]; ok && chance(c.r, 20) {
		q.path, q.sub = q.path+"/status", "status"
	}
	if chance(c.r, 35) {
		q.header.Set("Content-Type", "application/json-patch+json")
		q.body = c.jsonPatch(k)
		return q
	}
	q.header.Set("Content-Type", pick(c.r, []string{"application/merge-patch+json", "application/strategic-merge-patch+json"}))
	// A part of a changed object.
	o := c.current(k)
	c.mutated(k.res, o, 1+c.few())
	out := map[string]any{}
	for _, key := range slices.Sorted(maps.Keys(o)) {
		if key == "apiVersion" || key == "kind" {
			if chance(c.r, 10) {
				out[key] = o[key]
			}
			continue
		}
		if chance(c.r, 50) {
			out[key] = c.part(o[key], 0)
		}
	}
	if chance(c.r, 10) {
		out["metadata"] = pick(c.r, []any{nil, map[string]any{"labels": nil}, map[string]any{"labels": map[string]any{"x": "y", "app": nil}}, map[string]any{"finalizers": []any{}}, map[string]any{"finalizers": nil}, map[string]any{"name": "other"}, map[string]any{"$patch": "delete"}, map[string]any{"annotations": map[string]any{"a": "1"}}})
	}
	q.body = out
	return q
}

// part leaves out some of a value, and adds directives of strategic merge patches.
func (c *client) part(v any, depth int) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for _, k := range slices.Sorted(maps.Keys(v)) {
			if chance(c.r, 75) || k == "name" {
				out[k] = c.part(v[k], depth+1)
			} else if chance(c.r, 20) {
				out[k] = nil
			}
		}
		if depth > 0 && chance(c.r, 3) {
			out["$patch"] = pick(c.r, []any{"replace", "delete", "merge", "bad", 1})
		}
		if depth > 0 && chance(c.r, 2) {
			keys := slices.Sorted(maps.Keys(v))
			if len(keys) > 0 {
				k := pick(c.r, keys)
				out[pick(c.r, []string{"$retainKeys", "$setElementOrder/" + k, "$deleteFromPrimitiveList/" + k})] = pick(c.r, []any{[]any{k}, []any{}, []any{"a"}, "x", []any{map[string]any{"name": "a"}}})
			}
		}
		return out
	case []any:
		out := []any{}
		for _, e := range v {
			if chance(c.r, 80) {
				out = append(out, c.part(e, depth+1))
			}
		}
		return out
	}
	return v
}

func (c *client) jsonPatch(k *known) any {
	o := c.current(k)
	var ops []any
	for range 1 + c.r.IntN(3) {
		pointer, value := c.pointer(o)
		op := map[string]any{"op": pick(c.r, []string{"add", "replace", "remove", "test", "add", "replace", "copy", "move"}), "path": pointer}
		switch op["op"] {
		case "add", "replace":
			op["value"] = pick(c.r, []any{value, value, "x", 1, nil, map[string]any{}, []any{}, true, pick(c.r, someNumbers), pick(c.r, someStrings)})
		case "test":
			op["value"] = value
		case "copy", "move":
			op["from"], _ = c.pointer(o)
		}
		if chance(c.r, 4) {
			op[pick(c.r, []string{"op", "path", "value", "from", "extra"})] = pick(c.r, []any{"", "x", nil, 1, "/a/b", "/metadata/labels/x~1y", "/spec/-1"})
		}
		ops = append(ops, op)
	}
	return ops
}

// pointer returns a place in an object and what is there.
func (c *client) pointer(o any) (string, any) {
	at, out := o, ""
	for range 6 {
		switch v := at.(type) {
		case map[string]any:
			if len(v) == 0 || out != "" && chance(c.r, 25) {
				return out, at
			}
			k := pick(c.r, slices.Sorted(maps.Keys(v)))
			out += "/" + strings.ReplaceAll(strings.ReplaceAll(k, "~", "~0"), "/", "~1")
			at = v[k]
		case []any:
			if len(v) == 0 || chance(c.r, 20) {
				return out + pick(c.r, []string{"", "/-", "/0", "/1", "/99", "/01"}), at
			}
			i := c.r.IntN(len(v))
			out += fmt.Sprint("/", i)
			at = v[i]
		default:
			return out, at
		}
	}
	return out, at
}

func (c *client) apply() *request {
	k := c.target()
	if !k.res.can("patch") {
		return nil
	}
	var o map[string]any
	if k.last != nil && chance(c.r, 60) {
		o = c.current(k)
		if part, ok := c.part(o, 1).(map[string]any); ok && chance(c.r, 70) {
			o = part
		}
		meta := map[string]any{"name": k.name}
		if old, ok := o["metadata"].(map[string]any); ok {
			for _, key := range []string{"labels", "annotations", "finalizers"} {
				if old[key] != nil && chance(c.r, 60) {
					meta[key] = old[key]
				}
			}
			if rv := old["resourceVersion"]; rv != nil && chance(c.r, 10) {
				meta["resourceVersion"] = rv
			}
			if chance(c.r, 2) {
				meta["managedFields"] = old["managedFields"]
			}
		}
		o["metadata"] = meta
		if chance(c.r, 80) {
			delete(o, "status")
		}
		o["apiVersion"], o["kind"] = k.res.apiVersion(), k.res.kind
	} else {
		o, _ = c.object(k.res)
		meta := o["metadata"].(map[string]any)
		delete(meta, "generateName")
		meta["name"] = k.name
	}
	c.mutated(k.res, o, c.few())
	q := &request{method: "PATCH", path: k.path(), res: k.res, verb: "apply", body: o, header: http.Header{}, query: url.Values{}}
	q.header.Set("Content-Type", "application/apply-patch+yaml")
	if c.scenario.name == "cbor" && chance(c.r, 30) {
		q.encoding = "cbor"
		q.header.Set("Content-Type", "application/apply-patch+cbor")
	}
	if chance(c.r, 97) {
		q.query.Set("fieldManager", pick(c.r, []string{"m1", "m2", "m3", "kubectl"}))
	}
	if chance(c.r, 45) {
		q.query.Set("force", pick(c.r, []string{"true", "true", "true", "false", "1", "x"}))
	}
	if _, ok := k.res.subresources["status"]; ok && chance(c.r, 12) {
		q.path, q.sub = q.path+"/status", "status"
	}
	return q
}

// deleteOptions makes a body for a deletion, or none.
func (c *client) deleteOptions(k *known, q *request) {
	r := c.r
	q.query = url.Values{}
	if chance(r, 20) {
		q.query.Set("propagationPolicy", pick(r, []string{"Orphan", "Foreground", "Background", "bad"}))
	}
	if chance(r, 15) {
		q.query.Set("gracePeriodSeconds", pick(r, []string{"0", "1", "30", "-1", "x"}))
	}
	if !chance(r, 40) {
		return
	}
	o := map[string]any{"apiVersion": "v1", "kind": "DeleteOptions"}
	if chance(r, 40) {
		o["propagationPolicy"] = pick(r, []any{"Orphan", "Foreground", "Background", "bad", nil, 1})
	}
	if chance(r, 40) {
		o["gracePeriodSeconds"] = pick(r, []any{0, 1, 30, -1, "x", nil, json.Number("9223372036854775807")})
	}
	if chance(r, 10) {
		o["orphanDependents"] = chance(r, 50)
	}
	if chance(r, 30) {
		meta, _ := k.last["metadata"].(map[string]any)
		o["preconditions"] = map[string]any{pick(r, []string{"uid", "resourceVersion"}): pick(r, []any{meta["uid"], meta["resourceVersion"], "x", "1"})}
	}
	if chance(r, 10) {
		o["dryRun"] = pick(r, []any{[]any{"All"}, []any{"bad"}, []any{}, []any{"All", "All"}})
		q.dry = true // or refused
	}
	if chance(r, 5) {
		o[pick(r, []string{"kind", "apiVersion", "unknown", "ignoreStoreReadErrorWithClusterBreakingPotential"})] = pick(r, []any{"Status", "policy/v1", "x/y", true, nil})
	}
	q.body = o
}

func (c *client) remove() *request {
	k := c.target()
	if !k.res.can("delete") {
		return nil
	}
	q := &request{method: "DELETE", path: k.path(), res: k.res, verb: "delete"}
	c.deleteOptions(k, q)
	if q.dry && q.query.Get("dryRun") == "" {
		// The servers agree about it unless one did not heed it.
		q.dry = true
	}
	return q
}

func (c *client) removeAll() *request {
	res := c.resource()
	if len(c.objects) > 0 && chance(c.r, 70) {
		res = pick(c.r, c.objects).res
	}
	if !res.can("deletecollection") || res.plural == "serviceaccounts" {
		return nil
	}
	ns := pick(c.r, c.namespaces)
	q := &request{method: "DELETE", path: res.collection(ns), res: res, verb: "deletecollection"}
	c.deleteOptions(&known{}, q)
	q.query.Set("labelSelector", pick(c.r, []string{"owner=" + c.name, "owner=" + c.name + ",app=a"}))
	if chance(c.r, 10) {
		q.query.Set("fieldSelector", pick(c.r, []string{"metadata.name=a", "bad", "spec.x=1"}))
	}
	return q
}

func (c *client) get() *request {
	k := c.target()
	if !k.res.can("get") {
		return nil
	}
	q := &request{method: "GET", path: k.path(), res: k.res, verb: "get", query: url.Values{}}
	if chance(c.r, 15) {
		q.query.Set("resourceVersion", c.revision())
	}
	return q
}

func (c *client) revision() string {
	if len(c.revisions) > 0 && chance(c.r, 60) {
		return pick(c.r, c.revisions)
	}
	return pick(c.r, []string{"0", "0", "", "x", "-1"})
}

// selectors sets selectors; the objects of others are left out.
func (c *client) selectors(q *request, res *resource, ns string) {
	if ns == "" || chance(c.r, 40) {
		q.query.Set("labelSelector", pick(c.r, []string{"owner=" + c.name, "owner=" + c.name + ",app", "owner in (" + c.name + "),app!=a", "owner==" + c.name + ",!x", "owner=" + c.name + ",app notin (b,c)"}))
		if ns != "" && chance(c.r, 10) {
			q.query.Set("labelSelector", pick(c.r, []string{"", "a=b=c", "a in b", "!", "a>1", "a/b/c=1", strings.Repeat("a", 70)}))
		}
	}
	if chance(c.r, 20) {
		q.query.Set("fieldSelector", pick(c.r, []string{"metadata.name=a", "metadata.name!=a", "metadata.namespace=" + c.name, "metadata.name=", "spec.nodeName=n1", "status.phase=Running", "status.phase!=Running", "type=Opaque", "spec.color=red", "spec.size=3", "spec.unknown=1", "metadata.labels.a=b", "a", "metadata.name=a,metadata.name=b", "reason=x", "involvedObject.kind=Pod", "spec.unschedulable=true", "status.replicas=0", "status.successful=1", "spec.signerName=a/b", "metadata.name=a\\,b"}))
	}
}

func (c *client) list() *request {
	res := c.resource()
	if len(c.objects) > 0 && chance(c.r, 60) {
		res = pick(c.r, c.objects).res
	}
	if !res.can("list") || res.plural == "componentstatuses" {
		return nil
	}
	ns := ""
	if res.namespaced && chance(c.r, 90) {
		ns = pick(c.r, c.namespaces)
	}
	q := &request{method: "GET", path: res.collection(ns), res: res, verb: "list", query: url.Values{}}
	c.selectors(q, res, ns)
	if chance(c.r, 30) {
		q.query.Set("limit", pick(c.r, []string{"1", "2", "500", "0", "-1", "x"}))
	}
	if len(c.continues) > 0 && chance(c.r, 10) {
		q.query.Set("continue", pick(c.r, append([]string{"x", "eyJ2IjoibWV0YS5rOHMuaW8vdjEifQ"}, c.continues[len(c.continues)-1])))
	}
	if chance(c.r, 20) {
		q.query.Set("resourceVersion", c.revision())
		if chance(c.r, 50) {
			q.query.Set("resourceVersionMatch", pick(c.r, []string{"Exact", "NotOlderThan", "bad", ""}))
		}
	}
	if chance(c.r, 3) {
		q.query.Set(pick(c.r, []string{"sendInitialEvents", "timeoutSeconds", "allowWatchBookmarks", "watch", "unknown", "shardSelector"}), pick(c.r, []string{"true", "1", "x", "false", ""}))
		if w := q.query.Get("watch"); w == "true" || w == "1" || q.query.Has("watch") && w == "" {
			q.query.Del("watch")
		}
	}
	return q
}

func (c *client) watch() *request {
	res := c.resource()
	if len(c.objects) > 0 && chance(c.r, 80) {
		res = pick(c.r, c.objects).res
	}
	if !res.can("watch") {
		return nil
	}
	ns := ""
	if res.namespaced {
		ns = pick(c.r, c.namespaces)
	}
	q := &request{method: "GET", path: res.collection(ns), res: res, verb: "watch", query: url.Values{"watch": {"true"}, "timeoutSeconds": {"1"}}}
	c.selectors(q, res, ns)
	if chance(c.r, 60) {
		q.query.Set("resourceVersion", c.revision())
	}
	if chance(c.r, 25) {
		q.query.Set("sendInitialEvents", pick(c.r, []string{"true", "false"}))
		if chance(c.r, 80) {
			q.query.Set("resourceVersionMatch", pick(c.r, []string{"NotOlderThan", "Exact"}))
		}
		if chance(c.r, 80) {
			q.query.Set("allowWatchBookmarks", "true")
		}
	}
	if chance(c.r, 15) {
		q.header = http.Header{"Accept": {pick(c.r, []string{"application/json;as=Table;v=v1;g=meta.k8s.io", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "application/yaml", "text/plain", "application/json;stream=watch"})}}
	}
	return q
}

// subresource asks for scale, binding, eviction, tokens and so on.
func (c *client) subresource() *request {
	k := c.target()
	for range 5 {
		if len(k.res.subresources) > 0 {
			break
		}
		k = c.target()
	}
	if len(k.res.subresources) == 0 {
		return nil
	}
	name := pick(c.r, slices.Sorted(maps.Keys(k.res.subresources)))
	sub := k.res.subresources[name]
	if slices.Contains(connecting, name) {
		return nil
	}
	q := &request{path: k.path() + "/" + name, res: k.res, sub: name}
	var verbs []string
	for _, v := range []string{"get", "create", "update", "patch"} {
		if sub.can(v) {
			verbs = append(verbs, v)
		}
	}
	if len(verbs) == 0 {
		return nil
	}
	q.verb = pick(c.r, verbs)
	q.method = map[string]string{"get": "GET", "create": "POST", "update": "PUT", "patch": "PATCH"}[q.verb]
	if q.verb == "get" {
		return q
	}
	var o map[string]any
	sch := c.api.kind(sub.apiVersion(), sub.kind)
	if sub.kind == k.res.kind {
		o = c.current(k)
		if spec, ok := o["spec"].(map[string]any); ok && chance(c.r, 60) {
			c.gen.mutate(c.r, c.api.of(sch).Properties["spec"], spec)
		}
	} else {
		o, _ = c.gen.value(c.r, sch, "", 0).(map[string]any)
		if o == nil {
			o = map[string]any{}
		}
		meta, _ := k.last["metadata"].(map[string]any)
		m := map[string]any{"name": k.name}
		if k.namespace != "" {
			m["namespace"] = k.namespace
		}
		if chance(c.r, 20) {
			m["resourceVersion"] = meta["resourceVersion"]
		}
		if chance(c.r, 5) {
			m["name"] = "other"
		}
		o["metadata"] = m
		o["apiVersion"], o["kind"] = sub.apiVersion(), sub.kind
		if sub.kind == "Scale" && chance(c.r, 60) {
			o["spec"] = map[string]any{"replicas": pick(c.r, someNumbers)}
		}
		if sub.kind == "Binding" && chance(c.r, 60) {
			o["target"] = map[string]any{"kind": pick(c.r, []string{"Node", "Pod", ""}), "name": pick(c.r, []string{"n1", "n2", ""})}
		}
	}
	for range c.few() / 2 {
		c.gen.mutate(c.r, sch, o)
	}
	q.body = o
	if q.verb == "patch" {
		q.header = http.Header{"Content-Type": {pick(c.r, []string{"application/merge-patch+json", "application/strategic-merge-patch+json", "application/apply-patch+yaml"})}}
		if q.header.Get("Content-Type") == "application/apply-patch+yaml" {
			q.query = url.Values{"fieldManager": {"m1"}}
		} else if p, ok := c.part(o, 0).(map[string]any); ok {
			delete(p, "metadata")
			q.body = p
		}
	}
	return q
}

// odd are requests that ordinary clients do not send.
func (c *client) odd() *request {
	k := c.target()
	r := c.r
	switch r.IntN(8) {
	case 0:
		return &request{method: pick(r, []string{"POST", "PUT", "OPTIONS", "HEAD", "TRACE", "FOO"}), path: k.path(), res: k.res, verb: "odd-method", dry: true, body: map[string]any{"apiVersion": k.res.apiVersion(), "kind": k.res.kind, "metadata": map[string]any{"name": k.name}}, query: url.Values{"dryRun": {"All"}}}
	case 1:
		return &request{method: pick(r, []string{"PUT", "PATCH"}), path: k.res.collection(k.namespace), res: k.res, verb: "odd-collection", dry: true, body: map[string]any{}, query: url.Values{"dryRun": {"All"}}}
	case 2:
		return &request{method: "GET", path: k.path() + "/" + pick(r, []string{"nothing", "status", "scale", "", "exec", "finalize", "approval"}), res: k.res, verb: "odd-sub"}
	case 3:
		return &request{method: "GET", path: pick(r, []string{"/api/v2/pods", "/apis/none/v1/x", "/apis/apps/v9/deployments", "/api", "/apis", "/apis/apps", "/api/v1/namespaces/" + c.name + "/nothing", "/api/v1/nodes/x/y/z", "//api/v1/pods", "/version", "/openid/v1/jwks", "/.well-known/openid-configuration", "/healthz/ping", "/livez/none", "/apis/hunt.example.com", "/apis/hunt.example.com/v1", "/logs", "/metrics/none"}), verb: "odd-path", header: http.Header{}}
	case 4:
		return &request{method: "GET", path: k.res.base() + "/watch/" + k.res.plural, res: k.res, verb: "old-watch", query: url.Values{"timeoutSeconds": {"1"}, "labelSelector": {"owner=" + c.name}}}
	case 5:
		// A list of another namespace's scope.
		return &request{method: "GET", path: k.res.base() + "/namespaces/" + c.name + "/" + k.res.plural + "/" + k.name, res: k.res, verb: "odd-scope"}
	case 6:
		return &request{method: "POST", path: k.res.collection(k.namespace), res: k.res, verb: "create", body: pick(r, []any{[]byte(""), []byte("null"), []byte("[]"), []byte("1"), []byte("\"a\""), []byte("{"), []byte("{}"), []byte("---\n"), []byte("\xff\xfe"), []byte("k8s\x00"), []byte("\xd9\xd9\xf7")}), encoding: "json"}
	default:
		return &request{method: "POST", path: k.res.collection(k.namespace), res: k.res, verb: "create", body: map[string]any{"apiVersion": pick(r, []string{k.res.apiVersion(), "v1", "", "a/b/c"}), "kind": pick(r, []string{k.res.kind, "List", "Status", "", k.res.kind + "List"}), "items": []any{}}, dry: true, query: url.Values{"dryRun": {"All"}}}
	}
}
