package lifecycle

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

type eviction = lifecyclev1alpha1.Eviction

// Evictions defines evictions: the progress of the responders to eviction requests.
func Evictions() resource.Definition {
	declaredRules := parsed()
	spec, statusPath := field.NewPath("spec"), field.NewPath("status")
	status := resource.Rules[*eviction]{
		RequireVersion: true,
		PrepareUpdate: func(_ context.Context, e, old *eviction) {
			e.Spec = old.Spec
			metav1.ResetObjectMetaForStatus(&e.ObjectMeta, &old.ObjectMeta)
		},
		ValidateUpdate: func(ctx context.Context, e, old *eviction) field.ErrorList {
			errs := validateStatus(&e.Status, &old.Status, statusPath, request.From(ctx).Received)
			return append(errs, declaredRules().Judge(ctx, &e.Status, &old.Status, statusPath)...)
		},
	}.Strategy()
	status.Resets = []string{"spec", "metadata"}
	doc, statusDoc := lifecyclev1alpha1.EvictionSpec{}.SwaggerDoc(), lifecyclev1alpha1.EvictionStatus{}.SwaggerDoc()
	responder := lifecyclev1alpha1.ResponderStatus{}.SwaggerDoc()
	return resource.Definition{
		Group:      lifecyclev1alpha1.GroupName,
		Resource:   "evictions",
		Gate:       EvictionRequestAPI,
		Kind:       "Eviction",
		Namespaced: true,
		StorageKey: "evictions",
		Versions:   off(resource.VersionOf[eviction, lifecyclev1alpha1.EvictionList]("v1alpha1", nil)),
		Strategy: resource.Rules[*eviction]{
			ValidateName:   rules.AnyName,
			RequireVersion: true,
			PrepareCreate:  func(_ context.Context, e *eviction) { e.Status = lifecyclev1alpha1.EvictionStatus{} },
			PrepareUpdate:  func(_ context.Context, e, old *eviction) { e.Status = old.Status },
			Generation:     func(e, old *eviction) bool { return !equality.Semantic.DeepEqual(e.Spec, old.Spec) },
			Validate: func(ctx context.Context, e *eviction) field.ErrorList {
				return append(validateName(e.Name), declaredRules().Judge(ctx, &e.Spec, (*lifecyclev1alpha1.EvictionSpec)(nil), spec)...)
			},
			ValidateUpdate: func(ctx context.Context, e, old *eviction) field.ErrorList {
				return declaredRules().Judge(ctx, &e.Spec, &old.Spec, spec)
			},
		}.Strategy(),
		Subresources: []resource.Subresource{{Name: "status", Part: &status}},
		Columns: []resource.Column{
			rules.NameColumn(),
			{Name: "Target", Type: "string", Description: doc["target"]},
			{Name: "Target Type", Type: "string", Description: doc["target"]},
			{Name: "Status", Type: "string", Description: statusDoc["conditions"]},
			{Name: "Active Responder", Type: "string", Description: lifecyclev1alpha1.TargetResponder{}.SwaggerDoc()["state"]},
			{Name: "Responder Status", Type: "string", Description: responder[""]},
			{Name: "Responder Expected Finish", Type: "string", Description: responder["expectedCompletionTime"]},
			{Name: "Requesters", Type: "string", Description: statusDoc["requesters"]},
			rules.AgeColumn(),
			{Name: "Responder Heartbeat", Type: "string", Priority: 1, Description: responder["heartbeatTime"]},
			{Name: "Responder Status Message", Type: "string", Priority: 1, Description: responder["message"]},
		},
		Cells: resource.CellsFunc(evictionCells),
	}
}

func evictionCells(e *eviction) []any {
	target, kind := "<unset>", "<unset>"
	if pod := e.Spec.Target.Pod; pod != nil {
		target, kind = pod.Name, "Pod"
	}
	// The active responder, or the last one.
	begun, active, last := 0, -1, -1
	for i, t := range e.Status.TargetResponders {
		switch t.State {
		case lifecyclev1alpha1.ResponderStateCanceled, lifecyclev1alpha1.ResponderStateInterrupted, lifecyclev1alpha1.ResponderStateCompleted:
			begun++
			last = i
		case lifecyclev1alpha1.ResponderStateActive:
			begun++
			active = i
		}
	}
	if active < 0 {
		active = last
	}
	name, progress, finish, heartbeat, message := "<unset>", "<unset>", "<unknown>", "<unset>", "<unset>"
	if active >= 0 {
		t := &e.Status.TargetResponders[active]
		name = t.Name
		i := slices.IndexFunc(e.Status.Responders, func(r lifecyclev1alpha1.ResponderStatus) bool { return r.Name == name })
		if i >= 0 {
			r := &e.Status.Responders[i]
			progress, finish = responderCells(t.State, r)
			if r.HeartbeatTime != nil {
				heartbeat = ago(r.HeartbeatTime)
			}
			if r.Message != nil && strings.TrimSpace(*r.Message) != "" {
				message = strings.TrimSpace(*r.Message)
			}
		}
	}
	return []any{e.Name, target, kind, state(e.Status.ObservedGeneration, e.Status.Conditions),
		fmt.Sprintf("%s (%d/%d)", name, begun, len(e.Status.TargetResponders)), progress, finish,
		requesters(e.Status.Requesters), resource.Since(e.CreationTimestamp.Time), heartbeat, message}
}

func ago(t *metav1.Time) string { return duration.HumanDuration(time.Since(t.Time)) + " ago" }

func responderCells(state lifecyclev1alpha1.ResponderStateType, r *lifecyclev1alpha1.ResponderStatus) (progress, finish string) {
	progress, finish = string(state), "<unknown>"
	switch state {
	case lifecyclev1alpha1.ResponderStateActive:
		if r.StartTime == nil {
			break
		}
		progress = "Started (" + ago(r.StartTime) + ")"
		if at := r.ExpectedCompletionTime; at != nil && at.After(time.Now()) {
			finish = "in " + duration.HumanDuration(time.Until(at.Time))
		} else if at != nil {
			finish = ago(at)
		}
	case lifecyclev1alpha1.ResponderStateCompleted:
		if r.CompletionTime != nil {
			progress += " (" + ago(r.CompletionTime) + ")"
		}
		finish = "-"
	case lifecyclev1alpha1.ResponderStateCanceled, lifecyclev1alpha1.ResponderStateInterrupted:
		finish = "-"
	}
	return progress, finish
}

// requesters returns the table cell with those who still request the eviction.
func requesters(all []lifecyclev1alpha1.Requester) string {
	var names []string
	for _, r := range all {
		if r.Intent != lifecyclev1alpha1.RequesterIntentWithdrawn {
			names = append(names, r.Name)
		}
	}
	slices.Sort(names)
	switch {
	case len(all) == 0:
		return "<none>"
	case len(names) == 0:
		return "<withdrawn>"
	case len(names) > 1:
		return fmt.Sprintf("%s + %d more...", names[0], len(names)-1)
	}
	return names[0]
}
