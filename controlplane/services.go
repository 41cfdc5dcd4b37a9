package controlplane

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/apikeel/kelson/builtin/core"
	"github.com/apikeel/kelson/internal/clock"
	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/resource"
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
// and again until ctx ends, which running waits for. changed follows services and addresses.
func repairing(ctx context.Context, a *core.ClusterAllocator, changed resource.Follower, running *sync.WaitGroup, log *slog.Logger, metrics measure.Sink) error {
	// The first delivery is of all services, which Repair reads after it.
	if err := changed.Pull(ctx, func(bool, []resource.Change) {}); err != nil {
		return err
	}
	if err := a.Repair(ctx); err != nil {
		return err
	}
	report := func(err error) {
		if err != nil && ctx.Err() == nil {
			log.Warn("repairing the addresses of services", "error", err)
			measure.Count(metrics, measure.ServiceRepairErrors)
		}
	}
	clock.Background(ctx, running, core.RepairEvery, func() { report(a.Repair(ctx)) })
	// What changes is repaired at once.
	clock.Background(ctx, running, repairSoon, func() {
		if changed.Current() {
			return
		}
		var names []types.NamespacedName
		report(changed.Pull(ctx, func(_ bool, changes []resource.Change) { names = core.ServicesOf(changes) }))
		report(a.RepairServices(ctx, names))
	})
	return nil
}

// ensuringRanges makes the default ServiceCIDR, and again when it is deleted, until ctx ends.
func ensuringRanges(ctx context.Context, a *core.ClusterAllocator, running *sync.WaitGroup, log *slog.Logger) error {
	if err := a.EnsureRanges(ctx); err != nil {
		return err
	}
	clock.Background(ctx, running, core.EnsureRangesEvery, func() {
		if err := a.EnsureRanges(ctx); err != nil && ctx.Err() == nil {
			log.Warn("making the default ServiceCIDR", "error", err)
		}
	})
	return nil
}

// repairSoon is how long a service may lack its address before that is repaired.
const repairSoon = time.Second
