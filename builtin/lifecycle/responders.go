package lifecycle

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
)

// Limits of the statuses and times of responders.
const (
	maxResponders      = 11
	reservedPriorities = 1000
	imperativePriority = 100
	heartbeatDeadline  = 20 * time.Minute
	skew               = 30 * time.Second
	longest            = 10 * 365 * 24 * time.Hour
)

type (
	evictionStatus  = lifecyclev1alpha1.EvictionStatus
	target          = lifecyclev1alpha1.TargetResponder
	responderStatus = lifecyclev1alpha1.ResponderStatus
	responderState  = lifecyclev1alpha1.ResponderStateType
)

// The status of an eviction has several writers: the controller, which activates one responder
// after the other, and the responders. Changes that the controller would not make are refused,
// so that a responder cannot act for others.

func validateStatus(s, old *evictionStatus, path *field.Path, now time.Time) field.ErrorList {
	conditions := path.Child("conditions")
	errs := metavalidation.ValidateConditions(s.Conditions, conditions)
	is := func(kind lifecyclev1alpha1.EvictionConditionType) bool {
		return meta.IsStatusConditionTrue(s.Conditions, string(kind))
	}
	final := is(lifecyclev1alpha1.EvictionConditionTargetEvicted) || is(lifecyclev1alpha1.EvictionConditionFailed)
	for _, was := range old.Conditions {
		kind := lifecyclev1alpha1.EvictionConditionType(was.Type)
		if kind != lifecyclev1alpha1.EvictionConditionTargetEvicted && kind != lifecyclev1alpha1.EvictionConditionFailed || was.Status != metav1.ConditionTrue {
			continue
		}
		if c := meta.FindStatusCondition(s.Conditions, was.Type); c == nil || c.Status == metav1.ConditionFalse || c.Reason != was.Reason {
			errs = append(errs, field.Invalid(conditions, rules.GoForm(s.Conditions), was.Type+" condition status cannot be reverted"))
			final = true
		}
	}
	errs = append(errs, validateTargets(s, old.TargetResponders, final, path.Child("targetResponders"), now)...)
	return append(errs, validateResponders(s, old.Responders, path.Child("responders"), now)...)
}

func targetName(t target) string             { return t.Name }
func responderName(r responderStatus) string { return r.Name }

// byName returns the indexes of the items of a list.
func byName[T any](list []T, name func(T) string) map[string]int {
	at := map[string]int{}
	for i, item := range list {
		at[name(item)] = i
	}
	return at
}

// validateTargets checks that responders are activated one after the other, and that each ends
// before the next begins.
func validateTargets(s *evictionStatus, old []target, final bool, path *field.Path, now time.Time) field.ErrorList {
	at := byName(s.TargetResponders, targetName)
	if len(old) != 0 {
		if len(s.TargetResponders) != len(old) {
			return field.ErrorList{field.Invalid(path, rules.GoForm(s.TargetResponders), "must preserve the same length and the same keys")}
		}
		for _, t := range old {
			if _, ok := at[t.Name]; !ok {
				return field.ErrorList{field.Invalid(path, rules.GoForm(s.TargetResponders), "must preserve the same keys")}
			}
		}
	}
	if n := len(s.TargetResponders); n == 0 || n > maxResponders || len(at) < n {
		return nil // empty, or reported by declared rules
	}
	responders := byName(s.Responders, responderName)
	before, after := sorted(old), sorted(s.TargetResponders)
	expect := expectations(before, after, final)
	var errs field.ErrorList
	for i, t := range after {
		path := path.Index(at[t.Name])
		var status *responderStatus
		if j, ok := responders[t.Name]; ok {
			status = &s.Responders[j]
		}
		states, why := expect(i)
		errs = append(errs, validateTarget(t, status, states, why, final, path, now)...)
	}
	return errs
}

// expectations returns for each responder, in the order of activation, the states that it can be
// in, and the reason.
func expectations(before, after []target, final bool) func(i int) ([]responderState, string) {
	done := []responderState{lifecyclev1alpha1.ResponderStateCanceled, lifecyclev1alpha1.ResponderStateCompleted, lifecyclev1alpha1.ResponderStateInterrupted}
	active := slices.IndexFunc(before, func(t target) bool { return t.State == lifecyclev1alpha1.ResponderStateActive })
	changed := active >= 0 && after[active].State != lifecyclev1alpha1.ResponderStateActive
	over := final || len(before) > 0 && slices.Contains(done, before[len(before)-1].State)
	return func(i int) ([]responderState, string) {
		switch {
		case i < active || len(before) > 0 && active < 0 && over:
			return []responderState{before[i].State}, "final state is immutable"
		case i == active && changed:
			return done, "this responder must reach a final state"
		case i == active && final:
			return done, "the eviction request has finished processing"
		case i == active:
			return []responderState{lifecyclev1alpha1.ResponderStateActive}, "the eviction request stays active"
		case i == 0 && len(before) == 0, i == active+1 && changed:
			if final {
				return []responderState{lifecyclev1alpha1.ResponderStateInactive}, "the eviction request has finished processing"
			}
			return []responderState{lifecyclev1alpha1.ResponderStateActive}, "this responder is next in line"
		}
		return []responderState{lifecyclev1alpha1.ResponderStateInactive}, "the previously active has not finished processing"
	}
}

func validateTarget(t target, status *responderStatus, states []responderState, why string, final bool, path *field.Path, now time.Time) field.ErrorList {
	tracked := field.NewPath("status", "responders")
	if status == nil {
		return field.ErrorList{field.Invalid(path, rules.GoForm(t), fmt.Sprintf("%q has to be tracked in %s first", t.Name, tracked))}
	}
	var errs field.ErrorList
	if p := t.Priority; p != nil && *p >= 0 {
		switch imperative := t.Name == lifecyclev1alpha1.EvictionResponderImperativeEviction; {
		case imperative && *p != imperativePriority:
			errs = append(errs, field.Invalid(path.Child("priority"), *p, fmt.Sprintf("core k8s responder is expected to have priority: %d", imperativePriority)))
		case !imperative && *p < reservedPriorities:
			errs = append(errs, field.Invalid(path.Child("priority"), *p, "priorities 0-999 are reserved for responders with *.k8s.io suffix"))
		}
	}
	path = path.Child("state")
	if !slices.Contains(states, t.State) {
		var names []string
		for _, s := range states {
			names = append(names, string(s))
		}
		return append(errs, field.Invalid(path, t.State, "must be one of: "+strings.Join(names, ", ")+", because "+why))
	}
	if t.State != lifecyclev1alpha1.ResponderStateActive && status.StartTime != nil && status.CompletionTime == nil && !final {
		heartbeat := status.StartTime
		if status.HeartbeatTime != nil {
			heartbeat = status.HeartbeatTime
		}
		if now.Before(heartbeat.Add(heartbeatDeadline - skew)) {
			errs = append(errs, field.Forbidden(path, fmt.Sprintf("must stay Active because the responder is in progress and it should report %s or %s",
				tracked.Child("heartbeatTime"), tracked.Child("completionTime"))))
		}
	}
	if t.State == lifecyclev1alpha1.ResponderStateCompleted && status.CompletionTime == nil {
		errs = append(errs, field.Invalid(path, t.State, fmt.Sprintf("cannot become Completed because the responder didn't report %s", tracked.Child("completionTime"))))
	}
	return errs
}

func validateResponders(s *evictionStatus, old []responderStatus, path *field.Path, now time.Time) field.ErrorList {
	if len(s.TargetResponders) != len(s.Responders) {
		return field.ErrorList{field.Invalid(path, rules.GoForm(s.Responders), "must be the same length as status.targetResponders and contain the same keys")}
	}
	at, targets, before := byName(s.Responders, responderName), byName(s.TargetResponders, targetName), byName(old, responderName)
	for _, t := range s.TargetResponders {
		if _, ok := at[t.Name]; !ok {
			return field.ErrorList{field.Invalid(path, rules.GoForm(s.Responders), "must contain the same keys as status.targetResponders")}
		}
	}
	if n := len(s.Responders); n == 0 || n > maxResponders || len(at) < n {
		return nil
	}
	var errs field.ErrorList
	for i := range s.Responders {
		r := &s.Responders[i]
		var was *responderStatus
		if j, ok := before[r.Name]; ok {
			was = &old[j]
		}
		active := s.TargetResponders[targets[r.Name]].State == lifecyclev1alpha1.ResponderStateActive
		errs = append(errs, validateResponder(r, was, active, path.Index(i), now)...)
	}
	return errs
}

// validateResponder checks that times are current when they are set, and that only the active
// responder changes its status.
func validateResponder(r, old *responderStatus, active bool, path *field.Path, now time.Time) field.ErrorList {
	if old != nil && !active && !equality.Semantic.DeepEqual(r, old) {
		return field.ErrorList{field.Invalid(path, rules.GoForm(r), apivalidation.FieldImmutableErrorMsg)}
	}
	if old == nil {
		old = &responderStatus{}
	}
	start := path.Child("startTime")
	var errs field.ErrorList
	present := func(t *metav1.Time) bool { return t.After(now.Add(-skew)) && t.Time.Before(now.Add(skew)) }
	// begun reports a time before the start, or the first message of cases.
	begun := func(t *metav1.Time, path *field.Path, cases ...func() string) {
		problem := ""
		switch {
		case r.StartTime == nil:
			problem = fmt.Sprintf("cannot be set before %s is set", start)
		default:
			for _, c := range cases {
				if problem = c(); problem != "" {
					break
				}
			}
		}
		if problem != "" {
			errs = append(errs, field.Invalid(path, t, problem))
		}
	}
	says := func(wrong bool, text string) string {
		if wrong {
			return text
		}
		return ""
	}
	early := func(t *metav1.Time) func() string {
		return func() string { return says(t.Before(r.StartTime), fmt.Sprintf("must occur after %s", start)) }
	}

	switch same := old.StartTime.Equal(r.StartTime); {
	case old.StartTime != nil && !same: // reported by a declared rule
	case r.StartTime == nil && active:
		errs = append(errs, field.Required(start, "is required for an active responder"))
	case r.StartTime != nil && !same && !present(r.StartTime):
		errs = append(errs, field.Invalid(start, r.StartTime, "must be set to the present time"))
	}

	beat := path.Child("heartbeatTime")
	if old.HeartbeatTime != nil && r.HeartbeatTime == nil {
		errs = append(errs, field.Required(beat, "is required once set"))
	}
	if t := r.HeartbeatTime; t != nil && !old.HeartbeatTime.Equal(t) {
		begun(t, beat,
			func() string { return says(t.Before(old.HeartbeatTime), "cannot be decreased") },
			early(t),
			func() string { return says(!present(t), "must be set to the present time") })
	}

	if t := r.ExpectedCompletionTime; t != nil && !old.ExpectedCompletionTime.Equal(t) {
		begun(t, path.Child("expectedCompletionTime"), early(t),
			func() string { return says(t.Time.Before(now.Add(-skew)), "cannot be set to the past time") },
			func() string { return says(t.After(now.Add(longest)), "must complete within 10 years") })
	}

	if t := r.CompletionTime; t != nil && (old.CompletionTime == nil || old.CompletionTime.Equal(t)) {
		begun(t, path.Child("completionTime"), early(t),
			func() string {
				return says(old.CompletionTime == nil && !present(t), "must be set to the present time")
			})
	}
	return errs
}

// sorted returns responders in the order of activation: by priority, then by the domain of
// their names read from the end, then by the rest of the names.
func sorted(all []target) []target {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b target) int {
		switch {
		case a.Priority == nil && b.Priority != nil:
			return 1
		case a.Priority != nil && b.Priority == nil:
			return -1
		case a.Priority != nil && *a.Priority != *b.Priority:
			return cmp.Compare(*b.Priority, *a.Priority)
		}
		domainA, keyA, _ := strings.Cut(a.Name, "/")
		domainB, keyB, _ := strings.Cut(b.Name, "/")
		return cmp.Or(slices.Compare(reversed(domainA), reversed(domainB)), strings.Compare(keyA, keyB))
	})
	return all
}

func reversed(domain string) []string {
	parts := strings.Split(domain, ".")
	slices.Reverse(parts)
	return parts
}
