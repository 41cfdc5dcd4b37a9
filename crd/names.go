package crd

import (
	"fmt"
	"slices"
	"strings"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/crd/rules"
)

// taken are the names that other definitions of a group have. A definition checks a few
// names once, so a linear search is enough.
type taken []*apiextensions.CustomResourceDefinitionNames

// resource reports whether a name is the plural, singular or short name of another
// definition.
func (t taken) resource(name string) bool {
	return slices.ContainsFunc(t, func(n *apiextensions.CustomResourceDefinitionNames) bool {
		return n.Plural == name || n.Singular == name || slices.Contains(n.ShortNames, name)
	})
}

// kind reports whether a name is the kind or list kind of another definition.
func (t taken) kind(name string) bool {
	return slices.ContainsFunc(t, func(n *apiextensions.CustomResourceDefinitionNames) bool { return n.Kind == name || n.ListKind == name })
}

// decide returns the accepted names of a definition and the condition NamesAccepted. A
// name that it had is kept until the new one is free.
func (t taken) decide(crd *apiextensions.CustomResourceDefinition) (apiextensions.CustomResourceDefinitionNames, apiextensions.CustomResourceDefinitionCondition) {
	asked, accepted := &crd.Spec.Names, *crd.Status.AcceptedNames.DeepCopy()
	result := apiextensions.CustomResourceDefinitionCondition{Type: apiextensions.NamesAccepted, Status: apiextensions.ConditionUnknown}
	refuse := func(reason, message string) {
		result.Status, result.Reason, result.Message = apiextensions.ConditionFalse, reason, message
	}
	one := func(isTaken func(string) bool, name string, into *string, reason string) {
		switch {
		case name == "" || name == *into:
			*into = name
		case isTaken(name):
			refuse(reason, fmt.Sprintf("%q is already in use", name))
		default:
			*into = name
		}
	}
	one(t.resource, asked.Plural, &accepted.Plural, "PluralConflict")
	one(t.resource, asked.Singular, &accepted.Singular, "SingularConflict")
	if !slices.Equal(asked.ShortNames, accepted.ShortNames) {
		var clashes []string
		for _, n := range asked.ShortNames {
			if t.resource(n) && !slices.Contains(accepted.ShortNames, n) {
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
	one(t.kind, asked.Kind, &accepted.Kind, "KindConflict")
	one(t.kind, asked.ListKind, &accepted.ListKind, "ListKindConflict")
	accepted.Categories = asked.Categories
	if result.Status == apiextensions.ConditionUnknown {
		result.Status, result.Reason, result.Message = apiextensions.ConditionTrue, "NoConflicts", "no conflicts found"
	}
	return accepted, result
}

// setStatus computes the status of a definition: accepted names and conditions. It reports
// whether the definition is Established and therefore served.
func (t taken) setStatus(crd *apiextensions.CustomResourceDefinition, now metav1.Time) (serve bool) {
	accepted, named := t.decide(crd)
	crd.Status.AcceptedNames = accepted
	setCondition(&crd.Status, named, now)
	setApproval(crd, now)
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

// setStructure sets the condition NonStructuralSchema of a definition with its schemas, or
// removes it if they are structural.
func setStructure(crd *apiextensions.CustomResourceDefinition, now metav1.Time) {
	reason, text := rules.NonStructural(&crd.Spec)
	if reason == "" {
		dropCondition(&crd.Status, apiextensions.NonStructuralSchema)
		return
	}
	c := apiextensions.CustomResourceDefinitionCondition{
		Type: apiextensions.NonStructuralSchema, Status: apiextensions.ConditionTrue, Reason: reason, Message: text,
	}
	if reason == rules.StructuralError {
		c.Status = apiextensions.ConditionUnknown
	}
	setCondition(&crd.Status, c, now)
}

// setApproval sets the condition KubernetesAPIApprovalPolicyConformant of a definition
// in a protected group.
func setApproval(crd *apiextensions.CustomResourceDefinition, now metav1.Time) {
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
