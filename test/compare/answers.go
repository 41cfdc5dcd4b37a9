//go:build linux

package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"sigs.k8s.io/yaml"
)

// kinds decodes protobuf.
var kinds = func() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, apiextensionsv1.AddToScheme, apiregistrationv1.AddToScheme, metav1.AddMetaToScheme} {
		if err := add(s); err != nil {
			panic(err) // fixed lists of types
		}
	}
	return s
}()

var fromProtobuf = protobuf.NewSerializer(kinds, kinds)

// comparedHeaders are the headers whose values are the same on both servers.
var comparedHeaders = []string{"Content-Type", "Warning", "Location", "Retry-After", "Allow", "Cache-Control", "Vary", "Www-Authenticate", "X-Content-Type-Options", "Accept-Patch", "Accept-Post", "Content-Encoding"}

// presentHeaders have values that differ.
var presentHeaders = []string{"Audit-Id", "X-Kubernetes-Pf-Flowschema-Uid", "X-Kubernetes-Pf-Prioritylevel-Uid"}

// judge compares answers. pairs has values that the servers have made up for the same thing:
// the reference's and Kelson's. It learns more of them on the way.
type judge struct {
	pairs map[string]string
	// generated match names made of the prefixes in requests.
	generated []*regexp.Regexp
}

// generate notes the prefix of names that are made up.
func (j *judge) generate(prefix string) {
	prefix = prefix[:min(len(prefix), 58)]
	j.generated = append(j.generated, regexp.MustCompile(regexp.QuoteMeta(prefix)+`[bcdfghjklmnpqrstvwxz2456789]{5}\b`))
}

// compare returns where answers differ first, and what is there.
func (j *judge) compare(a, b *answer) (where, inA, inB string) {
	if a.status == 0 && strings.Contains(string(a.body), "INTERNAL_ERROR") && b.status >= 400 {
		return "", "", "" // the reference has panicked
	}
	if a.status != b.status {
		return "status", fmt.Sprintf("%d %s", a.status, a.body), fmt.Sprintf("%d %s", b.status, b.body)
	}
	if a.status == 0 {
		return "", "", ""
	}
	for _, h := range comparedHeaders {
		x, y := a.header.Values(h), b.header.Values(h)
		if !j.sameTexts(x, y) {
			return "header " + h, strings.Join(x, " | "), strings.Join(y, " | ")
		}
	}
	for _, h := range presentHeaders {
		x, y := a.header.Get(h), b.header.Get(h)
		if (x == "") != (y == "") {
			return "header " + h, x, y
		}
	}
	x, errA := decodeBody(a)
	y, errB := decodeBody(b)
	if errA != nil || errB != nil {
		if (errA == nil) != (errB == nil) {
			return "body", fmt.Sprint(errA, " ", string(a.body)), fmt.Sprint(errB, " ", string(b.body))
		}
		if !j.sameText("", string(a.body), string(b.body), false) {
			return "body", string(a.body), string(b.body)
		}
		return "", "", ""
	}
	return j.values("", "", x, y)
}

// decodeBody returns a body as JSON would have it; a stream as a list.
func decodeBody(a *answer) (any, error) {
	if len(a.body) == 0 {
		return nil, nil
	}
	media, _, _ := mime.ParseMediaType(a.header.Get("Content-Type"))
	switch media {
	case "application/json":
		d := json.NewDecoder(bytes.NewReader(a.body))
		d.UseNumber()
		var all []any
		for {
			var v any
			err := d.Decode(&v)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, err
			}
			all = append(all, v)
		}
		events := dropBookmarks(all)
		if len(events) == 1 {
			return events[0], nil
		}
		return events, nil
	case "application/yaml":
		text, err := yaml.YAMLToJSON(a.body)
		if err != nil {
			return nil, err
		}
		return decodeBody(&answer{body: text, header: http.Header{"Content-Type": {"application/json"}}})
	case "application/vnd.kubernetes.protobuf":
		o, _, err := fromProtobuf.Decode(a.body, nil, nil)
		if err != nil {
			return nil, err
		}
		text, err := json.Marshal(o)
		if err != nil {
			return nil, err
		}
		return decodeBody(&answer{body: text, header: http.Header{"Content-Type": {"application/json"}}})
	case "application/cbor":
		var v any
		if err := direct.Unmarshal(a.body, &v); err != nil {
			return nil, err
		}
		text, err := json.Marshal(v)
		if err != nil {
			return nil, err
		}
		return decodeBody(&answer{body: text, header: http.Header{"Content-Type": {"application/json"}}})
	}
	return nil, fmt.Errorf("%s is compared as text", media)
}

// dropBookmarks removes bookmarks from events: they come when a server likes.
func dropBookmarks(events []any) []any {
	out := []any{}
	for _, e := range events {
		if m, ok := e.(map[string]any); !ok || m["type"] != "BOOKMARK" {
			out = append(out, e)
		}
	}
	return out
}

var (
	uidPattern  = regexp.MustCompile(`\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b`)
	timePattern = regexp.MustCompile(`\b20(2[5-9]|3\d)-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d| \+0000 UTC)( m=[+-][\d.]+)?`)
	jwtPattern  = regexp.MustCompile(`eyJ[\w-]{10,}\.[\w-]+\.[\w-]+`)
	// allocated is the address in a message about allocations.
	allocated      = regexp.MustCompile(`(failed to allocate IP: \S+ ")[0-9a-f.:]+`)
	addressPattern = regexp.MustCompile(`^[0-9a-f.:]+$`)
	anything       = regexp.MustCompile(`.`)
	agePattern     = regexp.MustCompile(`^(\d+[smhdy]){1,2}( ago)?$|^<invalid>$`)
	numbers        = regexp.MustCompile(`^-?\d+$`)
	longNumber     = regexp.MustCompile(`\b\d{3,}\b`)
	hexPointer     = regexp.MustCompile(`0x[0-9a-f]{6,}`)
	apiAccess      = regexp.MustCompile(`kube-api-access-[a-z0-9]{5}\b`)
	words          = regexp.MustCompile(`[\[\], \n]+`)
)

// values compares two values, which are at a place below a key.
func (j *judge) values(place, key string, a, b any) (where, inA, inB string) {
	switch x := a.(type) {
	case map[string]any:
		y, ok := b.(map[string]any)
		if !ok {
			break
		}
		x = j.translateKeys(x)
		var keys []string
		for k := range x {
			keys = append(keys, k)
		}
		for k := range y {
			if _, ok := x[k]; !ok {
				keys = append(keys, k)
			}
		}
		slices.Sort(keys)
		for _, k := range keys {
			v, inX := x[k]
			w, inY := y[k]
			if !inX || !inY {
				return place + "." + k, show(v, inX), show(w, inY)
			}
			at := place + "." + k
			if _, list := x["items"]; list && k == "metadata" {
				at = place + "{}." + k
			}
			if where, p, q := j.values(at, k, v, w); where != "" {
				return where, p, q
			}
		}
		return "", "", ""
	case []any:
		y, ok := b.([]any)
		if !ok || len(x) != len(y) {
			break
		}
		switch key {
		case "causes":
			x, y = j.sorted(x), j.sorted(y)
		case "managedFields":
			x, y = sortedEntries(x), sortedEntries(y)
		case "resources":
			x, y = j.sorted(x), j.sorted(y) // definitions have no order in discovery
		case "nonResourceRules", "resourceRules":
			x, y = j.sorted(x), j.sorted(y) // bindings have no order
		}
		for i := range x {
			if where, p, q := j.values(fmt.Sprintf("%s[%d]", place, i), key, x[i], y[i]); where != "" {
				return where, p, q
			}
		}
		return "", "", ""
	case string:
		y, ok := b.(string)
		if ok && j.sameText(key, x, y, !strings.HasSuffix(place, "}.metadata.resourceVersion")) {
			return "", "", ""
		}
	case json.Number:
		y, ok := b.(json.Number)
		if !ok {
			break
		}
		if x == y {
			return "", "", ""
		}
		if key == "nodePort" || key == "healthCheckNodePort" || key == "port" && len(x) == 5 {
			j.pairs[string(x)] = string(y)
			return "", "", ""
		}
		// How long is left.
		if key == "retryAfterSeconds" || key == "cells" || key == "remainingItemCount" {
			return "", "", ""
		}
	default:
		if reflect.DeepEqual(a, b) {
			return "", "", ""
		}
	}
	return cmp.Or(place, "body"), show(a, true), show(b, true)
}

// sameText compares texts but for what servers make up, and learns that.
func (j *judge) sameText(key, a, b string, ofObject bool) bool {
	if a == b {
		return true
	}
	if j.pairs[a] == b {
		return true
	}
	switch key {
	case "resourceVersion":
		if _, ok := j.pairs[a]; ok && !ofObject {
			// The revision of a list may be that of an object on one server only.
			return numbers.MatchString(a) && numbers.MatchString(b)
		}
		return j.learn(a, b, numbers)
	case "uid":
		return j.learn(a, b, uidPattern)
	case "clusterIP", "clusterIPs", "ip":
		return j.learn(a, b, addressPattern)
	case "continue", "token":
		return j.learn(a, b, anything)
	case "creationTimestamp", "deletionTimestamp", "time", "timeAdded", "lastTransitionTime":
		if timePattern.MatchString(a) && timePattern.MatchString(b) {
			return j.learn(a, b, timePattern)
		}
	case "name":
		for _, g := range append(j.generated, apiAccess, uidPattern) {
			if g.MatchString(a) && g.MatchString(b) && g.ReplaceAllString(a, "") == g.ReplaceAllString(b, "") {
				return j.learn(a, b, g)
			}
		}
	case "cells":
		if agePattern.MatchString(a) && agePattern.MatchString(b) || len(a) > 6 && addressPattern.MatchString(a) && addressPattern.MatchString(b) {
			return true
		}
	case "serverAddress", "gitVersion", "gitCommit", "buildDate", "goVersion", "gitTreeState":
		return true
	}
	a, b = j.plain(a), j.plain(b)
	// Which fields were looked at before the first that is unknown depends on the order of
	// a map.
	const typed, unknown = "failed to create typed patch object", "field not declared in schema"
	if a == b || strings.Contains(a, typed) && strings.Contains(b, typed) && strings.Contains(a, unknown) && strings.Contains(b, unknown) {
		return true
	}
	// Lists of problems have no order.
	x, y := words.Split(a, -1), words.Split(b, -1)
	slices.Sort(x)
	slices.Sort(y)
	return slices.Equal(x, y)
}

// learn notes that two values stand for the same, if they look like it.
func (j *judge) learn(a, b string, like *regexp.Regexp) bool {
	if !like.MatchString(a) || !like.MatchString(b) {
		return false
	}
	j.pairs[a] = b
	return true
}

// translateKeys replaces uids and names of volumes in keys, which managed fields have.
func (j *judge) translateKeys(m map[string]any) map[string]any {
	var out map[string]any
	for k := range m {
		if id := cmp.Or(uidPattern.FindString(k), apiAccess.FindString(k)); id != "" && j.pairs[id] != "" {
			if out == nil {
				out = maps.Clone(m)
			}
			out[strings.ReplaceAll(k, id, j.pairs[id])] = m[k]
			delete(out, k)
		}
	}
	if out == nil {
		return m
	}
	return out
}

// plain replaces what is made up in a text.
func (j *judge) plain(s string) string {
	for a, b := range j.pairs {
		if len(a) > 4 && !numbers.MatchString(a) && strings.Contains(s, a) {
			s = strings.ReplaceAll(s, a, b)
		}
	}
	s = uidPattern.ReplaceAllString(s, "<uid>")
	s = jwtPattern.ReplaceAllString(s, "<jwt>")
	s = timePattern.ReplaceAllString(s, "<time>")
	s = apiAccess.ReplaceAllString(s, "<volume>")
	s = hexPointer.ReplaceAllString(s, "<pointer>")
	for _, g := range j.generated {
		s = g.ReplaceAllString(s, "<generated>")
	}
	s = allocated.ReplaceAllString(s, "$1<ip>")
	return longNumber.ReplaceAllString(s, "<n>")
}

func (j *judge) sameTexts(a, b []string) bool {
	if len(a) != len(b) {
		return false
	}
	x, y := slices.Clone(a), slices.Clone(b)
	slices.Sort(x)
	slices.Sort(y)
	for i := range x {
		if !j.sameText("", x[i], y[i], false) {
			return false
		}
	}
	return true
}

func (j *judge) sorted(list []any) []any {
	return slices.SortedStableFunc(slices.Values(list), func(a, b any) int {
		return cmp.Compare(j.plain(show(a, true)), j.plain(show(b, true)))
	})
}

// sortedEntries orders managed fields by who owns them.
func sortedEntries(list []any) []any {
	key := func(e any) string {
		m, _ := e.(map[string]any)
		return fmt.Sprint(m["operation"], m["manager"], m["apiVersion"], m["subresource"])
	}
	return slices.SortedStableFunc(slices.Values(list), func(a, b any) int { return cmp.Compare(key(a), key(b)) })
}

func show(v any, there bool) string {
	if !there {
		return "nothing"
	}
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(text)
}

// translate replaces the reference's values in a request by Kelson's.
func (j *judge) translate(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, e := range j.translateKeys(v) {
			out[k] = j.translate(e)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = j.translate(e)
		}
		return out
	case string:
		if b, ok := j.pairs[v]; ok {
			return b
		}
	case json.Number:
		if b, ok := j.pairs[string(v)]; ok && len(v) == 5 {
			return json.Number(b)
		}
	}
	return v
}

var (
	quoted   = regexp.MustCompile(`\\?"[^"]*"`)
	indexes  = regexp.MustCompile(`\[\d+\]|\[[a-z0-9-]*\]`)
	anyDigit = regexp.MustCompile(`\d+`)
)

// signature makes one text of differences that have a cause in common.
func signature(what, where, a, b string) string {
	short := func(s string) string {
		if i := strings.Index(s, `"message":`); i >= 0 {
			code := s[:min(3, len(s))]
			s = s[i+len(`"message":`):]
			if i := strings.Index(s, `","reason"`); i > 0 {
				s = s[:i]
			}
			s = code + " " + strings.TrimPrefix(strings.ReplaceAll(s, `\"`, `"`), `"`)
		} else if strings.HasPrefix(s, `"`) && len(s) > 30 {
			s = strings.Trim(strings.ReplaceAll(s, `\"`, `"`), `"`)
		}
		s = quoted.ReplaceAllString(s, `"…"`)
		s = anyDigit.ReplaceAllString(indexes.ReplaceAllString(s, "[…]"), "N")
		if len(s) > 220 {
			s = strings.ToValidUTF8(s[:220], "")
		}
		return s
	}
	return fmt.Sprintf("%s %s: %s ≠ %s", what, indexes.ReplaceAllString(where, "[]"), short(a), short(b))
}

// deliberate reports whether an answer differs from the reference because Kelson means it to.
func deliberate(a *answer) bool {
	// Kelson makes the service account "default" of a namespace when a pod needs it.
	return a.status == http.StatusForbidden && strings.Contains(string(a.body), "error looking up service account") &&
		strings.Contains(string(a.body), `/default: serviceaccount`)
}
