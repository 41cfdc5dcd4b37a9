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

// The lease by which servers agree on whose controllers run, and its times,
// which are those of kube-controller-manager.
const (
	leaseName  = "kelson-controllers"
	leaseFor   = 15 * time.Second
	leaseRenew = 10 * time.Second
	leaseRetry = 2 * time.Second
)

// Election is by a lease in kube-system.
type Election struct {
	// Identity tells this server from the others.
	Identity string
	// Lease is the name of the lease; "" is that of the controllers.
	Lease string
	// For is how long the lease holds, Renew how long its holder tries to renew it,
	// and Retry how long anybody waits before the next try. Zero is the usual.
	For, Renew, Retry time.Duration
	// Kind of leases.
	Kind func() *Kind

	// seen is when somebody else last renewed the lease by their clock, and since
	// when that is known by ours: clocks need not agree.
	seen  metav1.MicroTime
	since time.Time
}

func (e *Election) defaults() {
	e.Lease = cmp.Or(e.Lease, leaseName)
	e.For, e.Renew, e.Retry = cmp.Or(e.For, leaseFor), cmp.Or(e.Renew, leaseRenew), cmp.Or(e.Retry, leaseRetry)
}

// lead waits until the lease can be had, calls run while it is held, and gives
// it back. A server that waits is ready: another one does the work.
func (e *Election) lead(ctx context.Context, c *Client, log *slog.Logger, ready func(), run func(context.Context) error) error {
	e.defaults()
	for told := false; ; told = true {
		held, err := e.take(ctx, c)
		if held {
			break
		}
		if !told {
			log.Info("controllers run elsewhere, or cannot have their lease", "lease", e.Lease, "error", err)
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
		e.keep(leading, c, log)
	}()
	err := run(leading)
	cancel()
	<-renewed
	log.Info("controllers have stopped here", "lease", e.Lease, "identity", e.Identity)
	e.giveBack(context.WithoutCancel(ctx), c)
	return err
}

// keep renews the lease until ctx ends or it is lost.
func (e *Election) keep(ctx context.Context, c *Client, log *slog.Logger) {
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(e.Retry):
		}
		held, err := e.take(ctx, c)
		switch {
		case held:
			last = time.Now()
		case err == nil, time.Since(last) > e.Renew:
			log.Warn("the lease of the controllers is lost", "error", err)
			return
		}
	}
}

// take takes or renews the lease, and reports whether it is held.
func (e *Election) take(ctx context.Context, c *Client) (bool, error) {
	kind := e.Kind()
	if kind == nil {
		return true, nil // no leases, no rivals
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

// giveBack lets others have the lease at once.
func (e *Election) giveBack(ctx context.Context, c *Client) {
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
