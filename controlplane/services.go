package controlplane

import (
	"context"
	"log/slog"
	"sync"

	"github.com/apikeel/kelson/builtin/core"
	"github.com/apikeel/kelson/internal/clock"
	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/rest"
)

// allocator hands out the addresses and node ports of services. What it has
// handed out is in storage, so that other servers know.
func allocator(resources *rest.Handler, c Config) (*core.ClusterAllocator, error) {
	ranges, err := resources.Private(core.RangeAllocations())
	if err != nil {
		return nil, err
	}
	return core.NewClusterAllocator(core.ClusterAllocatorConfig{
		ServiceCIDRs: c.ServiceCIDRs, FirstNodePort: c.FirstNodePort, LastNodePort: c.LastNodePort,
		Objects: resources.Objects, Ranges: ranges, Log: c.Logger,
	})
}

// repairing repairs what has been handed out, once at the start and then again
// and again until ctx ends, which running waits for.
func repairing(ctx context.Context, a *core.ClusterAllocator, running *sync.WaitGroup, log *slog.Logger, metrics measure.Sink) error {
	if err := a.Repair(ctx); err != nil {
		return err
	}
	clock.Background(ctx, running, core.RepairEvery, func() {
		if err := a.Repair(ctx); err != nil && ctx.Err() == nil {
			log.Warn("repairing the addresses of services", "error", err)
			measure.Count(metrics, measure.ServiceRepairErrors)
		}
	})
	return nil
}
