package lifecycle

import (
	"strings"
	"testing"
	"time"

	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// TestHandover has an eviction go from one responder to the next, and what nobody may
// do on the way.
func TestHandover(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(d time.Duration) *metav1.Time { return new(metav1.NewTime(now.Add(d))) }
	const active, inactive, completed = lifecyclev1alpha1.ResponderStateActive, lifecyclev1alpha1.ResponderStateInactive, lifecyclev1alpha1.ResponderStateCompleted
	// The second is asked first: its domain comes first, read from the end.
	status := func(last, first responderState) evictionStatus {
		return evictionStatus{
			TargetResponders: []target{{Name: "b.org/x", Priority: new(int32(5000)), State: last}, {Name: "z.a.com/x", Priority: new(int32(5000)), State: first}},
			Responders:       []responderStatus{{Name: "b.org/x"}, {Name: "z.a.com/x", StartTime: at(0)}},
		}
	}
	begun := status(inactive, active)
	for _, c := range []struct {
		name string
		old  evictionStatus
		now  func() evictionStatus
		want string // parts of what is said, if anything is
	}{
		{"begin", evictionStatus{}, func() evictionStatus { return begun }, ""},
		{"begin with the wrong one", evictionStatus{}, func() evictionStatus { return status(active, inactive) },
			"[1].state: must be one of: Active, because this responder is next in line; [0].state: must be one of: Inactive, because the previously active has not finished processing; [0].startTime: is required"},
		{"go on too early", begun, func() evictionStatus {
			s := status(active, completed)
			s.Responders[0].StartTime = at(0)
			return s
		}, "[1].state: must stay Active; [1].state: cannot become Completed"},
		{"go on", func() evictionStatus {
			s := status(inactive, active)
			s.Responders[1].CompletionTime = at(time.Second)
			return s
		}(), func() evictionStatus {
			s := status(active, completed)
			s.Responders[0].StartTime, s.Responders[1].CompletionTime = at(0), at(time.Second)
			return s
		}, ""},
		{"another's status", begun, func() evictionStatus {
			s := status(inactive, active)
			s.Responders[0].Message = new("mine")
			return s
		}, "[0]: field is immutable"},
		{"old times", begun, func() evictionStatus {
			s := status(inactive, active)
			s.Responders[1].HeartbeatTime, s.Responders[1].ExpectedCompletionTime = at(time.Hour), at(11*365*24*time.Hour)
			return s
		}, "[1].heartbeatTime: must be set to the present; [1].expectedCompletionTime: must complete within 10 years"},
		{"one less", begun, func() evictionStatus { return evictionStatus{} }, "targetResponders: must preserve the same length"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := c.now()
			errs := validateStatus(&s, &c.old, field.NewPath("status"), now)
			var want []string
			if c.want != "" {
				want = strings.Split(c.want, "; ")
			}
			for i := range max(len(errs), len(want)) {
				if i >= len(errs) || i >= len(want) {
					t.Fatalf("%v, want %q", errs, want)
				}
				path, said, _ := strings.Cut(want[i], ": ")
				if !strings.HasSuffix(errs[i].Field, path) || !strings.Contains(errs[i].Error(), said) {
					t.Errorf("%v, want %s", errs[i], want[i])
				}
			}
		})
	}
}
