// Package podspec has the rules for pod specs, wherever one is: in a pod, or in
// the pod template of a Deployment, a Job or any other kind. It also has the
// rules for what belongs to a pod spec: containers, probes, security contexts,
// resources, scheduling and volumes, and for volume claims and the sources of
// persistent volumes, which share the rules of volumes.
//
// Start at template.go. A kind with a pod template calls, in this order:
//
//	DefaultTemplate             // defaulting, before admission
//	DropDisabledTemplateFields  // PrepareCreate and PrepareUpdate: fields of features that are off
//	ValidateTemplate            // validation
//	TemplateWarnings            // warnings for the client
//
// An object that was once accepted can always be updated, so validation takes
// the old version of a template, from which Allowances are computed: rules that
// the old version already breaks.
//
// The package must never know a kind or a group. What only the kind Pod has
// (its status, binding, eviction, resizing, and which fields of a running pod
// may change) is in builtin/core.
package podspec
