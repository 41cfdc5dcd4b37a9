package controller

import (
	"context"

	registrationv1 "k8s.io/api/admissionregistration/v1"
)

// PolicyStatus writes the result of type checking into the status of
// ValidatingAdmissionPolicies, once for each generation.
func PolicyStatus(check func(policy *registrationv1.ValidatingAdmissionPolicy) []registrationv1.ExpressionWarning) Controller {
	const name = "validatingadmissionpolicy-status-controller"
	return Controller{Name: name, Alias: name, Account: name, Start: func(env *Env) Observer {
		return &policyStatus{NewQueue(env, 1, func(ctx context.Context, policy string) error {
			kind := env.Kind("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy")
			if kind == nil {
				return nil
			}
			var p registrationv1.ValidatingAdmissionPolicy
			if err := env.Get(ctx, kind, "", policy, &p); err != nil {
				return ignoreNotFound(err)
			}
			if p.Generation <= p.Status.ObservedGeneration {
				return nil
			}
			warnings := check(&p)
			typeChecking := map[string]any{}
			if len(warnings) > 0 {
				typeChecking["expressionWarnings"] = warnings
			}
			return ignoreNotFound(env.Apply(ctx, kind, "", policy+"/status", "validatingadmissionpolicy-status", map[string]any{
				"apiVersion": kind.APIVersion(), "kind": kind.Kind, "metadata": map[string]any{"name": policy},
				"status": map[string]any{"observedGeneration": p.Generation, "typeChecking": typeChecking},
			}))
		})}
	}}
}

type policyStatus struct{ queue *Queue[string] }

// Observe implements Observer.
func (s *policyStatus) Observe(changes []Change) {
	for i := range changes {
		if c := &changes[i]; !c.Gone && c.Kind.Is(registrationv1.GroupName, "validatingadmissionpolicies") {
			s.queue.Add(c.Name)
		}
	}
}
