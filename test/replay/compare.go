package replay

import (
	"fmt"
	"reflect"
	"strings"
)

// compare says what is different in an answer; nothing if it is as recorded. It changes
// the bodies.
func compare(s *Step, got *answer) string {
	if s.Status != got.status {
		return fmt.Sprintf("status %d, recorded is %d: %.600s", got.status, s.Status, encode(got.body))
	}
	if !got.matches {
		return fmt.Sprintf("the answer never contained %q", s.RetryMatch)
	}
	if s.Brief {
		return ""
	}
	if path, a, b := difference(s.ResponseHeaders, got.headers); path != "" {
		return fmt.Sprintf("header%s is %s, recorded is %s", path, b, a)
	}
	want := decode(string(s.ResponseBody))
	if !s.Ordered {
		want, got.body = unordered("", want), unordered("", got.body)
	}
	if path, a, b := difference(want, got.body); path != "" {
		return fmt.Sprintf("body%s is %s, recorded is %s", path, b, a)
	}
	return ""
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
