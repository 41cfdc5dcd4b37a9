package controlplane

import (
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/controller/apiserver"
	"github.com/apikeel/kelson/flow"
	"github.com/apikeel/kelson/rest"
)

// control makes what decides which requests have to wait.
func (a *assembly) control() {
	cfg := a.Flow
	if cfg.Off {
		a.outer.Flow = flow.NewInFlight(cfg)
		return
	}
	cfg.Logger, cfg.RequestTimeout = a.Logger, a.RequestTimeout
	objects := a.resources.Follow(schema.GroupResource{Group: flowcontrolv1.GroupName, Resource: apiserver.PriorityLevels}, schema.GroupResource{Group: flowcontrolv1.GroupName, Resource: apiserver.FlowSchemas})
	a.synced = objects.Synced
	cfg.Source = objects
	cfg.Stats = func(group, name string) flow.Size { return size(a.resources, group, name) }
	cfg.Report = (&apiserver.FlowControl{Server: a.own}).Report
	a.flow = flow.New(cfg)
	a.outer.Flow = a.flow
}

// size returns how many objects of a resource there are, and about how large they are.
func size(resources *rest.Handler, group, name string) (s flow.Size) {
	if r, ok := resources.Stored(group, name); ok && r.Definition().Source == nil {
		s.Count, s.AverageBytes = r.Stats()
		s.Namespaced = r.Definition().Namespaced
	}
	return s
}
