package controlplane

import (
	"context"
	"os"
	"time"

	"github.com/google/uuid"
	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/builtin/coordination"
	"github.com/apikeel/kelson/controller"
	"github.com/apikeel/kelson/request"
)

// Leadership is how servers agree on which of them chooses leaders for others, if a
// feature gate has them do that. Zero values are the usual.
type Leadership struct {
	// Duration of the lease, Deadline for its renewal, and Retry between two tries.
	Duration, Deadline, Retry time.Duration
}

// coordinationHooks choose leaders among candidates. Without the version of these in
// which it is done there are none to choose from.
func (a *assembly) coordinationHooks() []kelson.Hook {
	if !a.Gates.Enabled(coordination.CoordinatedLeaderElection) {
		return nil
	}
	return []kelson.Hook{{Name: "start-kube-apiserver-coordinated-leader-election-controller", Run: func(ctx context.Context) error {
		if _, ok := a.catalogs.get().Lookup(coordinationv1.GroupName, coordinationv1beta1.SchemeGroupVersion.Version, "leasecandidates"); !ok {
			a.Logger.Warn("there are no candidates for leases, since their version is off", "version", coordinationv1beta1.SchemeGroupVersion.String())
			return nil
		}
		host, err := os.Hostname()
		if err != nil {
			return err
		}
		c := &controller.Coordination{
			Feed: a.manager.Feed, Logger: a.Logger, Now: a.Now,
			Client: &controller.Client{
				Transport: a.outer.Loopback(request.User{Name: "system:apiserver", Groups: []string{"system:masters", "system:authenticated"}}),
				Agent:     "kube-apiserver",
			},
			Elect: &controller.Election{
				Identity: host + "_" + uuid.NewString(), Lease: controller.CoordinationLease,
				For: a.Leadership.Duration, Renew: a.Leadership.Deadline, Retry: a.Leadership.Retry,
				Kind: func() *controller.Kind {
					k, _ := a.manager.Feed.Served(coordinationv1.GroupName, "leases")
					return k
				},
			},
		}
		if err := a.own.EnsureNamespaces(ctx); err != nil {
			return err
		}
		a.running.Go(func() { c.Run(ctx) })
		return nil
	}}}
}
