package replay

import (
	"fmt"
	"reflect"
	"strings"
)

// result says how well the answers to a recording match: status is codes,
// reasons of errors and types of events, full is everything.
type result struct {
	status, full bool
	// differences are the first at either level, for people.
	differences []string
}

func (r *result) fail(full bool, s *step, format string, args ...any) {
	if full && !r.full {
		return
	}
	r.full, r.status = false, r.status && full
	r.differences = append(r.differences, fmt.Sprintf("%s %s\n\t", s.Method, s.Path)+fmt.Sprintf(format, args...))
}

// compare looks at one answer. It changes the bodies.
func (r *result) compare(s *step, got *answer) {
	if s.Status != got.status {
		r.fail(false, s, "status %d, recorded is %d: %.600s", got.status, s.Status, encode(got.body))
		return
	}
	if !got.matches {
		r.fail(false, s, "the answer never contained %q", s.RetryMatch)
		return
	}
	if s.Brief {
		return
	}
	want := decode(string(s.ResponseBody))
	if a, b := outcome(want), outcome(got.body); a != b {
		r.fail(false, s, "%s, recorded is %s", b, a)
	}
	if path, a, b := difference(s.ResponseHeaders, got.headers); path != "" {
		r.fail(true, s, "header%s is %s, recorded is %s", path, b, a)
	}
	if !s.Ordered {
		want, got.body = unordered("", want), unordered("", got.body)
	}
	if path, a, b := difference(want, got.body); path != "" {
		r.fail(true, s, "body%s is %s, recorded is %s", path, b, a)
	}
}

// outcome is what of a body counts at the level of status.
func outcome(body any) string {
	switch body := body.(type) {
	case map[string]any:
		if body["kind"] == "Status" {
			return fmt.Sprint("reason ", body["reason"])
		}
	case []any:
		out := "events"
		for _, event := range body {
			if !idleBookmark(event) {
				out += fmt.Sprint(" ", find(event, "type"))
			}
		}
		return out
	}
	return "success"
}

// difference returns where two values differ first, and what is there.
func difference(a, b any) (path, inA, inB string) {
	if reflect.DeepEqual(a, b) {
		return "", "", ""
	}
	if a, ok := a.(map[string]any); ok {
		if b, ok := b.(map[string]any); ok {
			both := map[string]any{}
			for k := range a {
				both[k] = nil
			}
			for k := range b {
				both[k] = nil
			}
			for _, k := range sortedKeys(both) {
				x, inA := a[k]
				y, inB := b[k]
				if !inA || !inB {
					return "." + k, shown(x, inA), shown(y, inB)
				}
				if path, p, q := difference(x, y); path != "" {
					return "." + k + path, p, q
				}
			}
		}
	}
	if a, ok := a.([]any); ok {
		if b, ok := b.([]any); ok && len(a) == len(b) {
			for i := range a {
				if path, p, q := difference(a[i], b[i]); path != "" {
					return fmt.Sprintf("[%d]", i) + path, p, q
				}
			}
		}
	}
	return " ", shown(a, true), shown(b, true)
}

func shown(v any, there bool) string {
	if !there {
		return "nothing"
	}
	const most = 1500
	s := encode(v)
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
