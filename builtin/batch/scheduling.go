package batch

import (
	"context"
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/apikeel/kelson/builtin/declared"
)

// workloadWithJob is the feature gate of spec.scheduling.
const workloadWithJob = "WorkloadWithJob"

// schedulingRules are the declared rules of spec.scheduling.
const schedulingRules = `
JobSpec
  scheduling gate=WorkloadWithJob optional no-set no-unset
JobSchedulingConfiguration
  schedulingPolicy optional no-set no-unset
  schedulingConstraints immutable optional
  disruptionMode immutable optional
  resourceClaims immutable max-items=4 optional key=name
WorkloadPodGroupSchedulingPolicy oneof=basic,gang
  gang optional
WorkloadPodGroupGangSchedulingPolicy
  minCount optional min=1
WorkloadPodGroupSchedulingConstraints
  topology max-items=1 optional
TopologyConstraint
  key required label-key
WorkloadPodGroupDisruptionMode oneof=single,all
WorkloadPodGroupResourceClaim oneof=resourceClaimName,resourceClaimTemplateName
  name required short-name
  resourceClaimName optional long-name
  resourceClaimTemplateName optional long-name
`

// validateScheduling validates how the pods of a job are scheduled; old is nil on
// create.
func validateScheduling(ctx context.Context, spec, old *batchv1.JobSpec, path *field.Path) field.ErrorList {
	if spec.Scheduling == nil && (old == nil || old.Scheduling == nil) {
		return nil
	}
	var errs field.ErrorList
	if s, at := spec.Scheduling, path.Child("scheduling"); s != nil {
		basic := s.SchedulingPolicy == nil
		if p := s.SchedulingPolicy; p != nil {
			basic = p.Gang == nil // an empty policy is basic too
			if most := ptr.Deref(spec.Parallelism, 1); p.Gang != nil && ptr.Deref(p.Gang.MinCount, 0) > most {
				errs = append(errs, field.Invalid(at.Child("schedulingPolicy", "gang", "minCount"), *p.Gang.MinCount,
					fmt.Sprintf("must not be greater than parallelism (%d)", most)))
			}
		}
		if basic && s.DisruptionMode != nil && s.DisruptionMode.All != nil {
			errs = append(errs, field.Invalid(at.Child("disruptionMode"), "", "the disruptionMode `all` is not supported with the Basic scheduling policy"))
		}
	}
	return append(errs, declared.Parse(schedulingRules).Judge(ctx, spec, old, path)...)
}

// samePolicy checks that the kind of scheduling policy is unchanged.
func samePolicy(spec, old *batchv1.JobSpec, path *field.Path) field.ErrorList {
	if spec.Scheduling == nil || old.Scheduling == nil {
		return nil
	}
	now, was := spec.Scheduling.SchedulingPolicy, old.Scheduling.SchedulingPolicy
	if now == nil || was == nil || (now.Basic != nil) == (was.Basic != nil) {
		return nil
	}
	return field.ErrorList{field.Invalid(path.Child("scheduling", "schedulingPolicy"), nil,
		"the basic/gang policy variant is immutable after creation; only schedulingPolicy.gang.minCount may be updated")}
}
