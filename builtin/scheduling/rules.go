package scheduling

import (
	"sync"

	"github.com/apikeel/kelson/builtin/declared"
)

// groupRules returns the declared rules of workloads and pod groups, parsed on first use.
func groupRules() func() declared.Rules {
	return sync.OnceValue(func() declared.Rules { return declared.Parse(ruleText) })
}

const ruleText = `
WorkloadSpec oneof=podGroupTemplates,compositePodGroupTemplates
  controllerRef immutable optional
  podGroupTemplates max-items=8 optional fixed-items key=name
  compositePodGroupTemplates gate=CompositePodGroup max-items=8 fixed-items key=name
TypedLocalObjectReference
  apiGroup optional long-name
  kind required path-segment
  name required path-segment
PodGroupTemplate
  name required short-name
  schedulingPolicy
  schedulingConstraints gate=TopologyAwareWorkloadScheduling immutable
  resourceClaims immutable max-items=4 optional key=name
  disruptionMode immutable optional
  priorityClassName immutable optional long-name
  priority immutable optional max=1000000000
  preemptionPolicy gate=PodGroupPreemptionPolicy immutable enum=Never,PreemptLowerPriority
CompositePodGroupTemplate
  name required short-name
  schedulingPolicy
  schedulingConstraints immutable optional
  disruptionMode immutable optional
  priorityClassName immutable optional long-name
  priority immutable optional max=1000000000
  preemptionPolicy gate=PodGroupPreemptionPolicy immutable enum=Never,PreemptLowerPriority
  podGroupTemplates max-items=8 optional fixed-items key=name
  compositePodGroupTemplates max-items=8 optional fixed-items key=name
PodGroupSpec
  parentCompositePodGroupName gate=CompositePodGroup immutable long-name
  workloadRef immutable optional
  schedulingPolicy
  schedulingConstraints gate=TopologyAwareWorkloadScheduling immutable=on
  resourceClaims immutable max-items=4 optional key=name
  disruptionMode immutable optional
  priorityClassName immutable optional long-name
  priority immutable optional max=1000000000
  preemptionPolicy gate=PodGroupPreemptionPolicy immutable enum=Never,PreemptLowerPriority
CompositePodGroupSpec
  parentCompositePodGroupName immutable optional long-name
  workloadRef immutable required
  schedulingPolicy immutable
  schedulingConstraints immutable optional
  disruptionMode immutable optional
  priorityClassName immutable optional long-name
  priority immutable optional max=1000000000
  preemptionPolicy gate=PodGroupPreemptionPolicy immutable enum=Never,PreemptLowerPriority
PodGroupSchedulingPolicy oneof=basic,gang
  basic immutable optional
  gang optional no-set no-unset
CompositePodGroupSchedulingPolicy oneof=basic,gang
  basic immutable optional
  gang optional no-set no-unset
GangSchedulingPolicy
  minCount required min=1
CompositeGangSchedulingPolicy
  minGroupCount required min=1
PodGroupSchedulingConstraints
  topology max-items=1 optional
CompositePodGroupSchedulingConstraints
  topology max-items=1 optional
TopologyConstraint
  key required label-key
PodGroupResourceClaim oneof=resourceClaimName,resourceClaimTemplateName
  name required short-name
  resourceClaimName optional long-name
  resourceClaimTemplateName optional long-name
DisruptionMode oneof=single,all
CompositeDisruptionMode oneof=single,all
WorkloadReference
  workloadName required long-name
  templateName required short-name
PodGroupStatus
  resourceClaimStatuses max-items=4 optional key=name
PodGroupResourceClaimStatus
  resourceClaimName optional long-name
`
