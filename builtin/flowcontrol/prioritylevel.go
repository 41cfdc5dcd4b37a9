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

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

const (
	maxQueues = 10_000_000
	// maxHashBits bounds the entropy in bits that shuffle sharding may need.
	maxHashBits = 60
	// preserveZero is the v1beta3 annotation that marks an intended zero.
	preserveZero = "flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares"
)

// PriorityLevels defines prioritylevelconfigurations.
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
		Old: oldLevels(),
		Strategy: resource.Rules[*flowcontrolv1.PriorityLevelConfiguration]{
			NameOnUpdate: true,
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
			rules.NameColumn(),
			{Name: "Type", Type: "string", Description: flowcontrolv1.PriorityLevelConfigurationSpec{}.SwaggerDoc()["type"]},
			{Name: "NominalConcurrencyShares", Type: "string", Description: limited["nominalConcurrencyShares"]},
			{Name: "Queues", Type: "string", Description: queuing["queues"]},
			{Name: "HandSize", Type: "string", Description: queuing["handSize"]},
			{Name: "QueueLengthLimit", Type: "string", Description: queuing["queueLengthLimit"]},
			rules.AgeColumn(),
		},
		Cells: resource.CellsFunc(func(p *flowcontrolv1.PriorityLevelConfiguration) []any {
			none := any("<none>")
			cells := []any{p.Name, string(p.Spec.Type), none, none, none, none, resource.Since(p.CreationTimestamp.Time)}
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
	exempt, limited := path.Child("exempt"), path.Child("limited")
	switch {
	case isExempt:
		if spec.Limited != nil {
			errs = append(errs, resource.HandWritten(field.Forbidden(limited, "must be nil if the type is not Limited"))...)
		}
		if spec.Exempt != nil {
			errs = append(errs, validateShares(spec.Exempt.NominalConcurrencyShares, exempt)...)
			errs = append(errs, validateLendable(spec.Exempt.LendablePercent, exempt)...)
		}
	case isLimited:
		if spec.Exempt != nil {
			errs = append(errs, resource.HandWritten(field.Forbidden(exempt, "must be nil if the type is Limited"))...)
		}
		if spec.Limited == nil {
			errs = append(errs, resource.HandWritten(field.Required(limited, "must not be empty when type is Limited"))...)
		} else {
			errs = append(errs, validateLimited(spec.Limited, limited)...)
		}
	case spec.Type == "":
		errs = append(errs, resource.HandWritten(field.Required(path.Child("type"), ""))...)
	default:
		errs = append(errs, field.NotSupported(path.Child("type"), spec.Type,
			[]flowcontrolv1.PriorityLevelEnablement{flowcontrolv1.PriorityLevelEnablementExempt, flowcontrolv1.PriorityLevelEnablementLimited}))
	}
	if want, ok := MandatoryLevels()[p.Name]; ok {
		except := ""
		if want.Exempt != nil {
			want.Exempt, except = spec.Exempt, " except the 'spec.exempt' field"
		}
		if !equality.Semantic.DeepEqual(*spec, want) {
			errs = append(errs, field.Invalid(path, rules.GoForm(spec), fmt.Sprintf("spec of '%s'%s must equal the fixed value", p.Name, except)))
		}
	}
	errs = append(errs, validateLevelStatus(p)...)
	return append(errs, resource.BetaOnly(validateParts(spec, path)...)...)
}

// validateParts checks, as a rule declared in beta, that the fields of the type, and no others, are set.
func validateParts(spec *flowcontrolv1.PriorityLevelConfigurationSpec, path *field.Path) (errs field.ErrorList) {
	isExempt, isLimited := spec.Type == flowcontrolv1.PriorityLevelEnablementExempt, spec.Type == flowcontrolv1.PriorityLevelEnablementLimited
	if !isExempt && spec.Exempt != nil {
		errs = append(errs, field.Forbidden(path.Child("exempt"), ""))
	}
	switch limited := path.Child("limited"); {
	case isLimited && spec.Limited == nil:
		errs = append(errs, field.Required(limited, ""))
	case !isLimited && spec.Limited != nil:
		errs = append(errs, field.Forbidden(limited, ""))
	}
	if spec.Type == "" {
		errs = append(errs, field.Required(path.Child("type"), ""))
	}
	if spec.Limited == nil {
		return errs
	}
	r, path := &spec.Limited.LimitResponse, path.Child("limited", "limitResponse")
	switch queues := r.Type == flowcontrolv1.LimitResponseTypeQueue; {
	case queues && r.Queuing == nil:
		errs = append(errs, field.Required(path.Child("queuing"), ""))
	case !queues && r.Queuing != nil:
		errs = append(errs, field.Forbidden(path.Child("queuing"), ""))
	}
	if r.Type == "" {
		errs = append(errs, field.Required(path.Child("type"), ""))
	}
	return errs
}

func validateShares(shares *int32, path *field.Path) field.ErrorList {
	if shares != nil && *shares < 0 {
		return field.ErrorList{field.Invalid(path.Child("nominalConcurrencyShares"), *shares, "must be a non-negative integer")}
	}
	return nil
}

func validateLendable(percent *int32, path *field.Path) field.ErrorList {
	if percent != nil && (*percent < 0 || *percent > 100) {
		return field.ErrorList{field.Invalid(path.Child("lendablePercent"), *percent, "must be between 0 and 100, inclusive")}
	}
	return nil
}

func validateLimited(l *flowcontrolv1.LimitedPriorityLevelConfiguration, path *field.Path) field.ErrorList {
	errs := validateShares(l.NominalConcurrencyShares, path)
	known := []flowcontrolv1.LimitResponseType{flowcontrolv1.LimitResponseTypeQueue, flowcontrolv1.LimitResponseTypeReject}
	switch r, path := &l.LimitResponse, path.Child("limitResponse"); {
	case r.Type == "":
		errs = append(errs, resource.HandWritten(field.Required(path.Child("type"), ""))...)
	case !slices.Contains(known, r.Type):
		errs = append(errs, field.NotSupported(path.Child("type"), r.Type, known))
	case r.Type == flowcontrolv1.LimitResponseTypeReject && r.Queuing != nil:
		errs = append(errs, resource.HandWritten(field.Forbidden(path.Child("queuing"), "must be nil if limited.limitResponse.type is not Limited"))...)
	case r.Type == flowcontrolv1.LimitResponseTypeQueue && r.Queuing == nil:
		errs = append(errs, resource.HandWritten(field.Required(path.Child("queuing"), "must not be empty if limited.limitResponse.type is Limited"))...)
	case r.Type == flowcontrolv1.LimitResponseTypeQueue:
		errs = append(errs, validateQueuing(r.Queuing, path.Child("queuing"))...)
	}
	errs = append(errs, validateLendable(l.LendablePercent, path)...)
	if b := l.BorrowingLimitPercent; b != nil && *b < 0 {
		errs = append(errs, field.Invalid(path.Child("borrowingLimitPercent"), *b, "if specified, must be a non-negative integer"))
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
