package etcd

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// members are the connections to the members of the etcd cluster, one for each endpoint.
// Every member is probed all the time, so that requests and watches leave a member that
// is silent, cut off from the leader or much slower than another one.
//
// There are two probes. The read probe is a linearizable read: it is answered if the
// member reaches the leader and has applied what was committed. The ping is answered by
// the member alone, and is sent when the read probe takes long.
//
//   - A member whose read probe is not answered within limits.late is avoided, if
//     another one answers: new requests and watches go elsewhere, reads that wait are
//     sent again to another member.
//   - A member that does not answer the ping either has its connection closed. Writes
//     that wait for an answer fail then, as uncertain. The same is done to a member that
//     answers pings but no reads, while another one answers reads: it has no leader.
//   - When the leader has changed, writes that were sent before are given up after
//     limits.handover: etcd has forgotten those that the old leader had not committed, and
//     would answer them as uncertain after 7 s.
//   - A member is used again after several read probes in a row were answered in time;
//     the number grows if it is avoided again soon.
//
// The times are bounded steps of this process's clock: the time during which the process
// itself is suspended does not make members look silent.
type members struct {
	ctx    context.Context // ends all probes
	log    *slog.Logger
	limits memberLimits
	grace  time.Duration // how long a read is repeated without success
	all    []*member

	mu     sync.Mutex
	turn   int           // the member to choose next
	usable chan struct{} // closed and replaced when a member gets a connection
	// term is the newest term of a leader that a member has reported, 0 at first. reign
	// ends limits.handover after it has changed.
	term  uint64
	reign context.Context
	end   context.CancelFunc // of reign
}

// memberLimits are the times of members, which tests change.
type memberLimits struct {
	// interval is the time between two probes of a member, retry that of a member that
	// is avoided.
	interval, retry time.Duration
	// late is how long a read probe may take before the member is avoided. slow is the
	// average that a member may have which is four times as slow as the fastest.
	late, slow time.Duration
	// silent is how long a ping, and cutOff how long a read probe may take before the
	// connection is closed, if another member answers; alone is how long a ping may
	// take if no member answers.
	silent, cutOff, alone time.Duration
	// handover is how long writes that were sent to the leader before this one may take.
	handover time.Duration
	// step is how often a probe that takes long is looked at, and the largest time that
	// counts between two looks.
	step time.Duration
	// settled is how long a member must have been used without interruption for earlier
	// failures to be forgotten.
	settled time.Duration
}

func defaultMemberLimits() memberLimits {
	return memberLimits{
		interval: 500 * time.Millisecond,
		retry:    250 * time.Millisecond,
		late:     300 * time.Millisecond,
		slow:     100 * time.Millisecond,
		silent:   time.Second,
		cutOff:   1500 * time.Millisecond,
		alone:    4 * time.Second,
		handover: 500 * time.Millisecond,
		step:     50 * time.Millisecond,
		settled:  time.Minute,
	}
}

// Numbers of successful probes after which a member is used again.
const (
	fewProbes  = 2
	manyProbes = 64
)

// link is the connection to a member. Tests replace it.
type link interface {
	// isReady reports whether there is a connection.
	isReady() bool
	// connected waits for a connection. It returns false when ctx ends.
	connected(ctx context.Context) bool
	// lost waits until the connection is lost or ctx ends.
	lost(ctx context.Context)
	// ping makes a request that the member answers by itself.
	ping(ctx context.Context) error
	// read makes a linearizable read, and returns the term of the leader.
	read(ctx context.Context) (term uint64, err error)
	// client returns etcd's client for this member alone.
	client() *clientv3.Client
	// reset closes the connection and begins to connect again.
	reset()
	close() error
}

type member struct {
	endpoint string
	link     link

	// The rest is under members.mu.

	isConnected bool
	avoided     bool
	// passed is the number of read probes in a row that were answered in time, at
	// when the last of them was, needed how many make an avoided member usable again.
	passed, needed int
	at             time.Time
	since          time.Time     // when the member was last made usable
	latency        time.Duration // moving average of read probes; 0 if there was none
	// favor ends when requests that can be repeated should leave the member. It is
	// replaced when the member is worth using again.
	favor context.Context
	leave context.CancelFunc
}

// newMembers returns members that are used at once, and probed when start is called.
func newMembers(ctx context.Context, log *slog.Logger, limits memberLimits, endpoints []string, links []link) *members {
	ms := &members{ctx: ctx, log: log, limits: limits, grace: reconnectGrace, usable: make(chan struct{})}
	ms.reign, ms.end = context.WithCancel(ctx)
	for i, endpoint := range endpoints {
		m := &member{endpoint: endpoint, link: links[i], needed: fewProbes}
		m.favor, m.leave = context.WithCancel(ctx)
		m.leave() // there is no connection yet
		ms.all = append(ms.all, m)
	}
	return ms
}

// start begins to watch over the members, in goroutines that spawn starts.
func (ms *members) start(spawn func(func()) bool) {
	for _, m := range ms.all {
		if m.link.isReady() {
			ms.update(func() { m.isConnected = true })
		}
		spawn(func() { ms.watchOver(m) })
	}
}

// close closes the connections.
func (ms *members) close() error {
	var first error
	for _, m := range ms.all {
		if err := m.link.close(); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// choose returns a member for a request, and the context that ends when a request that
// can be repeated should go to another one. It returns nil if there is no connection.
// Members take turns: those that are not avoided, else those that answer, else any.
func (ms *members) choose() (*member, context.Context) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	for _, fits := range []func(*member) bool{
		func(m *member) bool { return m.isConnected && !m.avoided },
		func(m *member) bool { return m.isConnected && m.passed > 0 },
		func(m *member) bool { return m.isConnected },
	} {
		for range ms.all {
			ms.turn = (ms.turn + 1) % len(ms.all)
			if m := ms.all[ms.turn]; fits(m) {
				return m, m.favor
			}
		}
	}
	return nil, nil
}

// await is choose for a caller that has time.
func (ms *members) await(ctx context.Context) (*member, context.Context, error) {
	for {
		ms.mu.Lock()
		usable := ms.usable
		ms.mu.Unlock()
		if m, favor := ms.choose(); m != nil {
			return m, favor, nil
		}
		select {
		case <-usable:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
}

// read makes a request that may be repeated. It leaves a member that does not answer
// for another one, and tries again for members.grace if none is available.
func (ms *members) read(ctx context.Context, call func(context.Context, *clientv3.Client) error) error {
	for began := time.Now(); ; {
		ms.mu.Lock()
		usable := ms.usable
		ms.mu.Unlock()
		err := errNoConnection()
		if m, favor := ms.choose(); m != nil {
			callCtx, cancel := context.WithCancel(ctx)
			unlink := context.AfterFunc(favor, cancel)
			err = call(callCtx, m.link.client())
			left := callCtx.Err() != nil
			unlink()
			cancel()
			switch {
			case err == nil || ctx.Err() != nil || ms.ctx.Err() != nil:
				return err
			case left:
				continue
			case codeOf(err) != codes.Unavailable:
				return err
			}
		}
		if time.Since(began) > ms.grace {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ms.ctx.Done():
			return err
		case <-usable:
		case <-time.After(reconnectPoll):
		}
	}
}

// write makes a request that must not be repeated.
func (ms *members) write(ctx context.Context, call func(context.Context, *clientv3.Client) error) error {
	m, _ := ms.choose()
	if m == nil {
		return errNoConnection()
	}
	ms.mu.Lock()
	reign := ms.reign
	ms.mu.Unlock()
	callCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(reign, cancel)()
	err := call(callCtx, m.link.client())
	if err != nil && callCtx.Err() != nil && ctx.Err() == nil && ms.ctx.Err() == nil && !errors.As(err, new(notSentError)) {
		return status.Error(codes.Unavailable, "no answer, and the leader has changed")
	}
	return err
}

// lead notes the term of a leader. The mutex is held.
func (ms *members) lead(term uint64) {
	if term <= ms.term {
		return
	}
	if ms.term != 0 {
		end := ms.end
		ms.reign, ms.end = context.WithCancel(ms.ctx)
		time.AfterFunc(ms.limits.handover, end)
		ms.log.Info("etcd: the leader has changed", "term", term)
	}
	ms.term = term
}

func errNoConnection() error {
	return notSentError{status.Error(codes.Unavailable, "no connection to any endpoint")}
}

// watchOver keeps what is known of a member up to date until the context ends.
func (ms *members) watchOver(m *member) {
	for ms.ctx.Err() == nil && m.link.connected(ms.ctx) {
		ctx, cancel := context.WithCancel(ms.ctx)
		ms.update(func() { m.isConnected = true })
		lost := make(chan struct{})
		go func() {
			defer close(lost)
			m.link.lost(ctx)
			cancel()
		}()
		for ctx.Err() == nil {
			wait := ms.probe(ctx, m)
			select {
			case <-ctx.Done():
			case <-time.After(wait):
			}
		}
		cancel()
		<-lost
		ms.update(func() {
			m.isConnected = false
			ms.avoid(m, "its connection is lost")
		})
	}
}

// probe finds out once how a member answers, and returns the time until the next probe.
// ctx ends when the connection is lost.
func (ms *members) probe(ctx context.Context, m *member) time.Duration {
	ctx, cancel := context.WithCancel(ctx)
	var requests sync.WaitGroup
	defer requests.Wait()
	defer cancel()
	ask := func(request func(context.Context) error) <-chan error {
		answer := make(chan error, 1)
		requests.Go(func() { answer <- request(ctx) })
		return answer
	}
	// With one member there is no other one to compare it with.
	request, term := m.link.ping, uint64(0)
	if len(ms.all) > 1 {
		request = func(ctx context.Context) (err error) {
			term, err = m.link.read(ctx)
			return err
		}
	}
	began := time.Now()
	read, ping := ask(request), (<-chan error)(nil)
	tick := time.NewTicker(ms.limits.step)
	defer tick.Stop()
	var waited, pinged time.Duration // since the read probe and the ping were sent
	for last := began; ; {
		select {
		case err := <-read:
			if ctx.Err() != nil {
				return 0
			}
			return ms.answered(m, time.Since(began), term, err)
		case err := <-ping:
			// Only an answer counts, not that the request failed on its way.
			if err == nil || codeOf(err) != codes.Unavailable {
				ping, pinged = nil, 0
			}
		case now := <-tick.C:
			step := min(now.Sub(last), 2*ms.limits.step)
			last = now
			waited, pinged = waited+step, pinged+step
			late := waited >= ms.limits.late
			if late {
				ms.update(func() { ms.avoid(m, "it does not answer in time") })
			}
			if late && ping == nil && (waited-step < ms.limits.late || pinged >= ms.limits.late) {
				ping, pinged = ask(m.link.ping), 0
			}
			other := ms.otherAnswers(m, began)
			silent := ping != nil && (pinged >= ms.limits.silent && other || pinged >= ms.limits.alone)
			if silent || waited >= ms.limits.cutOff && other {
				ms.log.Warn("etcd: closing the connection to a member that does not answer", "endpoint", m.endpoint, "silent", silent)
				m.link.reset()
				return 0
			}
		case <-ctx.Done():
			return 0
		}
	}
}

// answered notes the answer to a read probe, and returns the time until the next one.
func (ms *members) answered(m *member, took time.Duration, term uint64, err error) (wait time.Duration) {
	if codeOf(err) == codes.Unavailable { // without a leader, for example
		ms.update(func() { ms.avoid(m, err.Error()) })
		return ms.limits.retry
	}
	ms.update(func() {
		ms.lead(term)
		took = max(took, 1) // 0 is unknown
		if m.latency == 0 {
			m.latency = took
		}
		m.latency += (took - m.latency) / 4
		fastest := m.latency
		for _, o := range ms.all {
			if o.isConnected && !o.avoided && o.latency > 0 {
				fastest = min(fastest, o.latency)
			}
		}
		wait = ms.limits.interval
		switch {
		case took >= ms.limits.late:
			ms.avoid(m, "it does not answer in time")
			wait = 0 // it may have found a leader, which others wait for
			return
		case m.latency > max(ms.limits.slow, 4*fastest):
			ms.avoid(m, "another member is faster")
		case m.avoided && m.latency > max(ms.limits.slow/2, 2*fastest):
			m.passed = 0
		default:
			m.passed, m.at = m.passed+1, time.Now()
			if m.avoided && m.passed >= m.needed {
				m.avoided, m.since = false, m.at
				ms.log.Info("etcd: a member is used again", "endpoint", m.endpoint)
			}
		}
		if m.avoided {
			wait = ms.limits.retry
		}
	})
	return wait
}

// avoid has requests go to other members, if one answers. The mutex is held.
func (ms *members) avoid(m *member, why string) {
	m.passed = 0
	if m.avoided {
		return
	}
	m.avoided = true
	if m.needed = min(2*m.needed, manyProbes); time.Since(m.since) > ms.limits.settled {
		m.needed = fewProbes
	}
	ms.log.Warn("etcd: a member is avoided", "endpoint", m.endpoint, "reason", why)
}

// otherAnswers reports whether another member has answered a read probe after a time.
func (ms *members) otherAnswers(m *member, after time.Time) bool {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	for _, o := range ms.all {
		if o != m && o.isConnected && o.passed > 0 && o.at.After(after) {
			return true
		}
	}
	return false
}

// update changes the state of members, and ends or renews the favor of each.
func (ms *members) update(change func()) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	change()
	good, answering := 0, 0
	for _, m := range ms.all {
		if m.isConnected && !m.avoided {
			good++
		}
		if m.isConnected && m.passed > 0 {
			answering++
		}
	}
	for _, m := range ms.all {
		leave := !m.isConnected || m.avoided && (good > 0 || answering > 0 && m.passed == 0)
		switch {
		case leave:
			m.leave()
		case m.favor.Err() != nil && ms.ctx.Err() == nil:
			m.favor, m.leave = context.WithCancel(ms.ctx)
			close(ms.usable)
			ms.usable = make(chan struct{})
		}
	}
}
