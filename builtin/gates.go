package builtin

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/core"
	"github.com/apikeel/kelson/builtin/gate"
	"github.com/apikeel/kelson/resource"
)

// h2cProbes is the gate of the protocol that probes speak, which has a default.
const h2cProbes = "H2CContainerProbe"

// defaultProtocols has the probes of pods speak a protocol. Those of what makes pods
// get it when there is a pod.
func defaultProtocols(g resource.Group) {
	for i := range g.Resources {
		if d := &g.Resources[i]; g.Name == "" && d.Resource == "pods" {
			before := d.Versions[0].Default
			d.Versions[0].Default = func(obj resource.Object) {
				before(obj)
				core.DefaultProbeProtocols(&obj.(*corev1.Pod).Spec)
			}
		}
	}
}

// withGates hands the gates to the functions of a strategy.
func withGates(s *resource.Strategy, gates gate.Set) {
	onOne(&s.PrepareCreate, gates)
	onTwo(&s.PrepareUpdate, gates)
	if f := s.Validate; f != nil {
		s.Validate = func(ctx context.Context, obj resource.Object) field.ErrorList { return f(gate.With(ctx, gates), obj) }
	}
	if f := s.ValidateUpdate; f != nil {
		s.ValidateUpdate = func(ctx context.Context, obj, old resource.Object) field.ErrorList {
			return f(gate.With(ctx, gates), obj, old)
		}
	}
	if f := s.Warnings; f != nil {
		s.Warnings = func(ctx context.Context, obj, old resource.Object) []string {
			return f(gate.With(ctx, gates), obj, old)
		}
	}
}

func onOne(f *func(context.Context, resource.Object), gates gate.Set) {
	if before := *f; before != nil {
		*f = func(ctx context.Context, obj resource.Object) { before(gate.With(ctx, gates), obj) }
	}
}

func onTwo(f *func(context.Context, resource.Object, resource.Object), gates gate.Set) {
	if before := *f; before != nil {
		*f = func(ctx context.Context, obj, old resource.Object) { before(gate.With(ctx, gates), obj, old) }
	}
}
