package cel

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// ruled returns a schema with rules; the last one is broken by every object with n = -1.
func ruled(n int, form string) *apiextensions.JSONSchemaProps {
	p := &apiextensions.JSONSchemaProps{Type: "object", Properties: map[string]apiextensions.JSONSchemaProps{"n": {Type: "integer"}}}
	for i := range n {
		p.XValidations = append(p.XValidations, apiextensions.ValidationRule{Rule: strings.ReplaceAll(form, "%d", fmt.Sprint(i)), Message: fmt.Sprint("broken ", i)})
	}
	return p
}

// heap returns how many bytes of the heap are in use.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// kept returns how much memory rules hold after they were evaluated, and the errors.
func kept(p *apiextensions.JSONSchemaProps, room int) (int64, []string) {
	typ := NewType(p, true)
	NewRules(NewType(ruled(1, "self.n != -1"), true), roomy).Validate(context.Background(), nil, map[string]any{"n": int64(1)}, nil, nil, &Check{Budget: Budget})
	before := heap()
	rules := NewRules(typ, room)
	var errs []string
	for _, err := range rules.Validate(context.Background(), nil, map[string]any{"n": int64(-1)}, nil, nil, &Check{Budget: Budget}) {
		errs = append(errs, err.Error())
	}
	held := heap() - before
	runtime.KeepAlive(rules)
	return held, errs
}

// TestRulesWeighWhatTheyTake measures compiled rules that are short and long.
func TestRulesWeighWhatTheyTake(t *testing.T) {
	for name, p := range map[string]*apiextensions.JSONSchemaProps{
		"short": ruled(300, "self.n != %d"),
		"long":  ruled(20, "self.n != %d"+strings.Repeat(" && self.n < 100 + %d", 150)),
		"macro": ruled(100, "[1,2,3].all(x, x + self.n < 1000 + %d)"),
	} {
		held, _ := kept(p, roomy)
		weight := int64(Weight(p.XValidations))
		t.Logf("%s: %d rules hold %d bytes, %d each, and weigh %d", name, len(p.XValidations), held, held/int64(len(p.XValidations)), weight)
		if held > 2*weight || held < weight/20 {
			t.Errorf("%s: got %d bytes for rules that weigh %d, want between a twentieth and twice as much", name, held, weight)
		}
	}
}

// TestRulesWithoutRoomAreNotKept evaluates more rules than there is room for.
func TestRulesWithoutRoomAreNotKept(t *testing.T) {
	const room = 1 << 20
	p := ruled(1500, "self.n != %d - 1500")
	held, errs := kept(p, room)
	if len(errs) != 1 || !strings.Contains(errs[0], "broken 1499") {
		t.Errorf("got %q, want that the last rule is broken", errs)
	}
	if held > 3*room {
		t.Errorf("%d bytes are held, want at most %d", held, 3*room)
	}
}

// TestTooManyRulesWithoutRoomAreRefused has rules that take longer to compile than a request may.
func TestTooManyRulesWithoutRoomAreRefused(t *testing.T) {
	_, errs := kept(ruled(100_000, " "), 1<<20)
	if len(errs) != 1 || !strings.Contains(errs[0], "too many rules to keep them in memory") {
		t.Errorf("got %q, want that there are too many rules", errs)
	}
}
