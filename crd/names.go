package crd

import (
	"fmt"
	"slices"
	"strings"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/crd/rules"
)

// taken is the names that other definitions of a group have.
type taken struct {
	resources map[string]bool // plurals, singulars and short names
	kinds     map[string]bool // kinds and kinds of lists
}

func newTaken() *taken { return &taken{resources: map[string]bool{}, kinds: map[string]bool{}} }

// take marks the names that a definition has.
func (t *taken) take(names *apiextensions.CustomResourceDefinitionNames) {
	for _, n := range append([]string{names.Plural, names.Singular}, names.ShortNames...) {
		if n != "" {
			t.resources[n] = true
		}
	}
	for _, n := range []string{names.Kind, names.ListKind} {
		if n != "" {
			t.kinds[n] = true
		}
	}
}

// decide says which names a definition gets, and which of them others have.
// What it has had it keeps until the new name is free.
func (t *taken) decide(crd *apiextensions.CustomResourceDefinition) (apiextensions.CustomResourceDefinitionNames, apiextensions.CustomResourceDefinitionCondition) {
	asked, accepted := &crd.Spec.Names, *crd.Status.AcceptedNames.DeepCopy()
	result := apiextensions.CustomResourceDefinitionCondition{Type: apiextensions.NamesAccepted, Status: apiextensions.ConditionUnknown}
	refuse := func(reason, message string) {
		result.Status, result.Reason, result.Message = apiextensions.ConditionFalse, reason, message
	}
	one := func(set map[string]bool, name string, into *string, reason string) {
		switch {
		case name == "" || name == *into:
			*into = name
		case set[name]:
			refuse(reason, fmt.Sprintf("%q is already in use", name))
		default:
			*into = name
		}
	}
	one(t.resources, asked.Plural, &accepted.Plural, "PluralConflict")
	one(t.resources, asked.Singular, &accepted.Singular, "SingularConflict")
	if !slices.Equal(asked.ShortNames, accepted.ShortNames) {
		var clashes []string
		for _, n := range asked.ShortNames {
			if t.resources[n] && !slices.Contains(accepted.ShortNames, n) {
				clashes = append(clashes, fmt.Sprintf("%q is already in use", n))
			}
		}
		if len(clashes) > 0 {
			text := clashes[0]
			if len(clashes) > 1 {
				text = "[" + strings.Join(clashes, ", ") + "]"
			}
			refuse("ShortNamesConflict", text)
		} else {
			accepted.ShortNames = asked.ShortNames
		}
	}
	one(t.kinds, asked.Kind, &accepted.Kind, "KindConflict")
	one(t.kinds, asked.ListKind, &accepted.ListKind, "ListKindConflict")
	accepted.Categories = asked.Categories
	if result.Status == apiextensions.ConditionUnknown {
		result.Status, result.Reason, result.Message = apiextensions.ConditionTrue, "NoConflicts", "no conflicts found"
	}
	return accepted, result
}

// settle brings the status of a definition up to date, and reports whether it
// may be served.
func (t *taken) settle(crd *apiextensions.CustomResourceDefinition, now metav1.Time) (serve bool) {
	accepted, named := t.decide(crd)
	crd.Status.AcceptedNames = accepted
	setCondition(&crd.Status, named, now)
	settleApproval(crd, now)
	switch established := condition(&crd.Status, apiextensions.Established); {
	case established != nil && established.Status == apiextensions.ConditionTrue:
	case named.Status == apiextensions.ConditionTrue:
		setCondition(&crd.Status, apiextensions.CustomResourceDefinitionCondition{
			Type: apiextensions.Established, Status: apiextensions.ConditionTrue, Reason: "InitialNamesAccepted",
			Message: "the initial names have been accepted",
		}, now)
	default:
		setCondition(&crd.Status, apiextensions.CustomResourceDefinitionCondition{
			Type: apiextensions.Established, Status: apiextensions.ConditionFalse, Reason: "NotAccepted",
			Message: "not all names are accepted",
		}, now)
	}
	return isTrue(&crd.Status, apiextensions.Established)
}

// settleApproval says whether a definition in a group of the Kubernetes
// community has been approved there.
func settleApproval(crd *apiextensions.CustomResourceDefinition, now metav1.Time) {
	if !rules.Protected(crd.Spec.Group) {
		dropCondition(&crd.Status, apiextensions.KubernetesAPIApprovalPolicyConformant)
		return
	}
	c := apiextensions.CustomResourceDefinitionCondition{Type: apiextensions.KubernetesAPIApprovalPolicyConformant}
	state, text := rules.ApprovalOf(crd.Annotations)
	c.Message = text
	switch state {
	case rules.Approved:
		c.Status, c.Reason = apiextensions.ConditionTrue, "ApprovedAnnotation"
	case rules.Unapproved:
		c.Status, c.Reason = apiextensions.ConditionFalse, "UnapprovedAnnotation"
	case rules.ApprovalMissing:
		c.Status, c.Reason = apiextensions.ConditionFalse, "MissingAnnotation"
	default:
		c.Status, c.Reason = apiextensions.ConditionFalse, "InvalidAnnotation"
	}
	setCondition(&crd.Status, c, now)
}
