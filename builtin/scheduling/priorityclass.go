package scheduling

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

const (
	// systemPrefix is the reserved prefix of names.
	systemPrefix = "system-"
	// maxPriority is the largest value of a class that is not a system class.
	maxPriority = 1000000000
	// systemPriority is the smallest value of system classes.
	systemPriority = 2 * maxPriority
)

// SystemClasses returns the classes that always exist.
func SystemClasses() []*schedulingv1.PriorityClass {
	return []*schedulingv1.PriorityClass{{
		ObjectMeta:  metav1.ObjectMeta{Name: "system-node-critical"},
		Value:       systemPriority + 1000,
		Description: "Used for system critical pods that must not be moved from their current node.",
	}, {
		ObjectMeta:  metav1.ObjectMeta{Name: "system-cluster-critical"},
		Value:       systemPriority,
		Description: "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
	}}
}

// PriorityClasses defines priorityclasses.
func PriorityClasses() resource.Definition {
	doc := schedulingv1.PriorityClass{}.SwaggerDoc()
	return resource.Definition{
		Group:      schedulingv1.GroupName,
		Resource:   "priorityclasses",
		Singular:   "priorityclass",
		Kind:       "PriorityClass",
		ShortNames: []string{"pc"},
		StorageKey: "priorityclasses",
		Versions:   append([]resource.Version{resource.VersionOf[schedulingv1.PriorityClass, schedulingv1.PriorityClassList]("v1", defaultClass)}, oldPriorityClasses()...),
		Strategy: resource.Rules[*schedulingv1.PriorityClass]{
			// The generation stays 1: the value is immutable.
			Generation: func(_, _ *schedulingv1.PriorityClass) bool { return false },
			Begin: func(ctx context.Context, c, old *schedulingv1.PriorityClass) (func(resource.Outcome), error) {
				if c == nil && systemClass(old.Name) != nil && request.From(ctx).Verb == request.Delete {
					return nil, apierrors.NewForbidden(schedulingv1.Resource("priorityclasses"), old.Name,
						errors.New("this is a system priority class and cannot be deleted"))
				}
				return nil, nil
			},
			Validate: func(_ context.Context, c *schedulingv1.PriorityClass) field.ErrorList { return validateClass(c) },
			ValidateUpdate: func(_ context.Context, c, old *schedulingv1.PriorityClass) field.ErrorList {
				var errs field.ErrorList
				if c.Value != old.Value {
					errs = append(errs, field.Forbidden(field.NewPath("value"), "may not be changed in an update."))
				}
				return append(errs, apivalidation.ValidateImmutableField(c.PreemptionPolicy, old.PreemptionPolicy, field.NewPath("preemptionPolicy"))...)
			},
		}.Strategy(),
		Columns: []resource.Column{
			rules.NameColumn(),
			{Name: "Value", Type: "integer", Description: doc["value"]},
			{Name: "Global-Default", Type: "boolean", Description: doc["globalDefault"]},
			rules.AgeColumn(),
			{Name: "PreemptionPolicy", Type: "string", Description: doc["preemptionPolicy"]},
		},
		Cells: resource.CellsFunc(func(c *schedulingv1.PriorityClass) []any {
			policy := ""
			if c.PreemptionPolicy != nil {
				policy = string(*c.PreemptionPolicy)
			}
			return []any{c.Name, int64(c.Value), c.GlobalDefault, resource.Since(c.CreationTimestamp.Time), policy}
		}),
	}
}

func defaultClass(c *schedulingv1.PriorityClass) {
	if c.PreemptionPolicy == nil {
		c.PreemptionPolicy = new(corev1.PreemptLowerPriority)
	}
}

// oldPriorityClasses returns the older versions.
func oldPriorityClasses() []resource.Version {
	return []resource.Version{
		resource.AlikeVersion[schedulingv1beta1.PriorityClass, schedulingv1beta1.PriorityClassList](
			schedulingv1beta1.SchemeGroupVersion.WithKind("PriorityClass"), defaultClass, nil, nil),
	}
}

func systemClass(name string) *schedulingv1.PriorityClass {
	for _, c := range SystemClasses() {
		if c.Name == name {
			return c
		}
	}
	return nil
}

func validateClass(c *schedulingv1.PriorityClass) field.ErrorList {
	var errs field.ErrorList
	if strings.HasPrefix(c.Name, systemPrefix) {
		if problem := systemProblem(c); problem != "" {
			errs = append(errs, field.Forbidden(field.NewPath("metadata", "name"),
				fmt.Sprintf("priority class names with '%s' prefix are reserved for system use only. error: %s", systemPrefix, problem)))
		}
	} else if c.Value > maxPriority {
		errs = append(errs, field.Forbidden(field.NewPath("value"), fmt.Sprintf("maximum allowed value of a user defined priority is %v", maxPriority)))
	}
	if p := c.PreemptionPolicy; p != nil {
		path := field.NewPath("preemptionPolicy")
		switch *p {
		case corev1.PreemptLowerPriority, corev1.PreemptNever:
		case "":
			errs = append(errs, field.Required(path, ""))
		default:
			errs = append(errs, field.NotSupported(path, *p, []corev1.PreemptionPolicy{corev1.PreemptLowerPriority, corev1.PreemptNever}))
		}
	}
	return errs
}

// systemProblem returns how a class differs from the system class of its name.
func systemProblem(c *schedulingv1.PriorityClass) string {
	switch known := systemClass(c.Name); {
	case known == nil:
		return fmt.Sprintf("%v is not a known system priority class", c.Name)
	case c.Value != known.Value:
		return fmt.Sprintf("value of %v PriorityClass must be %v", c.Name, known.Value)
	case c.GlobalDefault:
		return fmt.Sprintf("globalDefault of %v PriorityClass must be %v", c.Name, false)
	}
	return ""
}
