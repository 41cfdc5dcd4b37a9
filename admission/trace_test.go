package admission

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/resource"
)

// traced is a plugin that changes config maps, with two parts.
type traced struct{ name string }

func (p traced) Name() string        { return p.name }
func (p traced) Handles(Target) bool { return true }

func (p traced) Admit(_ context.Context, a *Attributes) error {
	cm := a.Object.(*corev1.ConfigMap)
	cm.Data = map[string]string{"a": "changed", "b": "new"}
	a.Trace.Part(a, Part{Resource: "policies", Config: "one", Answer: PartAdmitted}, time.Millisecond)
	cm.Labels = map[string]string{"l": strings.Repeat("x", 2*maxShownValue)}
	return nil
}

func (p traced) Validate(_ context.Context, a *Attributes) error {
	return errors.New("never")
}

// TestTraceTellsStepsApart: a trace has what each step and each part of it changed, what
// the server changed between the phases, and who refused. Without a trace the same runs.
func TestTraceTellsStepsApart(t *testing.T) {
	chain := NewChain(traced{"p"})
	for _, trace := range []*Trace{nil, {}} {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Data: map[string]string{"a": "old", "c": "gone"}}
		a := &Attributes{Operation: Create, Served: &resource.Served{Definition: &resource.Definition{Resource: "configmaps"}}, Object: object, Trace: trace}
		if err := chain.Admit(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		object.Name = "prepared"
		if err := chain.Validate(t.Context(), a); err == nil {
			t.Fatal("the plugin did not refuse")
		}
		if trace == nil {
			continue
		}
		var got []string
		for _, s := range trace.Steps {
			for _, p := range s.Parts {
				got = append(got, fmt.Sprintf("%s part %s %v", s.Phase, p.Config, p.Changes))
			}
			label := fmt.Sprintf("%s %s", s.Phase, s.Plugin)
			for _, c := range s.Changes {
				label += fmt.Sprintf(" %s %.20s>%.20s %v", c.Field, c.Before, c.After, len(c.After) <= maxShownValue+3)
			}
			got = append(got, label+" "+s.Error)
		}
		want := []string{
			`admit part one [{.data.a "old" "changed"} {.data.b  "new"} {.data.c "gone" }]`,
			`admit p .metadata.labels >{"l":"xxxxxxxxxxxxxx true `,
			`validate the rules of the kind .metadata.name "x">"prepared" true `,
			`validate p never`,
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// TestTraceIsBounded: an object with many changes does not make a long trace.
func TestTraceIsBounded(t *testing.T) {
	before, after := map[string]any{}, map[string]any{}
	for i := range 10 * maxChanges {
		before[fmt.Sprint(i)], after[fmt.Sprint(i)] = i, []any{i, i + 1}
	}
	if got := len(diff(nil, "", before, after)); got != maxChanges {
		t.Errorf("got %d changes, want %d", got, maxChanges)
	}
	if TraceFrom(t.Context()) != nil {
		t.Error("a context without a trace has one")
	}
}
