//go:build linux

package attack

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// define creates a definition of namespaced Vases and returns the path of their objects.
func (s *server) define(t *testing.T, group string, schema string) string {
	t.Helper()
	const definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	made := &message{http.MethodPost, definitions, "application/json", fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",
		"metadata":{"name":"vases.%s"},"spec":{"group":"%s","scope":"Namespaced","names":{"plural":"vases","singular":"vase","kind":"Vase","listKind":"VaseList"},
		"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":%s}}]}}`, group, group, schema)}
	if _, _, text := s.cost(t, made); !strings.HasPrefix(text, "201") {
		t.Fatalf("the definition is not created: %s", text)
	}
	t.Cleanup(func() {
		if _, err := s.do(s.admin, http.MethodDelete, definitions+"/vases."+group, nil); err != nil {
			t.Error(err)
		}
	})
	path := "/apis/" + group + "/v1/namespaces/default/vases"
	within(t, patience, "vases are served", func() bool {
		_, err := s.get(s.admin, path)
		return err == nil
	})
	return path
}

// vase returns the creation of an object with fields.
func vase(path, group, fields string) *message {
	return &message{http.MethodPost, path + "?dryRun=All", "application/json", `{"apiVersion":"` + group + `/v1","kind":"Vase","metadata":{"name":"a"},` + fields + `}`}
}

// TestCostlyPatterns has patterns of custom resources that take minutes: they are refused, or
// end with their request.
func TestCostlyPatterns(t *testing.T) {
	const group = "patterns.example.com"
	path := filledVictim.define(t, group, `{"type":"object","properties":{"a":{"type":"string","pattern":"(?:a|aa|aaa){300}b"}}}`)
	spent, _, text := filledVictim.cost(t, vase(path, group, `"a":"`+strings.Repeat("a", 2_900_000)+`"`))
	if !strings.HasPrefix(text, "422") || !strings.Contains(text, "exceeds the cost limit") {
		t.Errorf("got %.300s, want that it is too costly", text)
	}
	if spent > 10*time.Second {
		t.Errorf("a text that is refused cost %v", spent)
	}
	// What is allowed ends with its client.
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	m := vase(path, group, `"a":"`+strings.Repeat("a", 50_000)+`"`)
	req, err := http.NewRequestWithContext(ctx, m.method, filledVictim.url+m.path, strings.NewReader(m.body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", m.contentType)
	if resp, err := filledVictim.admin.Do(req); err == nil {
		resp.Body.Close()
	}
	within(t, patience, "the server has finished a match whose client is gone", func() bool {
		begin, before := time.Now(), filledVictim.cpu(t)
		<-time.After(50 * time.Millisecond)
		return filledVictim.cpu(t)-before < time.Since(begin)/5
	})
}

// TestManyPatterns has as many patterns as a definition can: what they take is bounded.
func TestManyPatterns(t *testing.T) {
	const group = "many.example.com"
	var properties, fields strings.Builder
	for i := range 15_000 {
		if i > 0 {
			properties.WriteByte(',')
			fields.WriteByte(',')
		}
		fmt.Fprintf(&properties, `"f%d":{"type":"string","pattern":"^[a-z]{1,30}%d$"}`, i, i)
		fmt.Fprintf(&fields, `"f%d":"a%d"`, i, i)
	}
	path := filledVictim.define(t, group, `{"type":"object","properties":{`+properties.String()+`}}`)
	before := resident(t, filledVictim, "VmRSS")
	spent, _, text := filledVictim.cost(t, vase(path, group, fields.String()))
	if !strings.HasPrefix(text, "201") {
		t.Fatalf("the object is not created: %.300s", text)
	}
	if spent > 15*time.Second {
		t.Errorf("the first object cost %v", spent)
	}
	if grown := resident(t, filledVictim, "VmRSS") - before; grown > peakPerAttack {
		t.Errorf("15,000 patterns take %d bytes, want at most %d", grown, peakPerAttack)
	}
	t.Logf("the first object cost %v", spent)
}

// TestCustomErrorGrowth sends lists in which all items are wrong in each of several ways.
func TestCustomErrorGrowth(t *testing.T) {
	const group = "errors.example.com"
	path := filledVictim.define(t, group, `{"type":"object","properties":{"a":{"type":"array","items":{"type":"string"},"anyOf":[
		{"items":{"pattern":"^a"}},{"items":{"maxLength":1}},{"items":{"enum":["d","e"]}}],"allOf":[{"items":{"pattern":"^b"}}]}}}`)
	grows(t, "wrong alternatives", func(size int) *message {
		return vase(path, group, `"a":[`+strings.Repeat(`"cc",`, size/5)+`"cc"]`)
	})
}

// TestExpressionGrowth writes definitions and policies with expressions that take long to be
// compiled, and an object that a rule's regular expression takes long with.
func TestExpressionGrowth(t *testing.T) {
	for name, unit := range map[string]string{"comparisons": "object.a==''||", "lists": "[]==[]||", "macros": "[1].map(a,[]).map(b,[b]).size()==0||"} {
		for _, size := range []int{2 << 10, 67 << 10} {
			expression := strings.Repeat(unit, size/len(unit)) + "true"
			m := &message{http.MethodPost, "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies?dryRun=All", "application/json",
				`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicy","metadata":{"name":"a"},"spec":{"matchConstraints":{"resourceRules":[
				{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["configmaps"]}]},"validations":[{"expression":"` + expression + `"}]}}`}
			spent, _, text := filledVictim.cost(t, m)
			if spent > costCeiling {
				t.Errorf("%s of %d bytes cost %v: %.200s", name, size, spent, text)
			}
			if want := map[bool]string{false: "201", true: "422"}[size > 16<<10]; !strings.HasPrefix(text, want) {
				t.Errorf("%s of %d bytes: got %.300s, want %s", name, size, text, want)
			}
		}
	}
	const group = "rules.example.com"
	path := filledVictim.define(t, group, `{"type":"object","properties":{"a":{"type":"string","maxLength":2000000}},
		"x-kubernetes-validations":[{"rule":"!has(self.a) || self.a.matches('(?:a|aa|aaa){300}b')"}]}`)
	spent, _, text := filledVictim.cost(t, vase(path, group, `"a":"`+strings.Repeat("a", 1_900_000)+`"`))
	if spent > costCeiling || !strings.HasPrefix(text, "422") || !strings.Contains(text, "cost exceeds limit") {
		t.Errorf("a rule cost %v: %.300s", spent, text)
	}
}
