//go:build linux

package main

import (
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
