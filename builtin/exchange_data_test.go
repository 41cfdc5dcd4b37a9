package builtin_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

func merge(object, patch any) any {
	changes, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	out, ok := object.(map[string]any)
	if !ok {
		out = map[string]any{}
	}
	for k, p := range changes {
		if p == nil {
			delete(out, k)
		} else {
			out[k] = merge(out[k], p)
		}
	}
	return out
}

// set changes a value behind a JSON pointer; nil removes it.
func set(in any, path []string, value any) any {
	if len(path) == 0 {
		return value
	}
	key := strings.NewReplacer("~1", "/", "~0", "~").Replace(path[0])
	if list, ok := in.([]any); ok {
		i, err := strconv.Atoi(key)
		if err != nil || i >= len(list) {
			return append(list, set(nil, path[1:], value))
		}
		list[i] = set(list[i], path[1:], value)
		return list
	}
	m, ok := in.(map[string]any)
	if !ok {
		m = map[string]any{}
	}
	if m[key] = set(m[key], path[1:], value); m[key] == nil {
		delete(m, key)
	}
	return m
}

var (
	reference   = regexp.MustCompile(`\{\{(\d+):([^}]+)\}\}`)
	repetition  = regexp.MustCompile(`\{\{repeat (\d+) ([^}]*)\}\}`)
	placeholder = regexp.MustCompile(`<[a-zA-Z]+>`)
)

// expand replaces what is known before a case runs.
func expand(line string) string {
	line = strings.ReplaceAll(line, "{{ns}}", "abcdefghij")
	return repetition.ReplaceAllStringFunc(line, func(s string) string {
		m := repetition.FindStringSubmatch(s)
		n, _ := strconv.Atoi(m[1])
		return strings.Repeat(m[2], n)
	})
}

// fill replaces references to earlier answers.
func fill(t *testing.T, text string, steps []*step) string {
	return reference.ReplaceAllStringFunc(text, func(s string) string {
		m := reference.FindStringSubmatch(s)
		n, _ := strconv.Atoi(m[1])
		v := generic(t, steps[n].answer)
		for key := range strings.SplitSeq(m[2], ".") {
			switch x := v.(type) {
			case map[string]any:
				v = x[key]
			case []any:
				i, _ := strconv.Atoi(key)
				v = x[i]
			}
		}
		return fmt.Sprint(v)
	})
}

func parse(path string) request.Info {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	info := request.Info{IsResource: true, Version: parts[1]}
	if parts = parts[2:]; strings.HasPrefix(path, "/apis/") {
		info.Group, info.Version, parts = info.Version, parts[0], parts[1:]
	}
	if parts[0] == "namespaces" && len(parts) > 2 && parts[2] != "status" && parts[2] != "finalize" {
		info.Namespace, parts = parts[1], parts[2:]
	}
	for i, to := range []*string{&info.Resource, &info.Name, &info.Subresource} {
		if i < len(parts) {
			*to = parts[i]
		}
	}
	return info
}

func encode(t *testing.T, v resource.Version, obj resource.Object, info request.Info) []byte {
	t.Helper()
	obj = obj.DeepCopyObject().(resource.Object)
	if v.FromHub != nil {
		var err error
		if obj, err = v.FromHub(obj); err != nil {
			t.Fatal(err)
		}
	}
	out, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func generic(t *testing.T, v any) any {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var out any
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// prune removes what definitions do not make, and sorts causes.
func prune(v any) any {
	m, ok := v.(map[string]any)
	if !ok {
		return v
	}
	if m["kind"] == "Status" {
		details, _ := m["details"].(map[string]any)
		causes, _ := details["causes"].([]any)
		var list []string
		for _, c := range causes {
			m, _ := c.(map[string]any)
			list = append(list, fmt.Sprint(m["field"], ": ", m["message"], " (", m["reason"], ")"))
		}
		slices.Sort(list)
		return list
	}
	delete(m, "apiVersion")
	delete(m, "kind")
	if meta, ok := m["metadata"].(map[string]any); ok {
		for _, k := range []string{"uid", "creationTimestamp", "managedFields", "resourceVersion", "generation", "selfLink"} {
			delete(meta, k)
		}
	}
	return m
}

// compare lists the differences; a placeholder stands for anything.
func compare(path string, want, got any) []string {
	if s, ok := want.(string); ok && len(s) < 1000 && placeholder.MatchString(s) {
		pattern := "^" + strings.ReplaceAll(regexp.QuoteMeta(placeholder.ReplaceAllString(s, "\x00")), "\x00", ".*") + "$"
		if regexp.MustCompile(pattern).MatchString(fmt.Sprint(got)) {
			return nil
		}
	}
	switch w := want.(type) {
	case map[string]any:
		g, _ := got.(map[string]any)
		var out []string
		for k := range w {
			out = append(out, compare(path+"."+k, w[k], g[k])...)
		}
		for k := range g {
			if _, ok := w[k]; !ok {
				out = append(out, fmt.Sprintf("%s.%s: got %v, want none", path, k, g[k]))
			}
		}
		return out
	case []string:
		g, _ := got.([]string)
		var out []string
		for i := range max(len(w), len(g)) {
			switch {
			case i >= len(w):
				out = append(out, "got "+g[i])
			case i >= len(g):
				out = append(out, "want "+w[i])
			default:
				out = append(out, compare("cause", w[i], g[i])...)
			}
		}
		return out
	case []any:
		g, _ := got.([]any)
		if len(w) != len(g) {
			break
		}
		var out []string
		for i := range w {
			out = append(out, compare(fmt.Sprintf("%s[%d]", path, i), w[i], g[i])...)
		}
		return out
	}
	if !reflect.DeepEqual(want, got) {
		return []string{fmt.Sprintf("%s: got %v, want %v", path, got, want)}
	}
	return nil
}
