package controller

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The lease that decides whose controllers run. The durations are the defaults of
// kube-controller-manager.
const (
	leaseName  = "kelson-controllers"
	leaseFor   = 15 * time.Second
	leaseRenew = 10 * time.Second
	leaseRetry = 2 * time.Second
)

// Election is leader election by a Lease in kube-system.
type Election struct {
	// Identity of this server in the lease.
	Identity string
	// Lease is the name of the lease; "" is that of the controllers.
	Lease string
	// For is the lease duration, Renew the renew deadline, Retry the retry period.
	// Zero is the default.
	For, Renew, Retry time.Duration
	// Kind returns the resource of leases, nil if they are not served.
	Kind func() *Kind

	// seen is the renewTime that another holder wrote, since when it was first read
	// here: expiry is measured by the local clock, as clocks may differ.
	seen  metav1.MicroTime
	since time.Time
}

func (e *Election) defaults() {
	e.Lease = cmp.Or(e.Lease, leaseName)
	e.For, e.Renew, e.Retry = cmp.Or(e.For, leaseFor), cmp.Or(e.Renew, leaseRenew), cmp.Or(e.Retry, leaseRetry)
}

// lead waits for the lease, calls run while it holds it, and releases it. ready is
// called also if another server holds the lease.
func (e *Election) lead(ctx context.Context, c *Client, log *slog.Logger, ready func(), run func(context.Context) error) error {
	e.defaults()
	for told := false; ; told = true {
		held, err := e.takeLease(ctx, c)
		if held {
			break
		}
		if !told {
			log.Info("waiting for the lease of the controllers: another server holds it, or it cannot be read", "lease", e.Lease, "error", err)
			ready()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(e.Retry):
		}
	}
	log.Info("controllers run here", "lease", e.Lease, "identity", e.Identity)
	leading, cancel := context.WithCancel(ctx)
	renewed := make(chan struct{})
	go func() {
		defer close(renewed)
		defer cancel()
		e.keepLease(leading, c, log)
	}()
	err := run(leading)
	cancel()
	<-renewed
	log.Info("controllers have stopped here", "lease", e.Lease, "identity", e.Identity)
	e.releaseLease(context.WithoutCancel(ctx), c)
	return err
}

// keepLease renews the lease until ctx ends or the lease is lost.
func (e *Election) keepLease(ctx context.Context, c *Client, log *slog.Logger) {
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(e.Retry):
		}
		held, err := e.takeLease(ctx, c)
		switch {
		case held:
			last = time.Now()
		case err == nil, time.Since(last) > e.Renew:
			log.Warn("lease lost, controllers stop", "error", err)
			return
		}
	}
}

// takeLease acquires or renews the lease, and reports whether it is held.
func (e *Election) takeLease(ctx context.Context, c *Client) (bool, error) {
	kind := e.Kind()
	if kind == nil {
		return true, nil // leases are not served, so no other server can hold one
	}
	now, seconds := metav1.NowMicro(), int32(e.For/time.Second)
	var l coordinationv1.Lease
	err := c.Get(ctx, kind, metav1.NamespaceSystem, e.Lease, &l)
	if apierrors.IsNotFound(err) {
		l = coordinationv1.Lease{
			TypeMeta:   metav1.TypeMeta{APIVersion: kind.APIVersion(), Kind: kind.Kind},
			ObjectMeta: metav1.ObjectMeta{Name: e.Lease, Namespace: metav1.NamespaceSystem},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &e.Identity, LeaseDurationSeconds: &seconds, AcquireTime: &now, RenewTime: &now},
		}
		err = c.Create(ctx, kind, metav1.NamespaceSystem, &l)
		return err == nil, err
	}
	if err != nil {
		return false, err
	}
	if holder := l.Spec.HolderIdentity; holder == nil || *holder != e.Identity {
		if renewed := l.Spec.RenewTime; holder != nil && *holder != "" && renewed != nil {
			if !renewed.Equal(&e.seen) {
				e.seen, e.since = *renewed, time.Now()
			}
			if time.Since(e.since) < e.For {
				return false, nil
			}
		}
		transitions := int32(1)
		if l.Spec.LeaseTransitions != nil {
			transitions += *l.Spec.LeaseTransitions
		}
		l.Spec.HolderIdentity, l.Spec.AcquireTime, l.Spec.LeaseTransitions = &e.Identity, &now, &transitions
	}
	l.Spec.LeaseDurationSeconds, l.Spec.RenewTime = &seconds, &now
	err = c.Update(ctx, kind, metav1.NamespaceSystem, e.Lease, "", &l, nil)
	if apierrors.IsConflict(err) {
		return false, nil
	}
	return err == nil, err
}

// releaseLease releases the lease, so that others need not wait for its expiry.
func (e *Election) releaseLease(ctx context.Context, c *Client) {
	ctx, cancel := context.WithTimeout(ctx, e.Retry)
	defer cancel()
	kind := e.Kind()
	var l coordinationv1.Lease
	if kind == nil || c.Get(ctx, kind, metav1.NamespaceSystem, e.Lease, &l) != nil || l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity != e.Identity {
		return
	}
	nobody := ""
	l.Spec.HolderIdentity = &nobody
	_ = c.Update(ctx, kind, metav1.NamespaceSystem, e.Lease, "", &l, nil)
}
