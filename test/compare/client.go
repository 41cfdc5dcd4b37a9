//go:build linux

package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	gvk "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"sigs.k8s.io/yaml"
)

// settle is how long kube-apiserver's plugins may take to hear of an object that they decide
// by. A client waits that long after it has written one.
const settle = 60 * time.Millisecond

// heeded are kinds that decide about other requests.
var heeded = []string{"namespaces", "serviceaccounts", "limitranges", "resourcequotas", "roles", "rolebindings", "clusterroles", "priorityclasses", "storageclasses", "ingressclasses", "runtimeclasses", "nodes", "persistentvolumes", "persistentvolumeclaims", "csidrivers", "validatingadmissionpolicies", "mutatingadmissionpolicies", "validatingadmissionpolicybindings", "mutatingadmissionpolicybindings", "validatingwebhookconfigurations", "mutatingwebhookconfigurations", "pods", "services", "deviceclasses", "resourceclaims", "secrets", "customresourcedefinitions", "volumeattributesclasses"}

// dryOnly are kinds that decide about requests of other clients, or change what is served:
// they are only written by dry run, unless a client is alone.
var dryOnly = []string{"validatingadmissionpolicybindings", "mutatingadmissionpolicybindings", "validatingwebhookconfigurations", "mutatingwebhookconfigurations", "clusterrolebindings"}

// alwaysDry are the resources that are only written in dry runs: they change what is served to everybody.
var alwaysDry = []string{"apiservices", "servicecidrs", "customresourcedefinitions", "flowschemas", "prioritylevelconfigurations"}

// connecting subresources open connections elsewhere.
var connecting = []string{"exec", "attach", "portforward", "proxy", "log"}

// known is an object that a client has seen.
type known struct {
	res       *resource
	namespace string
	name      string
	last      map[string]any // as the reference has it
}

func (k *known) path() string { return k.res.collection(k.namespace) + "/" + url.PathEscape(k.name) }

// client sends random requests, each to both servers.
type client struct {
	pair     *pair
	api      *api
	gen      *generator
	scenario scenario
	number   uint64
	r        *rand.Rand
	report   *report
	judge    *judge

	name       string
	namespaces []string
	favourites []*resource
	objects    []*known
	revisions  []string // that the reference has answered
	continues  []string
	before     []string // the writes so far
	sent       int
}

func newClient(p *pair, a *api, g *generator, s scenario, n uint64, r *rand.Rand, rep *report) *client {
	c := &client{pair: p, api: a, gen: g, scenario: s, number: n, r: r, report: rep, judge: &judge{pairs: map[string]string{}}, name: fmt.Sprintf("h%d", n)}
	for range 5 {
		c.favourites = append(c.favourites, pick(r, a.resources))
	}
	if s.alone {
		for _, res := range a.resources {
			if slices.Contains(dryOnly, res.plural) && chance(r, 60) {
				c.favourites = append(c.favourites, res)
			}
		}
	}
	return c
}

// run sends requests until one that writes is answered differently.
func (c *client) run(ctx context.Context, length int) {
	ns := c.name
	labels := map[string]any{"owner": c.name}
	if chance(c.r, 15) {
		labels["pod-security.kubernetes.io/"+pick(c.r, []string{"enforce", "warn", "audit"})] = pick(c.r, []string{"restricted", "baseline", "privileged"})
	}
	if chance(c.r, 5) {
		labels["resource.kubernetes.io/admin-access"] = "true"
	}
	if !c.do(ctx, &request{method: "POST", path: "/api/v1/namespaces", user: "admin", body: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": ns, "labels": labels}}}) {
		return
	}
	c.namespaces = []string{ns}
	c.do(ctx, &request{method: "POST", path: "/api/v1/namespaces/" + ns + "/serviceaccounts", user: "admin", body: map[string]any{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": map[string]any{"name": "default"}}})
	wait(ctx, settle)
	for range length {
		if ctx.Err() != nil || !c.do(ctx, c.next()) {
			break
		}
	}
	if c.scenario.alone {
		c.tidy(ctx)
	}
}

// tidy removes what decides about requests of the next client.
func (c *client) tidy(ctx context.Context) {
	for _, k := range c.objects {
		if slices.Contains(dryOnly, k.res.plural) {
			for _, s := range []*server{c.pair.reference, c.pair.kelson} {
				s.send(ctx, &message{method: "PATCH", path: k.path(), user: "admin", header: http.Header{"Content-Type": {"application/merge-patch+json"}}, body: []byte(`{"metadata":{"finalizers":null}}`)})
				s.send(ctx, &message{method: "DELETE", path: k.path(), user: "admin"})
			}
		}
	}
	wait(ctx, 3*settle)
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// request is what is sent to both servers, with the values of the reference.
type request struct {
	method, path, user string
	query              url.Values
	header             http.Header
	body               any // JSON, or []byte as it is
	// spoil changes the encoded body.
	spoil func([]byte) []byte
	// encoding of the body: json, yaml, protobuf, cbor.
	encoding string
	res      *resource
	sub      string
	verb     string
	dry      bool
}

// encode returns the request for the reference, or translated for Kelson.
func (c *client) encode(q *request, translated bool) *message {
	m := &message{method: q.method, path: q.path, user: q.user, query: q.query, header: http.Header{}}
	for k, v := range q.header {
		m.header[k] = v
	}
	body := q.body
	if translated {
		segments := strings.Split(m.path, "/")
		for i, s := range segments {
			if b, ok := c.judge.pairs[s]; ok && !numbers.MatchString(s) {
				segments[i] = b
			}
		}
		m.path = strings.Join(segments, "/")
		m.query = url.Values{}
		for k, list := range q.query {
			for _, v := range list {
				// Of numbers only revisions differ: a timeout of 1 second stays one.
				if b, ok := c.judge.pairs[v]; ok && (k == "resourceVersion" || !numbers.MatchString(v)) {
					v = b
				}
				m.query.Add(k, v)
			}
		}
		if _, raw := body.([]byte); !raw {
			body = c.judge.translate(body)
		}
	}
	switch b := body.(type) {
	case nil:
		return m
	case []byte:
		m.body = b
	default:
		m.body = c.encodeBody(q, b, m.header)
	}
	if q.spoil != nil {
		m.body = q.spoil(m.body)
	}
	if m.header.Get("Content-Type") == "" {
		m.header.Set("Content-Type", "application/json")
	}
	return m
}

func (c *client) encodeBody(q *request, body any, h http.Header) []byte {
	text, err := json.Marshal(body)
	if err != nil {
		panic(err) // made of JSON
	}
	switch q.encoding {
	case "yaml":
		if out, err := yaml.JSONToYAML(text); err == nil {
			setDefault(h, "application/yaml")
			return out
		}
	case "cbor":
		var v any
		if json.Unmarshal(text, &v) == nil {
			if out, err := direct.Marshal(whole(v)); err == nil {
				setDefault(h, "application/cbor")
				return out
			}
		}
	case "protobuf":
		o, _ := body.(map[string]any)
		apiVersion, _ := o["apiVersion"].(string)
		kind, _ := o["kind"].(string)
		gv, err := gvk.ParseGroupVersion(apiVersion)
		if err != nil {
			break
		}
		typed, err := kinds.New(gv.WithKind(kind))
		if err != nil || json.Unmarshal(text, typed) != nil {
			break
		}
		typed.GetObjectKind().SetGroupVersionKind(gv.WithKind(kind))
		var out strings.Builder
		if fromProtobuf.Encode(typed, &out) == nil {
			setDefault(h, "application/vnd.kubernetes.protobuf")
			return []byte(out.String())
		}
	}
	return text
}

// whole turns numbers without a fraction into integers, as CBOR tells them apart.
func whole(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			v[k] = whole(e)
		}
	case []any:
		for i, e := range v {
			v[i] = whole(e)
		}
	case float64:
		if v == float64(int64(v)) {
			return int64(v)
		}
	}
	return v
}

func setDefault(h http.Header, contentType string) {
	if h.Get("Content-Type") == "" {
		h.Set("Content-Type", contentType)
	}
}

// do sends a request to both servers and compares the answers. It returns whether the
// servers are still in the same state.
func (c *client) do(ctx context.Context, q *request) bool {
	if q == nil {
		return true
	}
	c.sent++
	if o, ok := q.body.(map[string]any); ok {
		if meta, ok := o["metadata"].(map[string]any); ok {
			if prefix, ok := meta["generateName"].(string); ok && prefix != "" {
				c.judge.generate(prefix)
			}
		}
	}
	m := c.encode(q, false)
	a := c.pair.reference.send(ctx, m)
	b := c.pair.kelson.send(ctx, c.encode(q, true))
	if ctx.Err() != nil {
		return false
	}
	where, inA, inB := c.judge.compare(a, b)
	if where != "" && deliberate(a) {
		return false
	}
	writes := q.method != "GET" && q.method != "HEAD" && q.method != "OPTIONS" && !q.dry
	if where != "" {
		what := q.verb
		if q.res != nil {
			what += " " + q.res.group + "/" + q.res.plural
			if q.sub != "" {
				what += "/" + q.sub
			}
		}
		c.report.add(&difference{
			Signature: signature(what, where, inA, inB), Scenario: c.scenario.name, Client: c.number,
			Where: where, Reference: cut(inA), Kelson: cut(inB), Request: describe(m), Before: slices.Clone(c.before),
		})
		if writes {
			return false
		}
	}
	if writes && a.status/100 == 2 {
		c.before = append(c.before, describe(m))
		if len(c.before) > 12 {
			c.before = c.before[1:]
		}
	}
	c.learn(q, a, writes)
	if writes && a.status/100 == 2 && q.res != nil && slices.Contains(heeded, q.res.plural) {
		wait(ctx, settle)
	}
	return true
}

func cut(s string) string {
	const most = 4000
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

func describe(m *message) string {
	var out strings.Builder
	out.WriteString(m.method + " " + m.path)
	if len(m.query) > 0 {
		out.WriteString("?" + m.query.Encode())
	}
	out.WriteString(" as " + m.user)
	for _, k := range slices.Sorted(maps.Keys(m.header)) {
		out.WriteString("\n" + k + ": " + strings.Join(m.header[k], ", "))
	}
	if len(m.body) > 0 {
		body := m.body
		if strings.ContainsRune(string(body), 0) {
			body = []byte("base64 " + base64.StdEncoding.EncodeToString(body))
		}
		out.WriteString("\n\n" + cut(string(body)))
	}
	return out.String()
}

// learn notes objects, revisions and continue tokens out of an answer.
func (c *client) learn(q *request, a *answer, writes bool) {
	if a.status/100 != 2 || q.res == nil || q.query.Get("watch") != "" {
		return
	}
	if q.method == "DELETE" {
		return
	}
	if !strings.HasPrefix(a.header.Get("Content-Type"), "application/json") {
		return
	}
	v, err := decodeBody(a)
	o, _ := v.(map[string]any)
	meta, _ := o["metadata"].(map[string]any)
	if err != nil || meta == nil {
		return
	}
	if rv, _ := meta["resourceVersion"].(string); rv != "" {
		if c.revisions = append(c.revisions, rv); len(c.revisions) > 20 {
			c.revisions = c.revisions[1:]
		}
	}
	if next, _ := meta["continue"].(string); next != "" {
		c.continues = append(c.continues, next)
	}
	name, _ := meta["name"].(string)
	if q.dry || name == "" || o["kind"] != q.res.kind || q.sub != "" && q.sub != "status" {
		return
	}
	ns, _ := meta["namespace"].(string)
	for _, k := range c.objects {
		if k.res.plural == q.res.plural && k.res.group == q.res.group && k.name == name && k.namespace == ns {
			k.last, k.res = o, q.res
			return
		}
	}
	if q.verb == "create" || q.verb == "apply" || q.verb == "update" {
		c.objects = append(c.objects, &known{res: q.res, namespace: ns, name: name, last: o})
		if q.res.plural == "namespaces" && q.res.group == "" {
			c.namespaces = append(c.namespaces, name)
		}
	}
}
