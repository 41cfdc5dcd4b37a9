package controlplane

import (
	"context"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/controller/apiserver"
	"github.com/apikeel/kelson/flow"
	"github.com/apikeel/kelson/internal/loopback"
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
	cfg.Stats = a.sizes
	cfg.Report = (&apiserver.FlowControl{Server: a.own}).Report
	a.flow = flow.New(cfg)
	a.outer.Flow = a.flow
}

// client is the server as a client of its own.
func (a *assembly) client() *loopback.Client {
	return &loopback.Client{Transport: a.outer.Loopback(loopbackUser()), Agent: serverName}
}

// sizes is a flow.Stats.
func (a *assembly) sizes(group, name string) (count, averageBytes int64) {
	if r, ok := a.resources.Stored(group, name); ok && r.Definition().Source == nil {
		return r.Stats()
	}
	return 0, 0
}

// runFlow has flow control follow what there is.
func (a *assembly) runFlow(ctx context.Context) error {
	a.running.Go(func() { a.flow.Run(ctx) })
	return nil
}
