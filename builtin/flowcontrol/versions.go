package flowcontrol

import (
	"maps"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	flowcontrolv1beta1 "k8s.io/api/flowcontrol/v1beta1"
	flowcontrolv1beta2 "k8s.io/api/flowcontrol/v1beta2"
	flowcontrolv1beta3 "k8s.io/api/flowcontrol/v1beta3"

	"github.com/apikeel/kelson/resource"
)

// Versions that are not served any more. The two oldest call the shares of a level assured,
// and in all of them zero stands for the default.

func oldSchemas() []resource.Version {
	return []resource.Version{
		resource.OldVersion[flowcontrolv1beta3.FlowSchema](flowcontrolv1beta3.SchemeGroupVersion, defaultSchema, nil),
		resource.OldVersion[flowcontrolv1beta2.FlowSchema](flowcontrolv1beta2.SchemeGroupVersion, defaultSchema, nil),
		resource.OldVersion[flowcontrolv1beta1.FlowSchema](flowcontrolv1beta1.SchemeGroupVersion, defaultSchema, nil),
	}
}

func oldLevels() []resource.Version {
	type level = flowcontrolv1.PriorityLevelConfiguration
	// set sets the shares, unless they are to have the default.
	set := func(l *flowcontrolv1.LimitedPriorityLevelConfiguration, shares int32, zero bool) {
		if l.NominalConcurrencyShares = &shares; shares == 0 && !zero {
			l.NominalConcurrencyShares = nil
		}
	}
	return []resource.Version{
		resource.OldVersion(flowcontrolv1beta3.SchemeGroupVersion, defaultLevel, func(old *flowcontrolv1beta3.PriorityLevelConfiguration, p *level) {
			_, zero := p.Annotations[preserveZero]
			if zero {
				p.Annotations = maps.Clone(p.Annotations)
				delete(p.Annotations, preserveZero)
			}
			if l := old.Spec.Limited; l != nil {
				set(p.Spec.Limited, l.NominalConcurrencyShares, zero)
			}
		}),
		resource.OldVersion(flowcontrolv1beta2.SchemeGroupVersion, defaultLevel, func(old *flowcontrolv1beta2.PriorityLevelConfiguration, p *level) {
			if l := old.Spec.Limited; l != nil {
				set(p.Spec.Limited, l.AssuredConcurrencyShares, false)
			}
		}),
		resource.OldVersion(flowcontrolv1beta1.SchemeGroupVersion, defaultLevel, func(old *flowcontrolv1beta1.PriorityLevelConfiguration, p *level) {
			if l := old.Spec.Limited; l != nil {
				set(p.Spec.Limited, l.AssuredConcurrencyShares, false)
			}
		}),
	}
}
