// Package problems writes many errors as one, in the words of apimachinery. What that
// costs grows with what is written, where apimachinery copies all that it has written so
// far for each error, and there is a bound for requests with which everything is wrong.
package problems

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// An answer has at most so many problems, and none that begins behind so many bytes:
// each error can repeat a value of megabytes. kube-apiserver has no bound, and needs
// more than ten seconds of CPU time for as many.
const (
	maxProblems = 10_000
	maxBytes    = 4 << 20
)

// Invalid is apierrors.NewInvalid. Behind the bound, a last cause says how many problems
// there are that it does not name.
func Invalid(kind schema.GroupKind, name string, errs field.ErrorList) *apierrors.StatusError {
	var text joined
	listed, rest := bounded(errs)
	causes := make([]metav1.StatusCause, 0, len(listed)+1)
	for _, p := range listed {
		causes = append(causes, metav1.StatusCause{Type: metav1.CauseType(p.err.Type), Message: p.body, Field: p.err.Field})
		text.add(p.text)
	}
	if rest > 0 {
		last := more(rest)
		causes = append(causes, metav1.StatusCause{Type: metav1.CauseType(field.ErrorTypeTooMany), Message: last})
		text.add(last)
	}
	message := fmt.Sprintf("%s %q is invalid", kind.String(), name)
	if len(errs) > 0 {
		message += ": " + text.String()
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid, Message: message,
		Details: &metav1.StatusDetails{Group: kind.Group, Kind: kind.Kind, Name: name, Causes: causes},
	}}
}

// Text is what errs.ToAggregate().Error() returns, "" for no errors.
func Text(errs field.ErrorList) string {
	var text joined
	listed, rest := bounded(errs)
	for _, p := range listed {
		text.add(p.text)
	}
	if rest > 0 {
		text.add(more(rest))
	}
	return text.String()
}

func more(n int) string { return fmt.Sprintf("and %d more problems", n) }

// problem is an error with its text.
type problem struct {
	err        *field.Error
	body, text string
}

// bounded returns the errors that an answer names, and how many others there are.
func bounded(errs field.ErrorList) (listed []problem, rest int) {
	listed = make([]problem, 0, min(len(errs), maxProblems))
	var size int
	for i, err := range errs {
		if i == maxProblems || size > maxBytes {
			return listed, len(errs) - i
		}
		body := err.ErrorBody()
		listed = append(listed, problem{err, body, err.Field + ": " + body})
		size += len(err.Field) + len(body)
	}
	return listed, 0
}

// Join is utilerrors.NewAggregate.
func Join(errs []error) error {
	if joined := utilerrors.NewAggregate(errs); joined != nil {
		return aggregate{joined}
	}
	return nil
}

// aggregate has another Error.
type aggregate struct{ utilerrors.Aggregate }

func (a aggregate) Error() string {
	var text joined
	a.visit(&text)
	return text.String()
}

// visit writes the errors, and those of an aggregate among them one by one.
func (a aggregate) visit(text *joined) {
	for _, err := range a.Errors() {
		switch err := err.(type) {
		case aggregate:
			err.visit(text)
		case utilerrors.Aggregate:
			aggregate{err}.visit(text)
		default:
			text.add(err.Error())
		}
	}
}

// Is implements utilerrors.Aggregate and what errors.Is asks.
func (a aggregate) Is(target error) bool { return errors.Is(a.Aggregate, target) }

// joined is texts with commas between them, each once, and in brackets if there are
// several.
type joined struct {
	seen map[string]struct{}
	b    strings.Builder
}

func (j *joined) add(text string) {
	if _, ok := j.seen[text]; ok {
		return
	}
	if j.seen == nil {
		j.seen = map[string]struct{}{}
	}
	if j.seen[text] = struct{}{}; len(j.seen) > 1 {
		j.b.WriteString(", ")
	}
	j.b.WriteString(text)
}

func (j *joined) String() string {
	if len(j.seen) > 1 {
		return "[" + j.b.String() + "]"
	}
	return j.b.String()
}
