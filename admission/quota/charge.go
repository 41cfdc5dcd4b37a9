package quota

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/apikeel/kelson/resource"
)

// evaluationTime bounds how long charging may take.
const evaluationTime = 10 * time.Second

// queue holds the claims of a namespace. At most one goroutine, one of those that wait,
// charges at a time: it takes all waiting claims, and then hands over to one that has come
// meanwhile. If a namespace has two queues, because one was evicted from the cache, charging
// is only slower.
type queue struct {
	plugin    *Plugin
	namespace string

	mu      sync.Mutex
	busy    bool
	waiting []*claim

	chains map[string]*chain // by the name of the quota; only for the goroutine that charges
}

// chain is a series of consecutive writes to a quota that are all from this process.
type chain struct {
	number int    // number of the series
	last   string // resourceVersion after the last write
}

// charge is what a claim was charged on a quota.
type charge struct {
	quota string
	chain int
	delta corev1.ResourceList
	entry *entry // of the ledger
	made  time.Time
}

// enter charges a claim, and returns the refusal.
func (q *queue) enter(ctx context.Context, c *claim) error {
	q.mu.Lock()
	q.waiting = append(q.waiting, c)
	lead := !q.busy
	q.busy = true
	q.mu.Unlock()
	if !lead {
		select {
		case <-c.done:
			return c.err
		case <-c.lead:
		case <-ctx.Done():
			if q.leave(c) {
				return ctx.Err()
			}
			select { // another goroutine charges it, or it becomes the leader
			case <-c.done:
				return c.err
			case <-c.lead:
			}
		}
	}
	q.run(ctx)
	<-c.done
	return c.err
}

// leave removes a claim that is not being charged and was not made the leader.
func (q *queue) leave(c *claim) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-c.lead:
		return false
	default:
	}
	i := slices.Index(q.waiting, c)
	if i >= 0 {
		q.waiting = slices.Delete(q.waiting, i, i+1)
	}
	return i >= 0
}

// run charges all waiting claims, and hands over.
func (q *queue) run(ctx context.Context) {
	// The claims of other requests must not fail when this request ends.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), evaluationTime)
	defer cancel()
	q.mu.Lock()
	claims := q.waiting
	q.waiting = nil
	q.mu.Unlock()
	for _, c := range claims {
		if c.back != nil {
			q.giveBack(ctx, c.back)
		}
	}
	q.charge(ctx, claims)
	for _, c := range claims {
		if c.err != nil {
			q.giveBack(ctx, c) // allowed by one quota, refused by another
		}
		close(c.done)
	}
	q.handOver()
}

// handOver makes a waiting claim the leader.
func (q *queue) handOver() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.busy = len(q.waiting) > 0; q.busy {
		close(q.waiting[0].lead)
	}
}

// charge charges claims on all quotas that match them.
func (q *queue) charge(ctx context.Context, claims []*claim) {
	names := map[string]bool{}
	for _, c := range claims {
		for name := range c.deltas {
			names[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		var about []*claim
		for _, c := range claims {
			if c.err == nil && c.deltas[name] != nil {
				about = append(about, c)
			}
		}
		if len(about) > 0 {
			q.chargeOne(ctx, name, about)
		}
	}
}

// errNothing ends an update that changes nothing.
var errNothing = errors.New("nothing is charged")

// chargeOne charges claims on one quota, in order, those that fit.
func (q *queue) chargeOne(ctx context.Context, name string, claims []*claim) {
	refused := make([]error, len(claims))
	deltas := make([]corev1.ResourceList, len(claims))
	of, ledger, made := account{q.namespace, name}, q.plugin.ledger, q.plugin.ledger.now()
	entries := make([]*entry, len(claims))
	for i, c := range claims {
		entries[i] = ledger.open(of, c.deltas[name])
	}
	number, err := q.update(ctx, name, func(quota *corev1.ResourceQuota) error {
		clear(refused)
		clear(deltas)
		charged := false
		for i, c := range claims {
			used := quota.Status.Used
			next, err := c.charge(quota, used)
			if err != nil {
				refused[i] = err
				continue
			}
			if deltas[i] = growth(next, used); len(deltas[i]) > 0 {
				quota.Status.Used, charged = next, true
			}
		}
		if !charged {
			return errNothing
		}
		return nil
	})
	uncertain := err != nil && !apierrors.IsNotFound(err) && !errors.Is(err, errNothing)
	defer func() {
		for i, c := range claims {
			switch {
			case uncertain:
				ledger.doubt(of, entries[i])
			case !slices.ContainsFunc(c.charged, func(made charge) bool { return made.entry == entries[i] }):
				ledger.close(of, entries[i], true)
			}
		}
	}()
	switch {
	case apierrors.IsNotFound(err):
		return // the quota was deleted
	case errors.Is(err, context.DeadlineExceeded):
		err = errTimeout()
	case errors.Is(err, errNothing):
		err = nil
	}
	for i, c := range claims {
		switch {
		case err != nil:
			c.err = err
		case refused[i] != nil:
			c.err = refused[i]
		case len(deltas[i]) > 0:
			c.charged = append(c.charged, charge{name, number, deltas[i], entries[i], made})
		}
	}
}

// update changes the status of a quota, and returns the number of the chain of the write.
func (q *queue) update(ctx context.Context, name string, change func(quota *corev1.ResourceQuota) error) (int, error) {
	seen := ""
	obj, err := q.plugin.objects.UpdateStatus(ctx, "", "resourcequotas", q.namespace, name, func(obj resource.Object) error {
		quota, ok := obj.(*corev1.ResourceQuota)
		if !ok {
			return errNothing
		}
		seen = quota.ResourceVersion
		return change(quota)
	})
	if err != nil {
		return 0, err
	}
	c := q.chains[name]
	if c == nil {
		c = &chain{}
		q.chains[name] = c
	}
	if c.last != seen {
		c.number++
	}
	c.last = obj.GetResourceVersion()
	q.plugin.ledger.wrote(account{q.namespace, name}, c.last)
	return c.number, nil
}

// end tells the ledger what became of the write of a claim, and returns the charges if it has failed.
func (q *queue) end(ctx context.Context, c *claim, o resource.Outcome) {
	if o == resource.NotWritten {
		q.release(ctx, c)
		return
	}
	for _, made := range c.charged {
		if of := (account{q.namespace, made.quota}); o == resource.Written {
			q.plugin.ledger.close(of, made.entry, false)
		} else {
			q.plugin.ledger.doubt(of, made.entry)
		}
	}
}

// release returns the charges of a claim whose write has failed. It goes through the queue
// like a claim.
func (q *queue) release(ctx context.Context, c *claim) {
	if len(c.charged) > 0 {
		_ = q.enter(context.WithoutCancel(ctx), &claim{back: c, lead: make(chan struct{}), done: make(chan struct{})})
	}
}

// giveBack subtracts the charges of a claim. Where recounts are not made with the ledger, or another server
// may have counted the charge as lost, only from quotas that nobody else has written since.
func (q *queue) giveBack(ctx context.Context, c *claim) {
	for _, made := range c.charged {
		of, ledger := account{q.namespace, made.quota}, q.plugin.ledger
		known := q.chains[made.quota]
		chained := known != nil && known.number == made.chain
		if !chained && !ledger.keeps(made.made) {
			ledger.doubt(of, made.entry)
			continue
		}
		last := ""
		if !ledger.keeps(made.made) {
			last = known.last
		}
		_, err := q.update(ctx, made.quota, func(quota *corev1.ResourceQuota) error {
			if last != "" && quota.ResourceVersion != last {
				return errNothing
			}
			used := quota.Status.Used.DeepCopy()
			for name, quantity := range made.delta {
				is := used[name]
				is.Sub(quantity)
				if is.Sign() >= 0 {
					used[name] = is
				}
			}
			quota.Status.Used = used
			return nil
		})
		switch {
		case err == nil || apierrors.IsNotFound(err):
			ledger.close(of, made.entry, true)
			continue
		case !errors.Is(err, errNothing):
			q.plugin.log.Warn("quota charge of a failed write could not be returned; the quota controller corrects it", "namespace", q.namespace, "quota", made.quota, "error", err)
		}
		ledger.doubt(of, made.entry)
	}
	c.charged = nil
}
