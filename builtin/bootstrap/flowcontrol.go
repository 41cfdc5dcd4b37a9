package bootstrap

import (
	"slices"
	"strconv"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/builtin/flowcontrol"
	"github.com/apikeel/kelson/resource"
)

// PriorityLevels returns the mandatory and the suggested PriorityLevelConfigurations.
func PriorityLevels() []resource.Object {
	mandatory := flowcontrol.MandatoryLevels()
	level := func(name string, shares, lendable, queues, hand int32) resource.Object {
		return priorityLevel(name, flowcontrolv1.PriorityLevelConfigurationSpec{
			Type: flowcontrolv1.PriorityLevelEnablementLimited,
			Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{
				NominalConcurrencyShares: &shares,
				LendablePercent:          &lendable,
				LimitResponse: flowcontrolv1.LimitResponse{
					Type:    flowcontrolv1.LimitResponseTypeQueue,
					Queuing: &flowcontrolv1.QueuingConfiguration{Queues: queues, HandSize: hand, QueueLengthLimit: 50},
				},
			},
		})
	}
	const exempt, catchAll = flowcontrolv1.PriorityLevelConfigurationNameExempt, flowcontrolv1.PriorityLevelConfigurationNameCatchAll
	return []resource.Object{
		priorityLevel(exempt, mandatory[exempt]),
		priorityLevel(catchAll, mandatory[catchAll]),
		level("system", 30, 33, 64, 6),
		level("node-high", 40, 25, 64, 6),
		level("leader-election", 10, 0, 16, 4),
		level("workload-high", 40, 50, 128, 6),
		level("workload-low", 100, 90, 128, 6),
		level("global-default", 20, 50, 128, 6),
	}
}

// FlowSchemas returns the mandatory and the suggested FlowSchemas.
func FlowSchemas() []resource.Object {
	mandatory := flowcontrol.MandatorySchemas()
	const exempt, catchAll = flowcontrolv1.FlowSchemaNameExempt, flowcontrolv1.FlowSchemaNameCatchAll
	const byUser, byNamespace = flowcontrolv1.FlowDistinguisherMethodByUserType, flowcontrolv1.FlowDistinguisherMethodByNamespaceType
	all := []string{"*"}
	everything := on(all, all, all, true)
	anyURL := flowcontrolv1.NonResourcePolicyRule{Verbs: all, NonResourceURLs: all}
	whatever := func(subjects []flowcontrolv1.Subject) flowcontrolv1.PolicyRulesWithSubjects {
		return flowcontrolv1.PolicyRulesWithSubjects{
			Subjects:         subjects,
			ResourceRules:    []flowcontrolv1.ResourcePolicyRule{everything},
			NonResourceRules: []flowcontrolv1.NonResourcePolicyRule{anyURL},
		}
	}
	everyone, nodes := groups("system:unauthenticated", "system:authenticated"), groups("system:nodes")
	leases := []string{"coordination.k8s.io"}
	return []resource.Object{
		flowSchema(exempt, mandatory[exempt]),
		flowSchema(catchAll, mandatory[catchAll]),
		schema("system-nodes", "system", 500, byUser, whatever(nodes)),
		schema("system-node-high", "node-high", 400, byUser, flowcontrolv1.PolicyRulesWithSubjects{
			Subjects: nodes,
			ResourceRules: []flowcontrolv1.ResourcePolicyRule{
				on(all, []string{""}, []string{"nodes", "nodes/status"}, true),
				on(all, leases, []string{"leases"}, false),
			},
		}),
		schema("probes", "exempt", 2, "", flowcontrolv1.PolicyRulesWithSubjects{
			Subjects: everyone,
			NonResourceRules: []flowcontrolv1.NonResourcePolicyRule{
				{Verbs: []string{"get"}, NonResourceURLs: []string{"/healthz", "/readyz", "/livez"}},
			},
		}),
		schema("system-leader-election", "leader-election", 100, byUser, flowcontrolv1.PolicyRulesWithSubjects{
			Subjects: slices.Concat(users("system:kube-controller-manager", "system:kube-scheduler"), systemAccounts()),
			ResourceRules: []flowcontrolv1.ResourcePolicyRule{
				on([]string{"get", "create", "update"}, leases, []string{"leases"}, false),
			},
		}),
		schema("kube-controller-manager", "workload-high", 800, byNamespace, whatever(users("system:kube-controller-manager"))),
		schema("kube-scheduler", "workload-high", 800, byNamespace, whatever(users("system:kube-scheduler"))),
		schema("kube-system-service-accounts", "workload-high", 900, byNamespace, whatever(systemAccounts())),
		schema("service-accounts", "workload-low", 9000, byUser, whatever(groups("system:serviceaccounts"))),
		schema("global-default", "global-default", 9900, byUser, whatever(everyone)),
	}
}

func flowMeta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Annotations: map[string]string{flowcontrolv1.AutoUpdateAnnotationKey: "true"}}
}

func priorityLevel(name string, spec flowcontrolv1.PriorityLevelConfigurationSpec) resource.Object {
	return &flowcontrolv1.PriorityLevelConfiguration{
		TypeMeta:   metav1.TypeMeta{APIVersion: flowcontrolv1.SchemeGroupVersion.String(), Kind: "PriorityLevelConfiguration"},
		ObjectMeta: flowMeta(name), Spec: spec,
	}
}

func flowSchema(name string, spec flowcontrolv1.FlowSchemaSpec) resource.Object {
	return &flowcontrolv1.FlowSchema{
		TypeMeta:   metav1.TypeMeta{APIVersion: flowcontrolv1.SchemeGroupVersion.String(), Kind: "FlowSchema"},
		ObjectMeta: flowMeta(name), Spec: spec,
	}
}

func schema(name, level string, precedence int32, method flowcontrolv1.FlowDistinguisherMethodType, rules ...flowcontrolv1.PolicyRulesWithSubjects) resource.Object {
	spec := flowcontrolv1.FlowSchemaSpec{
		PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: level},
		MatchingPrecedence:         precedence,
		Rules:                      rules,
	}
	if method != "" {
		spec.DistinguisherMethod = &flowcontrolv1.FlowDistinguisherMethod{Type: method}
	}
	return flowSchema(name, spec)
}

// on makes a rule about resources in all namespaces and, with cluster, cluster-scoped ones.
func on(verbs, groups, resources []string, cluster bool) flowcontrolv1.ResourcePolicyRule {
	return flowcontrolv1.ResourcePolicyRule{Verbs: verbs, APIGroups: groups, Resources: resources, ClusterScope: cluster, Namespaces: []string{"*"}}
}

func groups(names ...string) []flowcontrolv1.Subject {
	var out []flowcontrolv1.Subject
	for _, name := range names {
		out = append(out, flowcontrolv1.Subject{Kind: flowcontrolv1.SubjectKindGroup, Group: &flowcontrolv1.GroupSubject{Name: name}})
	}
	return out
}

func users(names ...string) []flowcontrolv1.Subject {
	var out []flowcontrolv1.Subject
	for _, name := range names {
		out = append(out, flowcontrolv1.Subject{Kind: flowcontrolv1.SubjectKindUser, User: &flowcontrolv1.UserSubject{Name: name}})
	}
	return out
}

func systemAccounts() []flowcontrolv1.Subject {
	return []flowcontrolv1.Subject{{
		Kind:           flowcontrolv1.SubjectKindServiceAccount,
		ServiceAccount: &flowcontrolv1.ServiceAccountSubject{Namespace: metav1.NamespaceSystem, Name: flowcontrolv1.NameAll},
	}}
}

// ReconcileFlowControl computes the update of an existing FlowSchema or level. Mandatory ones
// always get the wanted spec; others only if their annotation says so or, without it, if
// their generation shows that nobody has changed them. The arguments are not changed.
func ReconcileFlowControl(existing, wanted resource.Object) (resource.Object, Action) {
	update := isMandatory(wanted)
	if !update {
		var err error
		if update, err = autoUpdates(existing); err != nil {
			update = existing.GetGeneration() == 1
		}
	}
	stated, err := autoUpdates(existing)
	restate := err != nil || stated != update
	respecify := update && !sameSpec(existing, wanted)
	if !restate && !respecify {
		return existing, Keep
	}
	next := existing.DeepCopyObject().(resource.Object)
	if respecify {
		switch next := next.(type) {
		case *flowcontrolv1.FlowSchema:
			wanted.(*flowcontrolv1.FlowSchema).Spec.DeepCopyInto(&next.Spec)
		case *flowcontrolv1.PriorityLevelConfiguration:
			wanted.(*flowcontrolv1.PriorityLevelConfiguration).Spec.DeepCopyInto(&next.Spec)
		}
	}
	if restate {
		next.SetAnnotations(merged(next.GetAnnotations(), map[string]string{flowcontrolv1.AutoUpdateAnnotationKey: strconv.FormatBool(update)}))
	}
	return next, Update
}

// Unwanted reports whether a FlowSchema or level is a suggested one of an earlier version that
// nobody has changed: it is to be deleted. wanted are the current ones of its kind.
func Unwanted(existing resource.Object, wanted []resource.Object) bool {
	if slices.ContainsFunc(wanted, func(w resource.Object) bool { return w.GetName() == existing.GetName() }) {
		return false
	}
	update, err := autoUpdates(existing)
	return err == nil && update
}

// autoUpdates returns the value of the auto-update annotation; an error if there is none.
func autoUpdates(obj resource.Object) (bool, error) {
	return strconv.ParseBool(obj.GetAnnotations()[flowcontrolv1.AutoUpdateAnnotationKey])
}

func isMandatory(obj resource.Object) bool {
	var ok bool
	switch obj.(type) {
	case *flowcontrolv1.FlowSchema:
		_, ok = flowcontrol.MandatorySchemas()[obj.GetName()]
	case *flowcontrolv1.PriorityLevelConfiguration:
		_, ok = flowcontrol.MandatoryLevels()[obj.GetName()]
	}
	return ok
}

// sameSpec compares specs. The nominal shares of exempt levels are left to administrators.
func sameSpec(existing, wanted resource.Object) bool {
	switch existing := existing.(type) {
	case *flowcontrolv1.FlowSchema:
		return equality.Semantic.DeepEqual(existing.Spec, wanted.(*flowcontrolv1.FlowSchema).Spec)
	case *flowcontrolv1.PriorityLevelConfiguration:
		spec := wanted.(*flowcontrolv1.PriorityLevelConfiguration).Spec
		if spec.Exempt != nil && existing.Spec.Exempt != nil {
			spec.Exempt = existing.Spec.Exempt
		}
		return equality.Semantic.DeepEqual(existing.Spec, spec)
	}
	return true
}
