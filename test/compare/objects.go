//go:build linux

package main

import (
	"fmt"
	"strings"
)

// This file chooses what a request is about: a resource, a namespace, a name, and an object
// that is generated or read before.

// resource chooses a resource, mostly one of those that this client prefers.
func (c *client) resource() *resource {
	if chance(c.r, 75) {
		return pick(c.r, c.favourites)
	}
	return pick(c.r, c.api.resources)
}

// namespace chooses where an object of a resource is, rarely a namespace that cannot be.
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
