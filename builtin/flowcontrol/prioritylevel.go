package flowcontrol

import (
	"context"
	"fmt"
	"math"
	"slices"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/core"
	"github.com/apikeel/kelson/resource"
)

const (
	maxQueues = 10_000_000
	// maxHashBits are the bits of a hash from which a hand of queues can be dealt
	// evenly.
	maxHashBits = 60
	// preserveZero is how an older version said that a number is 0 on purpose.
	preserveZero = "flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares"
)

// PriorityLevels share out what the server can do at a time.
func PriorityLevels() resource.Definition {
	limited, queuing := flowcontrolv1.LimitedPriorityLevelConfiguration{}.SwaggerDoc(), flowcontrolv1.QueuingConfiguration{}.SwaggerDoc()
	return resource.Definition{
		Group:      flowcontrolv1.GroupName,
		Resource:   "prioritylevelconfigurations",
		Kind:       "PriorityLevelConfiguration",
		StorageKey: "prioritylevelconfigurations",
		Versions: []resource.Version{
			resource.VersionOf[flowcontrolv1.PriorityLevelConfiguration, flowcontrolv1.PriorityLevelConfigurationList]("v1", defaultLevel),
		},
		Strategy: resource.Rules[*flowcontrolv1.PriorityLevelConfiguration]{
			PrepareCreate: func(_ context.Context, p *flowcontrolv1.PriorityLevelConfiguration) {
				p.Status = flowcontrolv1.PriorityLevelConfigurationStatus{}
			},
			PrepareUpdate: func(_ context.Context, p, old *flowcontrolv1.PriorityLevelConfiguration) { p.Status = old.Status },
			Validate: func(_ context.Context, p *flowcontrolv1.PriorityLevelConfiguration) field.ErrorList {
				return validateLevel(p)
			},
			Generation: func(p, old *flowcontrolv1.PriorityLevelConfiguration) bool {
				return !equality.Semantic.DeepEqual(p.Spec, old.Spec)
			},
		}.Strategy(),
		Subresources: []resource.Subresource{statusPart(
			func(p *flowcontrolv1.PriorityLevelConfiguration) *metav1.ObjectMeta { return &p.ObjectMeta },
			func(p, old *flowcontrolv1.PriorityLevelConfiguration) { p.Spec = old.Spec },
			validateLevelStatus,
		)},
		Columns: []resource.Column{
			core.NameColumn(),
			{Name: "Type", Type: "string", Description: flowcontrolv1.PriorityLevelConfigurationSpec{}.SwaggerDoc()["type"]},
			{Name: "NominalConcurrencyShares", Type: "string", Description: limited["nominalConcurrencyShares"]},
			{Name: "Queues", Type: "string", Description: queuing["queues"]},
			{Name: "HandSize", Type: "string", Description: queuing["handSize"]},
			{Name: "QueueLengthLimit", Type: "string", Description: queuing["queueLengthLimit"]},
			core.AgeColumn(),
		},
		Cells: resource.CellsFunc(func(p *flowcontrolv1.PriorityLevelConfiguration) []any {
			none := any("<none>")
			cells := []any{p.Name, string(p.Spec.Type), none, none, none, none, core.Since(p.CreationTimestamp.Time)}
			if l := p.Spec.Limited; l != nil {
				if l.NominalConcurrencyShares != nil {
					cells[2] = int64(*l.NominalConcurrencyShares)
				}
				if q := l.LimitResponse.Queuing; q != nil {
					cells[3], cells[4], cells[5] = int64(q.Queues), int64(q.HandSize), int64(q.QueueLengthLimit)
				}
			}
			return cells
		}),
	}
}

func defaultLevel(p *flowcontrolv1.PriorityLevelConfiguration) {
	pointer := func(field **int32, value int32) {
		if *field == nil {
			*field = &value
		}
	}
	number := func(field *int32, value int32) {
		if *field == 0 {
			*field = value
		}
	}
	if e := p.Spec.Exempt; e != nil {
		pointer(&e.NominalConcurrencyShares, 0)
		pointer(&e.LendablePercent, 0)
	}
	if l := p.Spec.Limited; l != nil {
		pointer(&l.NominalConcurrencyShares, 30)
		pointer(&l.LendablePercent, 0)
		if q := l.LimitResponse.Queuing; q != nil {
			number(&q.HandSize, 8)
			number(&q.Queues, 64)
			number(&q.QueueLengthLimit, 50)
		}
	}
}

func validateLevelStatus(p *flowcontrolv1.PriorityLevelConfiguration) field.ErrorList {
	return validateConditionTypes(p.Status.Conditions, func(c flowcontrolv1.PriorityLevelConfigurationCondition) flowcontrolv1.PriorityLevelConfigurationConditionType {
		return c.Type
	})
}

func validateLevel(p *flowcontrolv1.PriorityLevelConfiguration) field.ErrorList {
	var errs field.ErrorList
	if _, ok := p.Annotations[preserveZero]; ok {
		errs = append(errs, field.Forbidden(field.NewPath("metadata", "annotations"), fmt.Sprintf("annotation '%s' is forbidden", preserveZero)))
	}
	spec, path := &p.Spec, field.NewPath("spec")
	isExempt, isLimited := spec.Type == flowcontrolv1.PriorityLevelEnablementExempt, spec.Type == flowcontrolv1.PriorityLevelEnablementLimited
	if isExempt != (p.Name == flowcontrolv1.PriorityLevelConfigurationNameExempt) {
		errs = append(errs, field.Invalid(path.Child("type"), spec.Type, "must be 'Exempt' if and only if `name` is 'exempt'"))
	}
	if !isExempt && !isLimited {
		errs = append(errs, unknownType(spec.Type, path.Child("type"), flowcontrolv1.PriorityLevelEnablementExempt, flowcontrolv1.PriorityLevelEnablementLimited))
	}
	switch {
	case isExempt && spec.Exempt != nil:
		errs = append(errs, validateShares(spec.Exempt.NominalConcurrencyShares, spec.Exempt.LendablePercent, path.Child("exempt"))...)
	case !isExempt && spec.Exempt != nil:
		errs = append(errs, field.Forbidden(path.Child("exempt"), ""))
	}
	switch {
	case isLimited && spec.Limited == nil:
		errs = append(errs, field.Required(path.Child("limited"), ""))
	case isLimited:
		errs = append(errs, validateLimited(spec.Limited, path.Child("limited"))...)
	case spec.Limited != nil:
		errs = append(errs, field.Forbidden(path.Child("limited"), ""))
	}
	if want, ok := MandatoryLevels()[p.Name]; ok {
		except := ""
		if want.Exempt != nil {
			want.Exempt, except = spec.Exempt, " except the 'spec.exempt' field"
		}
		if !equality.Semantic.DeepEqual(*spec, want) {
			errs = append(errs, field.Invalid(path, core.GoForm(spec), fmt.Sprintf("spec of '%s'%s must equal the fixed value", p.Name, except)))
		}
	}
	return append(errs, validateLevelStatus(p)...)
}

// unknownType is the error of a type that is not one of those, which are sorted.
func unknownType[T ~string](value T, path *field.Path, known ...T) *field.Error {
	if value == "" {
		return field.Required(path, "")
	}
	return field.NotSupported(path, value, known)
}

func validateShares(shares, lendable *int32, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if shares != nil && *shares < 0 {
		errs = append(errs, field.Invalid(path.Child("nominalConcurrencyShares"), *shares, "must be a non-negative integer"))
	}
	if lendable != nil && (*lendable < 0 || *lendable > 100) {
		errs = append(errs, field.Invalid(path.Child("lendablePercent"), *lendable, "must be between 0 and 100, inclusive"))
	}
	return errs
}

func validateLimited(l *flowcontrolv1.LimitedPriorityLevelConfiguration, path *field.Path) field.ErrorList {
	errs := validateShares(l.NominalConcurrencyShares, l.LendablePercent, path)
	if b := l.BorrowingLimitPercent; b != nil && *b < 0 {
		errs = append(errs, field.Invalid(path.Child("borrowingLimitPercent"), *b, "if specified, must be a non-negative integer"))
	}
	r, path := &l.LimitResponse, path.Child("limitResponse")
	known := []flowcontrolv1.LimitResponseType{flowcontrolv1.LimitResponseTypeQueue, flowcontrolv1.LimitResponseTypeReject}
	if !slices.Contains(known, r.Type) {
		errs = append(errs, unknownType(r.Type, path.Child("type"), known...))
	}
	path = path.Child("queuing")
	switch queues := r.Type == flowcontrolv1.LimitResponseTypeQueue; {
	case queues && r.Queuing == nil:
		errs = append(errs, field.Required(path, ""))
	case queues:
		errs = append(errs, validateQueuing(r.Queuing, path)...)
	case r.Queuing != nil:
		errs = append(errs, field.Forbidden(path, ""))
	}
	return errs
}

func validateQueuing(q *flowcontrolv1.QueuingConfiguration, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if q.QueueLengthLimit <= 0 {
		errs = append(errs, field.Invalid(path.Child("queueLengthLimit"), q.QueueLengthLimit, "must be positive"))
	}
	switch {
	case q.Queues <= 0:
		errs = append(errs, field.Invalid(path.Child("queues"), q.Queues, "must be positive"))
	case q.Queues > maxQueues:
		errs = append(errs, field.Invalid(path.Child("queues"), q.Queues, fmt.Sprintf("must not be greater than %d", maxQueues)))
	}
	path = path.Child("handSize")
	switch {
	case q.HandSize <= 0:
		errs = append(errs, field.Invalid(path, q.HandSize, "must be positive"))
	case q.HandSize > q.Queues:
		errs = append(errs, field.Invalid(path, q.HandSize, fmt.Sprintf("should not be greater than queues (%d)", q.Queues)))
	case math.Ceil(math.Log2(float64(q.Queues))*float64(q.HandSize)) > maxHashBits:
		errs = append(errs, field.Invalid(path, q.HandSize,
			fmt.Sprintf("required entropy bits of deckSize %d and handSize %d should not be greater than %d", q.Queues, q.HandSize, maxHashBits)))
	}
	return errs
}
