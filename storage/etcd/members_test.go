package etcd

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// scriptedLink is a link to a member that answers as the test says.
type scriptedLink struct {
	c *clientv3.Client // tells links apart

	mu      sync.Mutex
	changed chan struct{} // closed when one of the fields below has changed
	down    bool
	mute    bool // no request is answered
	cutOff  bool // no linearizable read is answered
	delay   time.Duration
	term    uint64
	resets  int
}

func newScriptedLink() *scriptedLink {
	return &scriptedLink{c: clientv3.NewCtxClient(context.Background()), changed: make(chan struct{})}
}

func (l *scriptedLink) set(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
	close(l.changed)
	l.changed = make(chan struct{})
}

// until waits until a condition holds. It returns false when ctx ends.
func (l *scriptedLink) until(ctx context.Context, condition func() bool) bool {
	for {
		l.mu.Lock()
		ok, changed := condition(), l.changed
		l.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

func (l *scriptedLink) isReady() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.down
}

func (l *scriptedLink) connected(ctx context.Context) bool {
	return l.until(ctx, func() bool { return !l.down })
}

func (l *scriptedLink) lost(ctx context.Context) {
	l.mu.Lock()
	resets := l.resets
	l.mu.Unlock()
	l.until(ctx, func() bool { return l.down || l.resets != resets })
}

// answer waits until the member answers a request.
func (l *scriptedLink) answer(ctx context.Context, mayAnswer func() bool) error {
	l.mu.Lock()
	delay, resets := l.delay, l.resets
	l.mu.Unlock()
	select {
	case <-time.After(delay):
	case <-ctx.Done():
	}
	if !l.until(ctx, func() bool { return mayAnswer() || l.resets != resets || l.down }) {
		return ctx.Err()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down || l.resets != resets {
		return status.Error(codes.Unavailable, "connection lost")
	}
	return nil
}

func (l *scriptedLink) ping(ctx context.Context) error {
	return l.answer(ctx, func() bool { return !l.mute })
}

func (l *scriptedLink) read(ctx context.Context) (uint64, error) {
	err := l.answer(ctx, func() bool { return !l.mute && !l.cutOff })
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.term, err
}

func (l *scriptedLink) client() *clientv3.Client { return l.c }
func (l *scriptedLink) reset()                   { l.set(func() { l.resets++ }) }
func (l *scriptedLink) close() error             { return nil }

func (l *scriptedLink) resetCount() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.resets
}

// script is members on scripted links.
type script struct {
	t *testing.T
	*members
	links []*scriptedLink
}

// runScript runs a test on n members, in a bubble with a clock of its own.
func runScript(t *testing.T, n int, test func(s *script)) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{t: t}
		var links []link
		names := []string{"a", "b", "c"}[:n]
		for range n {
			l := newScriptedLink()
			l.term = 2
			s.links, links = append(s.links, l), append(links, l)
		}
		ctx, cancel := context.WithCancel(t.Context())
		s.members = newMembers(ctx, slog.New(slog.DiscardHandler), defaultMemberLimits(), names, links)
		var tasks sync.WaitGroup
		s.members.start(func(task func()) bool { tasks.Go(task); return true })
		time.Sleep(5 * time.Second)
		test(s)
		cancel()
		tasks.Wait()
	})
}

// chosen returns which members are chosen.
func (s *script) chosen() (got [3]bool) {
	for range 6 {
		m, _ := s.choose()
		for i, o := range s.all {
			got[i] = got[i] || m == o
		}
	}
	return got
}

func (s *script) wantChosen(when string, want [3]bool) {
	s.t.Helper()
	if got := s.chosen(); got != want {
		s.t.Errorf("%s: members chosen: got %v, want %v", when, got, want)
	}
}

// request makes a read that a member answers when it answers reads, and returns how
// long that took.
func (s *script) request(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	err := s.members.read(ctx, func(ctx context.Context, client *clientv3.Client) error {
		for _, l := range s.links {
			if l.c == client {
				_, err := l.read(ctx)
				return err
			}
		}
		return errors.New("unknown client")
	})
	return time.Since(began), err
}

// A read that waits for a member which has fallen silent is answered by another one in
// less than a second, and its connection, with the writes that wait on it, is given up in
// less than two.
func TestReadsLeaveSilentMember(t *testing.T) {
	runScript(t, 3, func(s *script) {
		s.links[1].set(func() { s.links[1].mute = true })
		began := time.Now()
		for range 3 { // one of them goes to the silent member
			if took, err := s.request(s.t.Context()); err != nil || took > time.Second {
				s.t.Errorf("read: got %v after %v, want an answer within 1s", err, took)
			}
		}
		s.wantChosen("with a silent member", [3]bool{true, false, true})
		time.Sleep(time.Until(began.Add(2 * time.Second)))
		if n := s.links[1].resetCount(); n == 0 {
			s.t.Error("the connection to the silent member is still there, want it closed within 2s")
		}
		s.links[1].set(func() { s.links[1].mute = false })
		time.Sleep(3 * time.Second)
		s.wantChosen("after it answers again", [3]bool{true, true, true})
	})
}

// A member that answers, but has no leader, is left when another one has a leader; as
// long as none has, requests wait where they are.
func TestReadsLeaveMemberWithoutLeader(t *testing.T) {
	runScript(t, 3, func(s *script) {
		for _, l := range s.links {
			l.set(func() { l.cutOff = true })
		}
		type result struct {
			took time.Duration
			err  error
		}
		results := make(chan result, 3)
		for range 3 {
			go func() {
				took, err := s.request(s.t.Context())
				results <- result{took, err}
			}()
		}
		time.Sleep(1500 * time.Millisecond)
		if len(results) != 0 {
			s.t.Fatalf("without any leader: got %+v, want reads to wait", <-results)
		}
		s.links[0].set(func() { s.links[0].cutOff = false })
		s.links[2].set(func() { s.links[2].cutOff = false })
		for range 3 {
			if r := <-results; r.err != nil || r.took > 1600*time.Millisecond {
				s.t.Errorf("read: got %v after %v, want an answer when a leader is elected, after 1.5s", r.err, r.took)
			}
		}
		time.Sleep(time.Second)
		for i, want := range []bool{false, true, false} {
			if got := s.links[i].resetCount() > 0; got != want {
				s.t.Errorf("member %d: connection closed: got %v, want %v", i, got, want)
			}
		}
	})
}

// A slow member is left for faster ones, once, and used again when it is as fast.
func TestSlowMemberIsLeft(t *testing.T) {
	runScript(t, 3, func(s *script) {
		s.links[0].set(func() { s.links[0].delay = 200 * time.Millisecond })
		time.Sleep(10 * time.Second)
		for range 50 {
			s.wantChosen("with a slow member", [3]bool{false, true, true})
			time.Sleep(100 * time.Millisecond)
		}
		if n := s.links[0].resetCount(); n != 0 {
			s.t.Errorf("connections to the slow member closed: got %d, want 0", n)
		}
		s.links[0].set(func() { s.links[0].delay = 0 })
		time.Sleep(10 * time.Second)
		s.wantChosen("after it is fast again", [3]bool{true, true, true})
	})
}

// If all members are slow, all are used.
func TestSlowClusterIsUsed(t *testing.T) {
	runScript(t, 3, func(s *script) {
		for _, l := range s.links {
			l.set(func() { l.delay = 250 * time.Millisecond })
		}
		time.Sleep(10 * time.Second)
		s.wantChosen("with slow members", [3]bool{true, true, true})
	})
}

// A member that comes and goes is used less and less, not at every turn.
func TestFlappingMemberIsAvoided(t *testing.T) {
	runScript(t, 3, func(s *script) {
		changes, before := 0, true
		for range 60 {
			s.links[0].set(func() { s.links[0].cutOff = !s.links[0].cutOff })
			time.Sleep(time.Second)
			if now := s.chosen()[0]; now != before {
				changes, before = changes+1, now
			}
		}
		if changes > 12 {
			s.t.Errorf("a member that stops answering every other second was left and taken again %d times in a minute, want at most 12", changes)
		}
	})
}

// Without any connection, reads fail after a while, with an error that says so, and go on
// when there is one.
func TestReadsWithoutConnection(t *testing.T) {
	runScript(t, 3, func(s *script) {
		for _, l := range s.links {
			l.set(func() { l.down = true })
		}
		synctest.Wait()
		took, err := s.request(s.t.Context())
		if !isNotSent(err) || took > 2*reconnectGrace {
			s.t.Errorf("got %v after %v, want no connection within %v", err, took, 2*reconnectGrace)
		}
		if err := s.write(s.t.Context(), func(context.Context, *clientv3.Client) error { return nil }); !isNotSent(err) {
			s.t.Errorf("write: got %v, want no connection", err)
		}
		go func() {
			time.Sleep(time.Second)
			s.links[2].set(func() { s.links[2].down = false })
		}()
		if took, err := s.request(s.t.Context()); err != nil || took != time.Second {
			s.t.Errorf("got %v after %v, want an answer when there is a connection, after 1s", err, took)
		}
	})
}

// The only member is never left, and its connection is given up only after a long silence.
func TestOnlyMember(t *testing.T) {
	runScript(t, 1, func(s *script) {
		s.links[0].set(func() { s.links[0].mute = true })
		ctx, cancel := context.WithTimeout(s.t.Context(), 3*time.Second)
		defer cancel()
		if took, err := s.request(ctx); !errors.Is(err, context.DeadlineExceeded) {
			s.t.Errorf("got %v after %v, want to wait for the only member", err, took)
		}
		if n := s.links[0].resetCount(); n != 0 {
			s.t.Errorf("after 3s of silence: got %d connections closed, want 0", n)
		}
		time.Sleep(3 * time.Second)
		if n := s.links[0].resetCount(); n == 0 {
			s.t.Error("after 6s of silence: the connection is still there")
		}
	})
}

// A write that waits when the leader changes is given up soon, as uncertain; those that are
// sent to the new leader are not.
func TestWritesOfOldLeaderAreGivenUp(t *testing.T) {
	runScript(t, 3, func(s *script) {
		wait := func(ctx context.Context, _ *clientv3.Client) error {
			<-ctx.Done()
			return status.FromContextError(ctx.Err()).Err()
		}
		began := time.Now()
		result := make(chan error, 1)
		go func() { result <- s.write(s.t.Context(), wait) }()
		time.Sleep(10 * time.Second)
		if len(result) != 0 {
			s.t.Fatalf("with the same leader: got %v after %v, want to wait", <-result, time.Since(began))
		}
		s.links[2].set(func() { s.links[2].term = 3 })
		changed := time.Now()
		err := <-result
		if took := time.Since(changed); codeOf(err) != codes.Unavailable || isNotSent(err) || took > time.Second {
			s.t.Errorf("got %v %v after the leader has changed, want that it may have been sent, within 1s", err, took)
		}
		ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
		defer cancel()
		began = time.Now()
		if err := s.write(ctx, wait); codeOf(err) != codes.DeadlineExceeded || time.Since(began) != time.Minute {
			s.t.Errorf("with the new leader: got %v after %v, want to wait for a minute", err, time.Since(began))
		}
	})
}
