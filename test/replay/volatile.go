package replay

import (
	"cmp"
	"encoding/json"
	"net"
	"regexp"
	"slices"
	"strings"
	"time"
)

// volatile replaces values that differ from run to run as the recordings have
// them. What the server has made up in one answer is replaced in later ones
// too.
type volatile struct {
	name   string // of this run of the recording
	prefix string // generateName in the request
	madeUp []string
}

// patterns are volatile parts of texts.
var patterns = []struct {
	find *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`eyJ[\w-]{10,}\.[\w-]+\.[\w-]+`), "<jwt>"},
	{regexp.MustCompile(`\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b`), "<uid>"},
	{regexp.MustCompile(`kube-api-access-[a-z0-9]{5}\b`), "kube-api-access-<rand>"},
	{regexp.MustCompile(`selfType\d+`), "selfType<rand>"},
	{regexp.MustCompile(`(?m)^( *- )\d+s$`), "$1<age>"},
	{regexp.MustCompile(`\((?:\d+[smhdy]){1,2} ago\)`), "(<age> ago)"},
	// Revisions.
	{regexp.MustCompile(`(resource version: \d+) \(\d+\)`), "$1 (<rv>)"},
	{regexp.MustCompile(`(resourceVersion\\?":\\?")\d+`), "$1<rv>"},
	{regexp.MustCompile(`(resourceVersion: )"\d+"`), `$1"<rv>"`},
	{regexp.MustCompile(`(ResourceVersion in (?:the precondition|record)) \(\d{2,}\)`), "$1 (<rv>)"},
	{regexp.MustCompile(`(ResourceVersion in object meta: )\d+`), "$1<rv>"},
	{regexp.MustCompile(`(resource ?[vV]ersion: )\d{3,}(, current: )`), "$1<rv>$2"},
	{regexp.MustCompile(`(current: |revision=)\d+`), "$1<rv>"},
	// What services are given.
	{regexp.MustCompile(`(failed to allocate IP: \S+ \\?")[0-9a-f.:]+`), "$1<ip>"},
	{regexp.MustCompile(`\b3[0-2]\d{3}(: provided port is already allocated)`), "<nodePort>$1"},
	{regexp.MustCompile(`(\{(?:TCP|UDP|SCTP) |\b\d+:)3[0-2]\d{3}(\}|/(?:TCP|UDP|SCTP))`), "$1<nodePort>$2"},
}

var (
	timePattern = regexp.MustCompile(`\b(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d| \+0000 UTC)( m=[+-][\d.]+)?`)
	agePattern  = regexp.MustCompile(`^(\d+[smhdy]){1,2}( ago)?$`)
	digits      = regexp.MustCompile(`^\d+$`)
)

// text replaces what is volatile in a text.
func (n *volatile) text(s string) string {
	if len(n.madeUp) > 0 {
		s = strings.NewReplacer(n.madeUp...).Replace(s)
	}
	s = strings.ReplaceAll(s, n.name, "{{ns}}")
	// All patterns have digits, but for those of random letters.
	if len(s) < 4 || !strings.ContainsAny(s, "0123456789") && !strings.Contains(s, "kube-api-access-") {
		return s
	}
	for _, p := range patterns {
		s = p.find.ReplaceAllString(s, p.with)
	}
	return timePattern.ReplaceAllStringFunc(s, func(found string) string {
		part := timePattern.FindStringSubmatch(found)
		at, err := time.Parse(time.DateTime, part[1]+" "+part[2])
		// Other times are those that a request gave.
		if err == nil && time.Since(at).Abs() < 48*time.Hour {
			return "<time>"
		}
		return found
	})
}

// learn notes a value that the server has made up.
func (n *volatile) learn(value, placeholder string) {
	if len(value) > 3 {
		n.madeUp = append(n.madeUp, value, placeholder)
	}
}

// learnName notes a name that was made of a prefix, which may have been cut,
// and five letters.
func (n *volatile) learnName(prefix string, name any) {
	s, _ := name.(string)
	if cut := len(s) - 5; cut > 0 && strings.HasPrefix(prefix, s[:cut]) {
		n.learn(s, n.text(s[:cut])+"<rand>")
	}
}

// value replaces what is volatile in JSON, in place; key is where it is.
func (n *volatile) value(key string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		if prefix, _ := v["generateName"].(string); prefix != "" {
			n.learnName(prefix, v["name"])
		} else if n.prefix != "" {
			n.learnName(n.prefix, find(v, "details", "name"))
		}
		for _, k := range sortedKeys(v) {
			v[k] = n.value(k, v[k])
		}
	case []any:
		for i := range v {
			v[i] = n.value(key, v[i])
		}
	case json.Number:
		if (key == "nodePort" || key == "healthCheckNodePort") && v != "0" {
			return "<nodePort>"
		}
	case string:
		switch {
		case key == "resourceVersion" && digits.MatchString(v) && v != "0":
			return "<rv>"
		case key == "continue" && v != "":
			return "<continue>"
		case key == "serverAddress":
			return "<address>"
		case key == "cells" && agePattern.MatchString(v):
			return "<age>"
		case (key == "clusterIP" || key == "clusterIPs") && net.ParseIP(v) != nil:
			n.learn(v, "<ip>")
			return "<ip>"
		}
		return n.text(v)
	}
	return v
}

// unordered brings what has no order, or one of seconds only, into an order:
// causes, field managers, and the list of errors in a message. It drops
// bookmarks, which come when the server likes, but for the one that ends initial
// events. The lines of an object in YAML are sorted, which has the same effect.
func unordered(key string, v any) any {
	switch v := v.(type) {
	case string:
		if key == "" && strings.Contains(v, "\n  managedFields:\n") {
			lines := strings.Split(v, "\n")
			slices.Sort(lines)
			return strings.Join(lines, "\n")
		}
	case map[string]any:
		for k := range v {
			v[k] = unordered(k, v[k])
		}
		if message, ok := v["message"].(string); ok {
			v["message"] = unorderedMessage(message)
		}
	case []any:
		v = slices.DeleteFunc(v, idleBookmark)
		for i := range v {
			v[i] = unordered(key, v[i])
		}
		switch key {
		case "causes":
			slices.SortStableFunc(v, func(a, b any) int { return cmp.Compare(encode(a), encode(b)) })
		case "managedFields":
			slices.SortStableFunc(v, func(a, b any) int { return cmp.Compare(entryOrder(a), entryOrder(b)) })
		}
		return v
	}
	return v
}

func unorderedMessage(s string) string {
	head, rest, ok := strings.Cut(s, "[")
	end := strings.LastIndex(rest, "]")
	if !ok || end < 0 {
		return s
	}
	errs := strings.Split(rest[:end], ", ")
	slices.Sort(errs)
	return head + "[" + strings.Join(errs, ", ") + rest[end:]
}

func entryOrder(entry any) string {
	out := ""
	for _, key := range []string{"operation", "manager", "apiVersion", "subresource"} {
		s, _ := find(entry, key).(string)
		out += s + "\x00"
	}
	return out
}

func idleBookmark(event any) bool {
	return find(event, "type") == "BOOKMARK" && find(event, "object", "metadata", "annotations") == nil
}
