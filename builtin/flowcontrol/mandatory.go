package flowcontrol

import flowcontrolv1 "k8s.io/api/flowcontrol/v1"

// Two flow schemas and their levels always exist and cannot be changed: exempt and catch-all.

// MandatorySchemas returns their specs by name.
func MandatorySchemas() map[string]flowcontrolv1.FlowSchemaSpec {
	everything := func(groups ...string) []flowcontrolv1.PolicyRulesWithSubjects {
		all := []string{flowcontrolv1.ResourceAll}
		rule := flowcontrolv1.PolicyRulesWithSubjects{
			ResourceRules: []flowcontrolv1.ResourcePolicyRule{{
				Verbs: all, APIGroups: all, Resources: all, ClusterScope: true, Namespaces: all,
			}},
			NonResourceRules: []flowcontrolv1.NonResourcePolicyRule{{Verbs: all, NonResourceURLs: all}},
		}
		for _, g := range groups {
			rule.Subjects = append(rule.Subjects, flowcontrolv1.Subject{
				Kind: flowcontrolv1.SubjectKindGroup, Group: &flowcontrolv1.GroupSubject{Name: g},
			})
		}
		return []flowcontrolv1.PolicyRulesWithSubjects{rule}
	}
	return map[string]flowcontrolv1.FlowSchemaSpec{
		flowcontrolv1.FlowSchemaNameExempt: {
			PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: flowcontrolv1.PriorityLevelConfigurationNameExempt},
			MatchingPrecedence:         1,
			Rules:                      everything("system:masters"),
		},
		flowcontrolv1.FlowSchemaNameCatchAll: {
			PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: flowcontrolv1.PriorityLevelConfigurationNameCatchAll},
			MatchingPrecedence:         maxPrecedence,
			DistinguisherMethod:        &flowcontrolv1.FlowDistinguisherMethod{Type: flowcontrolv1.FlowDistinguisherMethodByUserType},
			Rules:                      everything("system:unauthenticated", "system:authenticated"),
		},
	}
}

// MandatoryLevels returns their specs by name.
func MandatoryLevels() map[string]flowcontrolv1.PriorityLevelConfigurationSpec {
	return map[string]flowcontrolv1.PriorityLevelConfigurationSpec{
		flowcontrolv1.PriorityLevelConfigurationNameExempt: {
			Type:   flowcontrolv1.PriorityLevelEnablementExempt,
			Exempt: &flowcontrolv1.ExemptPriorityLevelConfiguration{NominalConcurrencyShares: new(int32), LendablePercent: new(int32)},
		},
		flowcontrolv1.PriorityLevelConfigurationNameCatchAll: {
			Type: flowcontrolv1.PriorityLevelEnablementLimited,
			Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{
				NominalConcurrencyShares: new(int32(5)),
				LendablePercent:          new(int32),
				LimitResponse:            flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeReject},
			},
		},
	}
}
