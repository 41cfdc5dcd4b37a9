package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilversion "k8s.io/apimachinery/pkg/util/version"
)

// CoordinationLease is held by the server that runs the coordinated leader election.
const CoordinationLease = "leader-election-controller"

const (
	// lookAgain is the interval at which an unchanged lease is checked for expiry.
	lookAgain = 5 * time.Second
	// answerWithin is how long candidates have to answer a ping, and how long an
	// answer counts.
	answerWithin = 5 * time.Second
	// chosenFor is the lease duration, in seconds, given to a newly elected leader
	// that has yet to renew the lease.
	chosenFor = 5
	// candidateFor is how long a candidate counts after its last renewal.
	candidateFor  = 30 * time.Minute
	forgetThemAll = 30 * time.Minute
)

type candidate = coordinationv1beta1.LeaseCandidate

// Coordination elects leaders among LeaseCandidates (coordinated leader election). It
// elects the candidate with the oldest emulation version, so that a leader never uses
// features that other candidates do not know. Candidates are pinged before an election.
// If a better candidate than the holder of a lease appears, the holder is asked through
// spec.preferredHolder to release the lease.
type Coordination struct {
	Feed   Feed
	Client *Client
	// Elect makes one server at a time run the elections.
	Elect  *Election
	Logger *slog.Logger
	// Now returns the current time; nil is time.Now.
	Now func() time.Time

	mu    sync.Mutex
	known map[named]bool // leases that have had candidates
	queue *Queue[candidacy]
}

// candidacy is a key of the queue: a lease, or a candidate whose lease is to be looked at.
type candidacy struct {
	named
	candidate bool
}

// Run runs elections until ctx ends.
func (c *Coordination) Run(ctx context.Context) {
	if c.Now == nil {
		c.Now = time.Now
	}
	for ctx.Err() == nil {
		if err := c.Elect.lead(ctx, c.Client, c.Logger, func() {}, c.run); err != nil && ctx.Err() == nil {
			c.Logger.Warn("coordinated leader election failed and is restarted", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(restartAfter):
		}
	}
}

func (c *Coordination) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var running group
	defer running.wait()
	defer cancel()
	env := &Env{
		Client: c.Client, Feed: c.Feed, Log: c.Logger, Now: c.Now, ctx: ctx, running: &running,
		onStart: func(func(context.Context)) {}, onJump: func(func()) {},
	}
	c.known, c.queue = map[named]bool{}, NewQueue(env, 1, c.look)
	running.Go(func() {
		for ctx.Err() == nil {
			if err := c.deleteStale(ctx); err != nil && ctx.Err() == nil {
				c.Logger.Warn("stale LeaseCandidates could not be deleted; the next round tries again", "error", err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(forgetThemAll):
			}
		}
	})
	if err := c.Feed.Follow(ctx, c.observe); err != nil {
		return err
	}
	if ctx.Err() == nil {
		return errors.New("the feed has ended")
	}
	return nil
}

func (c *Coordination) observe(changes []Change) {
	for i := range changes {
		change := &changes[i]
		key := named{change.Namespace, change.Name}
		switch {
		case change.Kind.Is(coordinationv1.GroupName, "leasecandidates") && change.Gone:
			for _, lease := range c.leases(change.Namespace) {
				c.queue.Add(candidacy{named: lease})
			}
		case change.Kind.Is(coordinationv1.GroupName, "leasecandidates"):
			c.queue.Add(candidacy{key, true})
		case change.Kind.Is(coordinationv1.GroupName, "leases") && c.has(key):
			c.queue.Add(candidacy{named: key})
		}
	}
}

func (c *Coordination) has(lease named) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known[lease]
}

// leases returns the leases of a namespace that have had candidates.
func (c *Coordination) leases(namespace string) (all []named) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for lease := range c.known {
		if lease.namespace == namespace {
			all = append(all, lease)
		}
	}
	return all
}

func (c *Coordination) kinds() (leases, candidates *Kind, err error) {
	leases, ok := c.Feed.Find(coordinationv1.SchemeGroupVersion.String(), "Lease")
	candidates, also := c.Feed.Find(coordinationv1beta1.SchemeGroupVersion.String(), "LeaseCandidate")
	if !ok || !also {
		return nil, nil, errors.New("leases and their candidates are not served")
	}
	return leases, candidates, nil
}

// look is the work function of the queue.
func (c *Coordination) look(ctx context.Context, key candidacy) error {
	leases, candidates, err := c.kinds()
	if err != nil {
		return err
	}
	if !key.candidate {
		again, err := c.elect(ctx, leases, candidates, key.named)
		if again {
			c.queue.AddAfter(key, lookAgain)
		}
		return err
	}
	var one candidate
	if err := c.Client.Get(ctx, candidates, key.namespace, key.name, &one); err != nil {
		return ignoreNotFound(err)
	}
	if isPinged(&one) {
		return nil // an election is under way and waits for this candidate
	}
	lease := named{key.namespace, one.Spec.LeaseName}
	c.mu.Lock()
	c.known[lease] = true
	c.mu.Unlock()
	c.queue.Add(candidacy{named: lease})
	return nil
}

// isPinged reports whether a candidate was pinged and has not answered.
func isPinged(c *candidate) bool {
	return c.Spec.PingTime != nil && c.Spec.RenewTime.Before(c.Spec.PingTime)
}

// elect takes one step of an election, by the current state: it pings candidates, or
// makes one of those that answered the leader. again asks for the lease to be looked at
// again after lookAgain, even without a change.
func (c *Coordination) elect(ctx context.Context, leases, kind *Kind, key named) (again bool, err error) {
	all, err := c.candidates(ctx, kind, key)
	if err != nil || len(all) == 0 {
		return err != nil, err
	}
	var lease *coordinationv1.Lease
	switch found, err := c.lease(ctx, leases, key); {
	case err == nil:
		lease = found
	case !apierrors.IsNotFound(err):
		return true, err
	}
	now := c.Now()
	if needed, err := electionNeeded(all, lease, now); err != nil || !needed {
		return true, err
	}
	ready, err := c.ping(ctx, kind, all, now)
	if err != nil || !ready {
		return true, err
	}
	var present []*candidate
	for _, one := range all {
		if one.Spec.RenewTime.Add(answerWithin).After(now) {
			present = append(present, one)
		}
	}
	if len(present) == 0 {
		return true, nil
	}
	strategy, err := chooseStrategy(present)
	if err != nil {
		return true, err
	}
	return true, c.write(ctx, leases, key, lease, strategy, oldest(present), now)
}

func (c *Coordination) lease(ctx context.Context, kind *Kind, key named) (*coordinationv1.Lease, error) {
	var l coordinationv1.Lease
	err := c.Client.Get(ctx, kind, key.namespace, key.name, &l)
	return &l, err
}

// candidates returns the candidates of a lease that have renewed recently.
func (c *Coordination) candidates(ctx context.Context, kind *Kind, lease named) (all []*candidate, err error) {
	var list coordinationv1beta1.LeaseCandidateList
	if err := c.Client.List(ctx, kind, lease.namespace, &list); err != nil {
		return nil, err
	}
	for i := range list.Items {
		if one := &list.Items[i]; one.Spec.LeaseName == lease.name && !isStale(one, c.Now()) {
			all = append(all, one)
		}
	}
	return all, nil
}

func isStale(c *candidate, now time.Time) bool {
	return c.Spec.RenewTime == nil || c.Spec.RenewTime.Add(candidateFor).Before(now)
}

func isExpired(l *coordinationv1.Lease, now time.Time) bool {
	s := &l.Spec
	return s.RenewTime == nil || s.LeaseDurationSeconds == nil ||
		s.RenewTime.Add(time.Duration(*s.LeaseDurationSeconds)*time.Second).Before(now)
}

func holder(l *coordinationv1.Lease) string {
	if l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

// electionNeeded reports whether there is no leader, or a better candidate, or a
// candidate whose last renewal is half of candidateFor ago.
func electionNeeded(all []*candidate, lease *coordinationv1.Lease, now time.Time) (bool, error) {
	if lease == nil || isExpired(lease, now) || holder(lease) == "" {
		return true, nil
	}
	for _, one := range all {
		if one.Spec.RenewTime.Add(candidateFor / 2).Before(now) {
			return true, nil
		}
	}
	strategy, err := chooseStrategy(all)
	if err != nil || strategy != coordinationv1.OldestEmulationVersion {
		return false, err
	}
	best := oldest(all)
	return best != nil && best.Name != holder(lease), nil
}

// ping pings candidates, and reports whether all have answered or had the time to.
func (c *Coordination) ping(ctx context.Context, kind *Kind, all []*candidate, now time.Time) (ready bool, err error) {
	ready = true
	for _, one := range all {
		spec := &one.Spec
		switch {
		case isPinged(one) && spec.PingTime.Add(answerWithin).After(now):
			ready = false
		case spec.RenewTime.Add(answerWithin).After(now):
		case spec.PingTime == nil || spec.PingTime.Add(answerWithin).Before(now) && !isPinged(one):
			ready = false
			spec.PingTime = new(metav1.NewMicroTime(now))
			if err := c.Client.Update(ctx, kind, one.Namespace, one.Name, "", one, nil); err != nil {
				return false, err
			}
		}
	}
	return ready, nil
}

// write makes best the holder of the lease, or asks the holder to release it to best.
// best is nil for a strategy that another controller implements.
func (c *Coordination) write(ctx context.Context, kind *Kind, key named, lease *coordinationv1.Lease, strategy coordinationv1.CoordinatedLeaseStrategy, best *candidate, now time.Time) error {
	name := ""
	if strategy == coordinationv1.OldestEmulationVersion {
		if best == nil {
			return fmt.Errorf("no candidate for %s has versions that can be read", key.name)
		}
		name = best.Name
	}
	if lease == nil {
		lease = &coordinationv1.Lease{
			TypeMeta:   metav1.TypeMeta{APIVersion: kind.APIVersion(), Kind: kind.Kind},
			ObjectMeta: metav1.ObjectMeta{Namespace: key.namespace, Name: key.name},
			Spec:       coordinationv1.LeaseSpec{Strategy: &strategy, LeaseDurationSeconds: new(int32(chosenFor)), RenewTime: new(metav1.NewMicroTime(now))},
		}
		if name != "" {
			lease.Spec.HolderIdentity = &name
		}
		c.Logger.Info("leader elected", "lease", key.name, "namespace", key.namespace, "leader", name, "strategy", strategy)
		return c.Client.Create(ctx, kind, key.namespace, lease)
	}
	before := lease.DeepCopy()
	s := &lease.Spec
	if s.Strategy == nil || *s.Strategy != strategy {
		s.Strategy = &strategy
	}
	switch was := holder(lease); {
	case name == "":
	case was == "", was != name && isExpired(lease, now):
		s.PreferredHolder, s.HolderIdentity, s.AcquireTime = nil, &name, nil
		s.RenewTime, s.LeaseDurationSeconds = new(metav1.NewMicroTime(now)), new(int32(chosenFor))
	case was != name:
		s.PreferredHolder = &name
	}
	if equality.Semantic.DeepEqual(lease, before) {
		return nil
	}
	c.Logger.Info("leader elected", "lease", key.name, "namespace", key.namespace, "leader", name, "strategy", strategy)
	return c.Client.Update(ctx, kind, key.namespace, key.name, "", lease, nil)
}

// chooseStrategy returns the strategy that the candidates with the newest binary version
// ask for. It is an error if they do not agree.
func chooseStrategy(all []*candidate) (coordinationv1.CoordinatedLeaseStrategy, error) {
	newest := all[0]
	for _, one := range all[1:] {
		switch order := version(newest.Spec.BinaryVersion).compare(version(one.Spec.BinaryVersion)); {
		case order < 0:
			newest = one
		case order == 0 && one.Spec.Strategy != newest.Spec.Strategy:
			return "", fmt.Errorf("candidates %q, %q at same binary version but received differing strategies %s, %s",
				newest.Name, one.Name, newest.Spec.Strategy, one.Spec.Strategy)
		}
	}
	return newest.Spec.Strategy, nil
}

// oldest returns the candidate with the oldest emulation version, then the oldest binary
// version, then the earliest creation.
func oldest(all []*candidate) (best *candidate) {
	for _, one := range all {
		emulated, binary := version(one.Spec.EmulationVersion), version(one.Spec.BinaryVersion)
		if emulated.Version == nil || binary.Version == nil {
			continue
		}
		if best == nil || cmp.Or(
			emulated.compare(version(best.Spec.EmulationVersion)),
			binary.compare(version(best.Spec.BinaryVersion)),
			one.CreationTimestamp.Compare(best.CreationTimestamp.Time)) < 0 {
			best = one
		}
	}
	return best
}

// semver is a version; one that cannot be parsed is the smallest.
type semver struct{ *utilversion.Version }

// version parses a version whose minor and patch parts may be missing.
func version(text string) semver {
	text = strings.TrimPrefix(strings.TrimSpace(text), "v")
	if n := strings.Count(text, "."); n < 2 && !strings.ContainsAny(text, "-+") {
		text += strings.Repeat(".0", 2-n)
	}
	v, err := utilversion.ParseSemantic(text)
	if err != nil {
		return semver{}
	}
	return semver{v}
}

func (v semver) compare(other semver) int {
	switch {
	case v.Version == nil && other.Version == nil:
		return 0
	case v.Version == nil:
		return -1
	case other.Version == nil:
		return 1
	case v.LessThan(other.Version):
		return -1
	case other.LessThan(v.Version):
		return 1
	}
	return 0
}

// deleteStale deletes candidates that have not renewed for long.
func (c *Coordination) deleteStale(ctx context.Context) error {
	_, kind, err := c.kinds()
	if err != nil {
		return err
	}
	var list coordinationv1beta1.LeaseCandidateList
	if err := c.Client.List(ctx, kind, "", &list); err != nil {
		return err
	}
	var errs []error
	for i := range list.Items {
		if one := &list.Items[i]; isStale(one, c.Now()) {
			errs = append(errs, mapOutdated(c.Client.Delete(ctx, kind, one.Namespace, one.Name, ifUnchanged(&one.ObjectMeta))))
		}
	}
	return errors.Join(errs...)
}
