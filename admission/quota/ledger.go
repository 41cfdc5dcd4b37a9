package quota

import (
	"context"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"

	"github.com/apikeel/kelson/resource"
)

// Bounds of charges on a store that several servers write to.
const (
	// chargeLife is how long after it was charged a write may still be given to the store. Then it is
	// broken off, and its charge is left to the next recount.
	chargeLife = 5 * time.Second
	// settleTime is when every charge of another server has been committed or never will be: chargeLife,
	// and what a store takes for a write that its client no longer waits for.
	settleTime = 12 * time.Second
)

// Ledger lists the charges whose writes may not be committed yet, so that a recount of usage does not
// erase them. One Ledger is shared by the plugin, which charges, and the controller, which recounts.
//
// # Invariants
//
//  1. A charge is in the ledger before the quota is updated with it, and until its write is committed, or
//     the charge was returned, or settleTime has passed after an unknown outcome.
//  2. A Recount begins before the quota is read and the objects are counted. It has every charge that was
//     in the ledger then, and every later one. An object that is not counted belongs to one of these, or
//     to a charge that changes the quota after it was read: then the recount's update has a conflict.
//  3. Charges of other servers are seen as versions of the quota whose used has grown. They count for
//     settleTime; a Ledger that has not followed the quotas for so long lowers nothing.
type Ledger struct {
	others resource.Follower // nil if no other server charges the quotas
	now    func() time.Time
	// elsewhere says that usage is recounted by who does not know the ledger.
	elsewhere bool

	mu       sync.Mutex // guards the fields below and those of accounts, entries and Recounts
	accounts map[account]*pending
	followed time.Time // since when others has told of every version
	swept    time.Time // when accounts were last looked through for what has expired
}

// NewLedger returns a Ledger. others follows ResourceQuotas where other servers charge them, too; nil
// says that this process does alone.
func NewLedger(others resource.Follower, now func() time.Time) *Ledger {
	if now == nil {
		now = time.Now
	}
	return &Ledger{others: others, now: now, accounts: map[account]*pending{}}
}

// account names a quota.
type account struct{ namespace, quota string }

// pending is what the ledger knows of a quota. It is forgotten when it is empty.
type pending struct {
	entries  map[*entry]struct{}
	recounts map[*Recount]struct{}
	// Of a store that others write to: status.used of the version that was told last, its rises in the
	// last settleTime, and the versions that this process wrote in that time.
	used  corev1.ResourceList
	rises []rise
	own   map[string]time.Time
}

// entry is a charge of this process.
type entry struct {
	delta corev1.ResourceList
	// returned says that the charge is not in the quota: it was refused or given back.
	returned bool
	// expires is settleTime after an unknown outcome; zero while the write is under way.
	expires time.Time
}

// rise is a version of a quota whose used is larger than before.
type rise struct {
	version string
	delta   corev1.ResourceList
	expires time.Time
}

// pendingLocked returns what is known of a quota.
func (l *Ledger) pendingLocked(of account) *pending {
	p := l.accounts[of]
	if p == nil {
		p = &pending{entries: map[*entry]struct{}{}, recounts: map[*Recount]struct{}{}, own: map[string]time.Time{}}
		l.accounts[of] = p
	}
	return p
}

// expireLocked removes what has expired, and the account if nothing is left.
func (l *Ledger) expireLocked(of account, p *pending) {
	now := l.now()
	for e := range p.entries {
		if !e.expires.IsZero() && e.expires.Before(now) {
			delete(p.entries, e)
		}
	}
	p.rises = slices.DeleteFunc(p.rises, func(g rise) bool { return g.expires.Before(now) })
	for version, expires := range p.own {
		if expires.Before(now) {
			delete(p.own, version)
		}
	}
	if len(p.entries)+len(p.recounts)+len(p.rises)+len(p.own) == 0 && p.used == nil {
		delete(l.accounts, of)
	}
}

// sweepLocked removes what has expired of quotas that nobody asks for any more.
func (l *Ledger) sweepLocked() {
	if l.now().Sub(l.swept) < settleTime {
		return
	}
	l.swept = l.now()
	for of, p := range l.accounts {
		l.expireLocked(of, p)
	}
}

// open adds a charge that is about to be made.
func (l *Ledger) open(of account, delta corev1.ResourceList) *entry {
	e := &entry{delta: delta}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sweepLocked()
	p := l.pendingLocked(of)
	p.entries[e] = struct{}{}
	for r := range p.recounts {
		r.entries = append(r.entries, e)
	}
	return e
}

// close removes a charge whose write was committed or, if it is returned, one that the quota no longer
// has.
func (l *Ledger) close(of account, e *entry, returned bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.returned = returned
	p := l.pendingLocked(of)
	delete(p.entries, e)
	l.expireLocked(of, p)
}

// doubt keeps a charge for settleTime, of which it is unknown whether its write will be committed.
func (l *Ledger) doubt(of account, e *entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.expires = l.now().Add(settleTime)
	l.expireLocked(of, l.pendingLocked(of))
}

// wrote notes that this process has written a version of a quota.
func (l *Ledger) wrote(of account, version string) {
	if l.others == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.pendingLocked(of)
	p.own[version] = l.now().Add(settleTime)
	l.expireLocked(of, p)
}

// keeps reports whether every recount since a charge was made has counted it.
func (l *Ledger) keeps(made time.Time) bool {
	return !l.elsewhere && (l.others == nil || l.now().Sub(made) < chargeLife)
}

// Recount is one calculation of the usage of a quota.
type Recount struct {
	ledger  *Ledger
	of      account
	entries []*entry
}

// Recount begins a recount. It has to be called before the quota is read; End ends it.
func (l *Ledger) Recount(namespace, name string) *Recount {
	r := &Recount{ledger: l, of: account{namespace, name}}
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.pendingLocked(r.of)
	p.recounts[r] = struct{}{}
	l.expireLocked(r.of, p)
	for e := range p.entries {
		r.entries = append(r.entries, e)
	}
	return r
}

// Wrote notes the version of the quota that was written with the recount.
func (r *Recount) Wrote(version string) { r.ledger.wrote(r.of, version) }

// End ends the recount.
func (r *Recount) End() {
	r.ledger.mu.Lock()
	defer r.ledger.mu.Unlock()
	p := r.ledger.pendingLocked(r.of)
	delete(p.recounts, r)
	r.ledger.expireLocked(r.of, p)
}

// Used returns the usage to be written to a quota: what was counted, and the charges that may not be
// among it, but with those no more than the quota has. again is when to recount, because something may be
// pending; 0 is never.
func (r *Recount) Used(ctx context.Context, has, counted corev1.ResourceList) (used corev1.ResourceList, again time.Duration, err error) {
	charged, again, err := r.charged(ctx)
	if err != nil {
		return nil, 0, err
	}
	used = corev1.ResourceList{}
	for name, quantity := range counted {
		had, known := has[name]
		if more, ok := charged[name]; ok || charged == nil {
			sum := quantity.DeepCopy()
			sum.Add(more)
			if known && (charged == nil || sum.Cmp(had) > 0) {
				sum = had.DeepCopy()
			}
			if sum.Cmp(quantity) > 0 {
				quantity = apiresource.Quantity{Format: quantity.Format}
				quantity.Add(sum)
			}
		}
		used[name] = quantity
	}
	return used, again, nil
}

// charged returns the charges that may not be counted; nil if those of other servers are unknown.
func (r *Recount) charged(ctx context.Context) (sum corev1.ResourceList, again time.Duration, err error) {
	l := r.ledger
	if l.others != nil {
		if err := l.others.Pull(ctx, l.follow); err != nil {
			return nil, 0, err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if l.others != nil {
		if rest := l.followed.Add(settleTime).Sub(now); rest > 0 {
			return nil, rest, nil
		}
	}
	sum = corev1.ResourceList{}
	for _, e := range r.entries {
		if e.returned {
			continue
		}
		addTo(sum, e.delta)
		again = max(again, time.Millisecond)
		if !e.expires.IsZero() {
			again = max(again, e.expires.Sub(now))
		}
	}
	p := l.pendingLocked(r.of)
	for _, g := range p.rises {
		if _, own := p.own[g.version]; !own && !g.expires.Before(now) {
			addTo(sum, g.delta)
			again = max(again, g.expires.Sub(now))
		}
	}
	return sum, again, nil
}

// follow takes the versions of quotas from the Follower.
func (l *Ledger) follow(reset bool, changes []resource.Change) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sweepLocked()
	now := l.now()
	if reset {
		l.followed = now
		for of, p := range l.accounts {
			p.used, p.rises = nil, nil
			l.expireLocked(of, p)
		}
	}
	for _, c := range changes {
		q, ok := c.Object.(*corev1.ResourceQuota)
		if !ok {
			continue
		}
		of := account{q.Namespace, q.Name}
		p := l.pendingLocked(of)
		if more := growth(q.Status.Used, p.used); p.used != nil && len(more) > 0 {
			p.rises = append(p.rises, rise{q.ResourceVersion, more, now.Add(settleTime)})
		}
		p.used = q.Status.Used
		if c.Deleted {
			p.used = nil
		}
		l.expireLocked(of, p)
	}
}
