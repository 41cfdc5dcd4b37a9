// Package lifecycle is the API group lifecycle.k8s.io: eviction requests and the evictions that
// responders carry out. Start at Group; responders.go validates the status.
package lifecycle

import (
	"context"
	"fmt"
	"sync"

	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/declared"
	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// EvictionRequestAPI is the feature gate of the group.
const EvictionRequestAPI = "EvictionRequestAPI"

// Group returns the group.
func Group() resource.Group {
	return resource.Group{Name: lifecyclev1alpha1.GroupName, Resources: []resource.Definition{Evictions(), Requests()}}
}

// parsed returns the declared rules, parsed on first use.
func parsed() func() declared.Rules {
	return sync.OnceValue(func() declared.Rules { return declared.Parse(declarations) })
}

const declarations = `
EvictionRequestSpec
  target immutable
  requester immutable required reserved=.k8s.io,.kubernetes.io prefixed-label-key
  intent required enum=Eviction,Withdrawn
EvictionRequestTarget oneof=pod
  pod optional
EvictionRequestPodReference
  name required long-name
  uid required uuid
EvictionRequestStatus
  conditions max-items=100 optional
  observedGeneration optional no-unset min=1 grows
EvictionSpec
  target immutable
EvictionTarget oneof=pod
  pod optional
EvictionPodReference
  name required long-name
  uid required uuid
EvictionStatus
  conditions max-items=100 optional
  observedGeneration optional no-unset min=1 grows
  requesters max-items=100 optional key=name
  targetResponders max-items=11 optional key=name
  responders max-items=11 optional key=name
Requester
  name required prefixed-label-key
  intent required enum=Eviction,Withdrawn
TargetResponder
  name required prefixed-label-key
  priority required no-unset no-modify max=100000 min=0
  state required enum=Active,Canceled,Completed,Inactive,Interrupted
ResponderStatus
  name required prefixed-label-key
  startTime optional no-unset no-modify
  heartbeatTime optional
  expectedCompletionTime optional
  completionTime optional no-unset no-modify
  message optional max-length=4000
`

type evictionRequest = lifecyclev1alpha1.EvictionRequest

// validateName validates the name of a new object. Of an empty one, only the rule that is
// declared in beta says that it has the wrong format.
func validateName(name string) field.ErrorList {
	if name != "" {
		return rules.ValidateLongName(name)
	}
	return resource.BetaOnly(rules.Invalid(field.NewPath("metadata", "name"), name, content.IsDNS1123Subdomain(name))...)
}

// Requests defines evictionrequests.
func Requests() resource.Definition {
	declaredRules := parsed()
	spec, statusPath := field.NewPath("spec"), field.NewPath("status")
	status := resource.Rules[*evictionRequest]{
		RequireVersion: true,
		PrepareUpdate: func(_ context.Context, r, old *evictionRequest) {
			r.Spec = old.Spec
			metav1.ResetObjectMetaForStatus(&r.ObjectMeta, &old.ObjectMeta)
		},
		ValidateUpdate: func(ctx context.Context, r, old *evictionRequest) field.ErrorList {
			errs := metavalidation.ValidateConditions(r.Status.Conditions, statusPath.Child("conditions"))
			return append(errs, declaredRules().Judge(ctx, &r.Status, &old.Status, statusPath)...)
		},
	}.Strategy()
	status.Resets = []string{"spec", "metadata"}
	doc := lifecyclev1alpha1.EvictionRequestSpec{}.SwaggerDoc()
	return resource.Definition{
		Group:      lifecyclev1alpha1.GroupName,
		Resource:   "evictionrequests",
		Gate:       EvictionRequestAPI,
		Kind:       "EvictionRequest",
		Namespaced: true,
		StorageKey: "evictionrequests",
		Versions:   off(resource.VersionOf[evictionRequest, lifecyclev1alpha1.EvictionRequestList]("v1alpha1", nil)),
		Strategy: resource.Rules[*evictionRequest]{
			ValidateName:   rules.AnyName,
			RequireVersion: true,
			PrepareCreate:  func(_ context.Context, r *evictionRequest) { r.Status = lifecyclev1alpha1.EvictionRequestStatus{} },
			PrepareUpdate:  func(_ context.Context, r, old *evictionRequest) { r.Status = old.Status },
			Generation:     func(r, old *evictionRequest) bool { return !equality.Semantic.DeepEqual(r.Spec, old.Spec) },
			Validate: func(ctx context.Context, r *evictionRequest) field.ErrorList {
				return append(validateName(r.Name), declaredRules().Judge(ctx, &r.Spec, (*lifecyclev1alpha1.EvictionRequestSpec)(nil), spec)...)
			},
			ValidateUpdate: func(ctx context.Context, r, old *evictionRequest) field.ErrorList {
				return declaredRules().Judge(ctx, &r.Spec, &old.Spec, spec)
			},
		}.Strategy(),
		Subresources: []resource.Subresource{{Name: "status", Part: &status}},
		Columns: []resource.Column{
			rules.NameColumn(),
			{Name: "Target", Type: "string", Description: doc["target"]},
			{Name: "Target Type", Type: "string", Description: doc["target"]},
			{Name: "Status", Type: "string", Description: lifecyclev1alpha1.EvictionRequestStatus{}.SwaggerDoc()["conditions"]},
			{Name: "Requester", Type: "string", Description: doc["requester"]},
			{Name: "Intent", Type: "string", Description: doc["intent"]},
			rules.AgeColumn(),
		},
		Cells: resource.CellsFunc(func(r *evictionRequest) []any {
			target, kind := "<unset>", "<unset>"
			if pod := r.Spec.Target.Pod; pod != nil {
				target, kind = pod.Name, "Pod"
			}
			return []any{r.Name, target, kind, state(r.Status.ObservedGeneration, r.Status.Conditions),
				r.Spec.Requester, string(r.Spec.Intent), resource.Since(r.CreationTimestamp.Time)}
		}),
	}
}

// off returns the only version of a kind, turned off by default.
func off(v resource.Version) []resource.Version {
	v.Off = true
	return []resource.Version{v}
}

// state returns the table cell with the progress of an eviction.
func state(observed *int64, conditions []metav1.Condition) string {
	for _, kind := range []lifecyclev1alpha1.EvictionConditionType{lifecyclev1alpha1.EvictionConditionTargetEvicted, lifecyclev1alpha1.EvictionConditionFailed} {
		if c := meta.FindStatusCondition(conditions, string(kind)); c != nil && c.Status == metav1.ConditionTrue {
			return fmt.Sprintf("%s (%s)", c.Type, c.Reason)
		}
	}
	if observed != nil && *observed > 0 {
		return "Progressing"
	}
	return "Pending"
}
