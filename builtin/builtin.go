// Package builtin lists the built-in API groups. Start at Config and Groups; each group is
// a folder, each kind a file. No group may import package rest, store or controller.
package builtin

import (
	"context"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/admissionregistration"
	"github.com/apikeel/kelson/builtin/apiserverinternal"
	"github.com/apikeel/kelson/builtin/apps"
	"github.com/apikeel/kelson/builtin/authentication"
	"github.com/apikeel/kelson/builtin/authorization"
	"github.com/apikeel/kelson/builtin/autoscaling"
	"github.com/apikeel/kelson/builtin/batch"
	"github.com/apikeel/kelson/builtin/certificates"
	"github.com/apikeel/kelson/builtin/coordination"
	"github.com/apikeel/kelson/builtin/core"
	"github.com/apikeel/kelson/builtin/discovery"
	"github.com/apikeel/kelson/builtin/dra"
	"github.com/apikeel/kelson/builtin/flowcontrol"
	"github.com/apikeel/kelson/builtin/lifecycle"
	"github.com/apikeel/kelson/builtin/networking"
	"github.com/apikeel/kelson/builtin/node"
	"github.com/apikeel/kelson/builtin/podspec"
	"github.com/apikeel/kelson/builtin/policy"
	"github.com/apikeel/kelson/builtin/rbac"
	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/builtin/scheduling"
	"github.com/apikeel/kelson/builtin/storage"
	"github.com/apikeel/kelson/builtin/storagemigration"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/resource"
)

// Config are the dependencies of the groups.
type Config struct {
	Authentication authentication.Config
	Authorization  authorization.Config
	Core           core.Config
	Certificates   certificates.Config
	Admission      admissionregistration.Config
	Devices        dra.Config
	RBAC           rbac.Config
	// Gates are the feature gates.
	Gates features.Gates
	// DenyPrivileged refuses privileged containers in pods and pod templates.
	DenyPrivileged bool
}

// Groups returns the built-in groups.
func Groups(cfg Config) []resource.Group { return complete(cfg, makeGroups(cfg, true)) }

// makeGroups returns the definitions of all groups, or only of those that have some which
// are bound to a server.
func makeGroups(cfg Config, all bool) (groups []resource.Group) {
	cfg.Core.Gates = cfg.Gates
	cfg.Core.SplitLogs = cfg.Core.SplitLogs || cfg.Gates.Enabled("PodLogsQuerySplitStreams")
	add := func(g resource.Group) { groups = append(groups, g) }
	// independent adds a group that has none of those.
	independent := func(group func() resource.Group, rules ...func(resource.Group) resource.Group) {
		if !all {
			return
		}
		g := group()
		for _, rule := range rules {
			g = rule(g)
		}
		add(g)
	}
	add(withFinalizerRule(core.Group(cfg.Core)))
	independent(apps.Group, withFinalizerRule)
	independent(func() resource.Group { return authentication.Group(cfg.Authentication) })
	independent(func() resource.Group { return authorization.Group(cfg.Authorization) })
	independent(autoscaling.Group, withFinalizerRule)
	independent(batch.Group, withFinalizerRule)
	add(withFinalizerRule(certificates.Group(cfg.Certificates)))
	independent(networking.Group, withFinalizerRule)
	independent(policy.Group)
	independent(func() resource.Group { return rbac.Group(cfg.RBAC) }, withFinalizerRule)
	independent(storage.Group, withFinalizerRule)
	independent(func() resource.Group { return admissionregistration.Group(cfg.Admission) })
	independent(func() resource.Group { return scheduling.Group(cfg.Gates) }, withFinalizerRule)
	independent(coordination.Group)
	independent(node.Group)
	independent(discovery.Group, withFinalizerRule)
	independent(func() resource.Group { return dra.Group(cfg.Devices) }, withFinalizerRule)
	independent(flowcontrol.Group, withFinalizerRule)
	independent(apiserverinternal.Group)
	independent(lifecycle.Group, withFinalizerRule)
	independent(storagemigration.Group, withFinalizerRule)
	return groups
}

// complete adds the rules that settings make for definitions of any group.
func complete(cfg Config, groups []resource.Group) []resource.Group {
	for _, g := range groups {
		if cfg.DenyPrivileged {
			denyPrivileged(g)
		}
		if cfg.Gates.Enabled(h2cProbes) {
			defaultProtocols(g)
		}
		if !cfg.Gates.Enabled(relaxedServiceNames) {
			restrictServiceNames(g)
		}
		if !cfg.Gates.Enabled(generationOfAutoscalers) {
			dropGeneration(g)
		}
		if !cfg.Gates.Enabled(createToConnect) {
			connectByMethod(g)
		}
		if !cfg.Gates.Enabled(podspec.LateResources) {
			defaultResourcesEarly(g)
		}
		eachStrategy(g, func(_ *resource.Definition, s *resource.Strategy) {
			wrap(s, once)
		})
	}
	groups, err := resource.WithGates(groups, cfg.Gates)
	if err != nil {
		panic(err) // a GatedField names a field that its type does not have
	}
	return groups
}

// withFinalizerRule adds the validation of finalizer names, which all kinds of a group
// have. Events, where they are validated strictly, and the status of StatefulSets validate
// finalizers themselves; the status of CronJobs does not.
func withFinalizerRule(g resource.Group) resource.Group {
	path := field.NewPath("metadata", "finalizers")
	eachStrategy(g, func(d *resource.Definition, s *resource.Strategy) {
		part := s != &d.Strategy
		if d.Resource == "events" || part && (d.Resource == "statefulsets" || d.Resource == "cronjobs") {
			return
		}
		wrap(s, func(obj resource.Object, errs field.ErrorList) field.ErrorList {
			return append(rules.ValidateFinalizers(obj.GetFinalizers(), path), errs...)
		})
	})
	return g
}

// maxCompared is behind how many bytes of text errors are not compared any more. An answer
// names none of those, and each can repeat a list of megabytes.
const maxCompared = 8 << 20

// once removes duplicate errors.
func once(_ resource.Object, errs field.ErrorList) field.ErrorList {
	var out field.ErrorList
	seen := map[string]bool{}
	size := 0
	for i, err := range errs {
		if size > maxCompared {
			return append(out, errs[i:]...)
		}
		// A rule that is declared in beta has two forms, of which one is dropped later.
		text := err.Origin + " " + err.Error()
		if size += len(text); !seen[text] {
			seen[text] = true
			out = append(out, err)
		}
	}
	return out
}

// eachStrategy calls f for the Strategy of every kind and of every Part subresource.
func eachStrategy(g resource.Group, f func(d *resource.Definition, s *resource.Strategy)) {
	for i := range g.Resources {
		d := &g.Resources[i]
		f(d, &d.Strategy)
		for _, sub := range d.Subresources {
			if sub.Part != nil {
				f(d, sub.Part)
			}
		}
	}
}

// wrap lets f change the errors of the validation of a Strategy.
func wrap(s *resource.Strategy, f func(obj resource.Object, errs field.ErrorList) field.ErrorList) {
	validate, update := s.Validate, s.ValidateUpdate
	s.Validate = func(ctx context.Context, obj resource.Object) field.ErrorList {
		var errs field.ErrorList
		if validate != nil {
			errs = validate(ctx, obj)
		}
		return f(obj, errs)
	}
	if update != nil {
		s.ValidateUpdate = func(ctx context.Context, obj, old resource.Object) field.ErrorList {
			return f(obj, update(ctx, obj, old))
		}
	}
}
