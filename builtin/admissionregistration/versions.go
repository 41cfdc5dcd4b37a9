package admissionregistration

import (
	admissionv1 "k8s.io/api/admissionregistration/v1"
	admissionv1alpha1 "k8s.io/api/admissionregistration/v1alpha1"
	admissionv1beta1 "k8s.io/api/admissionregistration/v1beta1"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// Older versions, all with the fields of v1.

type validatingBinding = admissionv1.ValidatingAdmissionPolicyBinding
type mutatingBinding = admissionv1.MutatingAdmissionPolicyBinding

func defaultMutatingPolicy(p *mutatingPolicy) {
	rules.DefaultPointer(&p.Spec.FailurePolicy, admissionv1.Fail)
	defaultMatch(p.Spec.MatchConstraints)
}

func defaultMutatingBinding(b *mutatingBinding) { defaultMatch(b.Spec.MatchResources) }

// Versions that are not served any more.

func oldMutatingWebhooks() []resource.Version {
	return []resource.Version{resource.OldVersion[admissionv1beta1.MutatingWebhookConfiguration](admissionv1beta1.SchemeGroupVersion,
		func(c *admissionv1.MutatingWebhookConfiguration) {
			for i := range c.Webhooks {
				w := &c.Webhooks[i]
				defaultOldWebhook(w)
				rules.DefaultPointer(&w.ReinvocationPolicy, admissionv1.NeverReinvocationPolicy)
			}
		}, nil)}
}

func oldValidatingWebhooks() []resource.Version {
	return []resource.Version{resource.OldVersion[admissionv1beta1.ValidatingWebhookConfiguration](admissionv1beta1.SchemeGroupVersion,
		func(c *admissionv1.ValidatingWebhookConfiguration) {
			for i := range c.Webhooks {
				w := toHook(c.Webhooks[i])
				defaultOldWebhook(&w)
				c.Webhooks[i] = fromHook(w)
			}
		}, nil)}
}

// defaultOldWebhook sets the defaults of v1beta1, which differ from those of v1.
func defaultOldWebhook(w *hook) {
	rules.DefaultPointer(&w.FailurePolicy, admissionv1.Ignore)
	rules.DefaultPointer(&w.MatchPolicy, admissionv1.Exact)
	rules.DefaultPointer(&w.SideEffects, admissionv1.SideEffectClassUnknown)
	rules.DefaultPointer(&w.TimeoutSeconds, 30)
	if len(w.AdmissionReviewVersions) == 0 {
		w.AdmissionReviewVersions = []string{"v1beta1"}
	}
	defaultWebhook(w)
}

func oldValidatingPolicies() []resource.Version {
	return []resource.Version{
		resource.OldVersion[admissionv1beta1.ValidatingAdmissionPolicy](admissionv1beta1.SchemeGroupVersion, defaultValidatingPolicy, nil),
		resource.OldVersion[admissionv1alpha1.ValidatingAdmissionPolicy](admissionv1alpha1.SchemeGroupVersion, defaultValidatingPolicy, nil),
	}
}

func oldValidatingBindings() []resource.Version {
	return []resource.Version{
		resource.OldVersion[admissionv1beta1.ValidatingAdmissionPolicyBinding](admissionv1beta1.SchemeGroupVersion, defaultValidatingBinding, nil),
		resource.OldVersion[admissionv1alpha1.ValidatingAdmissionPolicyBinding](admissionv1alpha1.SchemeGroupVersion, func(b *validatingBinding) {
			defaultValidatingBinding(b)
			defaultParamRef(b.Spec.ParamRef)
		}, nil),
	}
}

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
				defaultParamRef(b.Spec.ParamRef)
			}, nil, nil),
	}
}

// defaultParamRef sets the defaults of v1alpha1; other versions require the field.
func defaultParamRef(p *admissionv1.ParamRef) {
	if p != nil {
		rules.DefaultPointer(&p.ParameterNotFoundAction, admissionv1.DenyAction)
	}
}
