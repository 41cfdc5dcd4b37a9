package dra

import (
	"context"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	resourcev1alpha3 "k8s.io/api/resource/v1alpha3"
	resourcev1beta2 "k8s.io/api/resource/v1beta2"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

const taintRuleKind = "DeviceTaintRule"

// taintRule is the storage version of the kind.
type taintRule = resourcev1beta2.DeviceTaintRule

// TaintRules defines devicetaintrules.
func TaintRules() resource.Definition {
	status := resource.Rules[*taintRule]{
		RequireVersion: true,
		PrepareUpdate: func(_ context.Context, r, old *taintRule) {
			r.Spec = old.Spec
			metav1.ResetObjectMetaForStatus(&r.ObjectMeta, &old.ObjectMeta)
		},
		ValidateUpdate: func(_ context.Context, r, _ *taintRule) field.ErrorList {
			path := field.NewPath("status", "conditions")
			errs := metavalidation.ValidateConditions(r.Status.Conditions, path)
			if n := len(r.Status.Conditions); n > resourcev1.DeviceTaintRuleStatusMaxConditions {
				errs = append(errs, field.TooMany(path, n, resourcev1.DeviceTaintRuleStatusMaxConditions))
			}
			return errs
		},
	}.Strategy()
	status.Resets = []string{"metadata", "spec"}
	taint := resourcev1.DeviceTaint{}.SwaggerDoc()
	return resource.Definition{
		Group:      resourcev1.GroupName,
		Resource:   "devicetaintrules",
		Kind:       taintRuleKind,
		StorageKey: "devicetaintrules",
		Hub:        "v1beta2",
		Versions:   taintRuleVersions(),
		Strategy: resource.Rules[*taintRule]{
			RequireVersion: true,
			PrepareCreate:  func(_ context.Context, r *taintRule) { r.Status = resourcev1beta2.DeviceTaintRuleStatus{} },
			PrepareUpdate: func(ctx context.Context, r, old *taintRule) {
				r.Status = old.Status
				// A changed effect resets timeAdded, unless the client changes that too.
				if t, was := &r.Spec.Taint, &old.Spec.Taint; t.Effect != was.Effect && t.TimeAdded.Equal(was.TimeAdded) {
					t.TimeAdded = seconds(request.From(ctx).Received)
				}
			},
			Validate: func(_ context.Context, r *taintRule) field.ErrorList { return validateTaintRule(&r.Spec, nil) },
			ValidateUpdate: func(_ context.Context, r, old *taintRule) field.ErrorList {
				return validateTaintRule(&r.Spec, &old.Spec)
			},
			Generation: func(r, old *taintRule) bool { return !equality.Semantic.DeepEqual(r.Spec, old.Spec) },
		}.Strategy(),
		Subresources: []resource.Subresource{{Name: "status", NoTable: true, Part: &status}},
		Columns: []resource.Column{
			rules.NameColumn(),
			{Name: "Key", Type: "string", Description: taint["key"]},
			{Name: "Value", Type: "string", Description: taint["value"]},
			{Name: "Effect", Type: "string", Description: taint["effect"]},
			{Name: "TimeAdded", Type: "string", Description: taint["timeAdded"]},
			rules.AgeColumn(),
		},
		Cells: resource.CellsFunc(func(r *taintRule) []any {
			added := any("")
			if t := r.Spec.Taint.TimeAdded; t != nil {
				added = resource.Since(t.Time)
			}
			return []any{r.Name, r.Spec.Taint.Key, r.Spec.Taint.Value, string(r.Spec.Taint.Effect), added, resource.Since(r.CreationTimestamp.Time)}
		}),
	}
}

// defaultTime returns the time for defaulting, which has no request.
func defaultTime() *metav1.Time { return seconds(time.Now()) }

// seconds truncates a time to the precision of storage.
func seconds(t time.Time) *metav1.Time { return new(metav1.NewTime(t.Truncate(time.Second))) }

// taintRuleVersions returns the served version and older ones, of which one is the storage
// version. They have the same fields.
func taintRuleVersions() []resource.Version {
	added := func(r *taintRule) {
		if t := &r.Spec.Taint; t.TimeAdded == nil {
			t.TimeAdded = defaultTime()
		}
	}
	v1 := resource.AlikeVersion[resourcev1.DeviceTaintRule, resourcev1.DeviceTaintRuleList](resourcev1.SchemeGroupVersion.WithKind(taintRuleKind), added, nil, nil)
	v1beta2 := resource.VersionOf[taintRule, resourcev1beta2.DeviceTaintRuleList]("v1beta2", added)
	v1beta2.Off = true
	v1beta2.Deprecation = resource.Deprecation(new(taintRule), resourcev1beta2.SchemeGroupVersion.WithKind(taintRuleKind))
	v1alpha3 := resource.AlikeVersion[resourcev1alpha3.DeviceTaintRule, resourcev1alpha3.DeviceTaintRuleList](resourcev1alpha3.SchemeGroupVersion.WithKind(taintRuleKind), added, nil, nil)
	// Clients of these versions rely on the older delete and update behaviour.
	for _, old := range []*resource.Version{&v1beta2, &v1alpha3} {
		old.ReturnDeleted, old.AnyRevision = true, true
	}
	return []resource.Version{v1, v1beta2, v1alpha3}
}

func taintOf(spec *resourcev1beta2.DeviceTaintRuleSpec) *resourcev1.DeviceTaint {
	t := &spec.Taint
	return &resourcev1.DeviceTaint{Key: t.Key, Value: t.Value, Effect: resourcev1.DeviceTaintEffect(t.Effect), TimeAdded: t.TimeAdded}
}

// validateTaintRule validates a rule; old is nil on create.
func validateTaintRule(spec, old *resourcev1beta2.DeviceTaintRuleSpec) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("spec")
	if s := spec.DeviceSelector; s != nil {
		path := path.Child("deviceSelector")
		if s.Driver != nil {
			errs = append(errs, validateDriver(*s.Driver, path.Child("driver"))...)
		}
		if s.Pool != nil {
			errs = append(errs, validatePool(*s.Pool, path.Child("pool"))...)
		}
		if s.Device != nil {
			errs = append(errs, validateLabelName(*s.Device, path.Child("device"))...)
		}
	}
	var was *resourcev1.DeviceTaint
	if old != nil {
		was = taintOf(old)
	}
	return append(errs, validateTaint(taintOf(spec), was, path.Child("taint"))...)
}
