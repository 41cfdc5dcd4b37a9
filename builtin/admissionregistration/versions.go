package admissionregistration

import (
	admissionv1 "k8s.io/api/admissionregistration/v1"
	admissionv1alpha1 "k8s.io/api/admissionregistration/v1alpha1"
	admissionv1beta1 "k8s.io/api/admissionregistration/v1beta1"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// Older versions, all with the fields of v1.

type mutatingBinding = admissionv1.MutatingAdmissionPolicyBinding

func defaultMutatingPolicy(p *mutatingPolicy) {
	rules.DefaultPointer(&p.Spec.FailurePolicy, admissionv1.Fail)
	defaultMatch(p.Spec.MatchConstraints)
}

func defaultMutatingBinding(b *mutatingBinding) { defaultMatch(b.Spec.MatchResources) }

func oldMutatingPolicies() []resource.Version {
	const kind = "MutatingAdmissionPolicy"
	return []resource.Version{
		resource.AlikeVersion[admissionv1beta1.MutatingAdmissionPolicy, admissionv1beta1.MutatingAdmissionPolicyList](
			admissionv1beta1.SchemeGroupVersion.WithKind(kind), defaultMutatingPolicy, nil, nil),
		resource.AlikeVersion[admissionv1alpha1.MutatingAdmissionPolicy, admissionv1alpha1.MutatingAdmissionPolicyList](
			admissionv1alpha1.SchemeGroupVersion.WithKind(kind), defaultMutatingPolicy, nil, nil),
	}
}

func oldMutatingBindings() []resource.Version {
	const kind = "MutatingAdmissionPolicyBinding"
	return []resource.Version{
		resource.AlikeVersion[admissionv1beta1.MutatingAdmissionPolicyBinding, admissionv1beta1.MutatingAdmissionPolicyBindingList](
			admissionv1beta1.SchemeGroupVersion.WithKind(kind), defaultMutatingBinding, nil, nil),
		resource.AlikeVersion[admissionv1alpha1.MutatingAdmissionPolicyBinding, admissionv1alpha1.MutatingAdmissionPolicyBindingList](
			admissionv1alpha1.SchemeGroupVersion.WithKind(kind),
			func(b *mutatingBinding) {
				defaultMutatingBinding(b)
				// Unlike v1alpha1, the other versions require it.
				if p := b.Spec.ParamRef; p != nil {
					rules.DefaultPointer(&p.ParameterNotFoundAction, admissionv1.DenyAction)
				}
			}, nil, nil),
	}
}
