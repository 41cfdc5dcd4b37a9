package problems

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"runtime"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// TestSameWords compares with apimachinery, whose words these are.
func TestSameWords(t *testing.T) {
	spec := field.NewPath("spec")
	required, duplicate := field.Required(spec.Child("a"), ""), field.Duplicate(spec.Index(3), map[string]int{"x": 1})
	kind := schema.GroupKind{Group: "apps", Kind: "Deployment"}
	for _, errs := range []field.ErrorList{
		nil, {}, {required}, {required, required}, {required, duplicate}, {duplicate, required, duplicate},
		{field.Invalid(spec, "%s", "a \"b\""), field.NotSupported(spec, "x", []string{"y", "z"}), field.InternalError(nil, io.EOF)},
	} {
		if got, want := Invalid(kind, "web", errs), apierrors.NewInvalid(kind, "web", errs); !reflect.DeepEqual(got, want) {
			t.Errorf("Invalid returns %+v, want %+v", got, want)
		}
		want := ""
		if len(errs) > 0 {
			want = errs.ToAggregate().Error()
		}
		if got := Text(errs); got != want {
			t.Errorf("Text returns %q, want %q", got, want)
		}
	}
	a, b := errors.New("a"), errors.New("b")
	for _, errs := range [][]error{
		{a}, {a, nil}, {a, b, a}, {a, utilerrors.NewAggregate([]error{b, a, io.EOF}), b}, {utilerrors.NewAggregate([]error{a})},
	} {
		got, want := Join(errs), utilerrors.NewAggregate(errs)
		if got.Error() != want.Error() || errors.Is(got, io.EOF) != errors.Is(want, io.EOF) || !errors.Is(got, a) {
			t.Errorf("Join returns %q, want %q", got, want)
		}
	}
	nested := Join([]error{Join([]error{a, b}), io.EOF})
	if got, want := nested.Error(), "[a, b, EOF]"; got != want || !errors.Is(nested, b) {
		t.Errorf("errors in errors are %q, want %q", got, want)
	}
	if err := errors.Join(Join(nil), Join([]error{nil})); err != nil {
		t.Errorf("no errors are %v", err)
	}
}

// TestBounds has more problems than an answer names.
func TestBounds(t *testing.T) {
	var errs field.ErrorList
	for i := range 3 * maxProblems {
		errs = append(errs, field.Required(field.NewPath("spec").Index(i), ""))
	}
	status := Invalid(schema.GroupKind{Kind: "Pod"}, "web", errs).ErrStatus
	last := fmt.Sprintf("and %d more problems", 2*maxProblems)
	if n := len(status.Details.Causes); n != maxProblems+1 || status.Details.Causes[n-1].Message != last {
		t.Errorf("%d problems are answered with %d, want %d and one about the others", len(errs), n, maxProblems)
	}
	if !strings.HasSuffix(status.Message, ", "+last+"]") || !strings.HasSuffix(Text(errs), ", "+last+"]") {
		t.Errorf("the message does not say how many more there are: %q", status.Message[len(status.Message)-100:])
	}
	if got := len(Invalid(schema.GroupKind{}, "", errs[:maxProblems]).ErrStatus.Details.Causes); got != maxProblems {
		t.Errorf("%d problems are answered with %d", maxProblems, got)
	}
	// Each repeats a value of a megabyte.
	value := strings.Repeat("x", 1<<20)
	for _, err := range errs {
		err.Type, err.BadValue = field.ErrorTypeInvalid, value
	}
	if got := len(Text(errs)); got > maxBytes+2*len(value) {
		t.Errorf("the text has %d bytes, want about %d", got, maxBytes)
	}
}

// TestGrowth writes ten thousand errors: no text is copied for each.
func TestGrowth(t *testing.T) {
	errs := make([]error, maxProblems)
	for i := range errs {
		errs[i] = fmt.Errorf("%d%s", i, strings.Repeat("x", 100))
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	size := len(Join(errs).Error())
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 20<<20 {
		t.Errorf("to write %d bytes takes %d", size, got)
	}
}
