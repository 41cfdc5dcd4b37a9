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

// This file makes the requests that change something.

func (c *client) create() *request {
	res := c.resource()
	if !res.can("create") {
		return nil
	}
	o, ns := c.object(res)
	c.mutated(res, o, c.few())
	return &request{method: "POST", path: res.collection(ns), body: o, res: res, verb: "create"}
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
