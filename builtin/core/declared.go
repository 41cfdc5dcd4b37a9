package core

import (
	"sync"

	"github.com/apikeel/kelson/builtin/declared"
)

// declaredStatus has the declared rules for the status of pods and claims, parsed on first
// use.
var declaredStatus = sync.OnceValue(func() declared.Rules { return declared.Parse(declaredStatusText) })

const declaredStatusText = `
PodStatus
  nodeAllocatableResourceClaimStatuses optional key=resourceClaimName
  volumeHealth optional key=name
NodeAllocatableResourceClaimStatus
  resourceClaimName required
  containers optional set
  mapping optional key=name
  overhead optional key=name
NodeAllocatableMappedResources
  name required
  quantity required
NodeAllocatableOverheadResources
  name required
PodVolumeHealth
  name required
  healthConditions max-items=16 optional key=status,reason
PersistentVolumeClaimStatus
  healthStatus optional
VolumeHealthStatus
  healthConditions max-items=16 optional key=status,reason
VolumeHealthCondition
  status required enum=DataLoss,Degraded,Inaccessible
  reason required max-bytes=256
  message optional max-bytes=1024
`
