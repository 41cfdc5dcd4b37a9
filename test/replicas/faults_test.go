package replicas

import (
	"context"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"

	"github.com/apikeel/kelson/internal/peertest"
	"github.com/apikeel/kelson/internal/testsize"
)

// The longest times for which a server that is not hit itself may leave a client without
// an answer, on a machine that has nothing else to do.
const (
	maxReadOutage  = 2 * time.Second
	maxWriteOutage = 3 * time.Second
	// maxRecovery is how long any server may take until it serves again after the fault
	// is over.
	maxRecovery = 3 * time.Second
)

// fault is one thing that goes wrong.
type fault struct {
	name string
	// begin makes it go wrong, and returns what makes it good again and the servers
	// that cannot work meanwhile.
	begin func(f *fleet) (heal func(), hit []int)
	// writesOnly is set if only writes of those servers cannot work.
	writesOnly bool
	// lasts is how long it goes on.
	lasts time.Duration
	// long faults run in the long suite only.
	long bool
	// expires is set if watchers may lose their place.
	expires bool
}

func faults() []fault {
	healed := func(f *fleet) func() { return f.heal }
	return []fault{
		{name: "silent-member", lasts: 4 * time.Second, begin: func(f *fleet) (func(), []int) {
			j := (f.leader() + 1) % size
			for i := range size {
				f.links[i][j].mute()
			}
			return healed(f), nil
		}},
		{name: "leader-killed", lasts: 4 * time.Second, begin: func(f *fleet) (func(), []int) {
			j := f.leader()
			f.members[j].kill()
			return func() { f.startMember(j) }, nil
		}},
		{name: "server-cut-off-by-silence", lasts: 4 * time.Second, begin: func(f *fleet) (func(), []int) {
			f.cutOff(1, false)
			return healed(f), []int{1}
		}},
		{name: "server-killed", long: true, lasts: 2 * time.Second, begin: func(f *fleet) (func(), []int) {
			f.servers[0].kill()
			return func() { f.startServer(0); f.awaitReady(0) }, []int{0}
		}},
		{name: "server-frozen", long: true, lasts: 5 * time.Second, begin: func(f *fleet) (func(), []int) {
			f.servers[2].freeze()
			return f.servers[2].thaw, []int{2}
		}},
		{name: "member-killed", long: true, lasts: 4 * time.Second, begin: func(f *fleet) (func(), []int) {
			j := (f.leader() + 1) % size
			f.members[j].kill()
			return func() { f.startMember(j) }, nil
		}},
		{name: "member-frozen", long: true, lasts: 6 * time.Second, begin: func(f *fleet) (func(), []int) {
			j := (f.leader() + 1) % size
			f.members[j].freeze()
			return f.members[j].thaw, nil
		}},
		{name: "leader-frozen", long: true, lasts: 8 * time.Second, begin: func(f *fleet) (func(), []int) {
			j := f.leader()
			f.members[j].freeze()
			return f.members[j].thaw, nil
		}},
		{name: "leader-partitioned", long: true, lasts: 8 * time.Second, begin: func(f *fleet) (func(), []int) {
			f.partition(f.leader())
			return healed(f), nil
		}},
		{name: "leader-mute-to-servers", long: true, lasts: 6 * time.Second, begin: func(f *fleet) (func(), []int) {
			j := f.leader()
			for i := range size {
				f.links[i][j].mute()
			}
			return healed(f), nil
		}},
		{name: "leader-mute-to-all", long: true, lasts: 8 * time.Second, begin: func(f *fleet) (func(), []int) {
			j := f.leader()
			f.partition(j)
			for i := range size {
				f.links[i][j].mute()
			}
			return healed(f), nil
		}},
		{name: "server-cut-off-by-refusal", long: true, lasts: 4 * time.Second, begin: func(f *fleet) (func(), []int) {
			f.cutOff(1, true)
			return healed(f), []int{1}
		}},
		{name: "requests-lost-to-one-member", long: true, lasts: 5 * time.Second, begin: func(f *fleet) (func(), []int) {
			f.links[0][f.leader()].mute(toServer)
			return healed(f), nil
		}},
		{name: "answers-lost-from-one-member", long: true, lasts: 5 * time.Second, begin: func(f *fleet) (func(), []int) {
			f.links[0][f.leader()].mute(toClient)
			return healed(f), nil
		}},
		{name: "member-slow", long: true, lasts: 8 * time.Second, begin: func(f *fleet) (func(), []int) {
			j := (f.leader() + 1) % size
			for i := range size {
				f.links[i][j].delay(300 * time.Millisecond)
			}
			return healed(f), nil
		}},
		{name: "connections-reset", long: true, lasts: 3 * time.Second, begin: func(f *fleet) (func(), []int) {
			for i := range size {
				for j := range size {
					f.links[i][j].reset()
				}
			}
			return func() {}, nil
		}},
		{name: "member-links-slow", long: true, lasts: 5 * time.Second, begin: func(f *fleet) (func(), []int) {
			for j := range size {
				f.peers[j].delay(50 * time.Millisecond)
			}
			return healed(f), nil
		}},
		{name: "compaction", long: true, lasts: 5 * time.Second, expires: true, begin: func(f *fleet) (func(), []int) {
			// Watchers of server 2 see nothing for a while, and history is compacted
			// meanwhile.
			f.fronts[2].mute(toClient)
			return func() {
				resp, err := f.etcd.Get(f.t.Context(), "nothing")
				if err == nil {
					_, err = f.etcd.Compact(f.t.Context(), resp.Header.Revision)
				}
				if err != nil {
					f.t.Error(err)
				}
				f.heal()
			}, []int{2}
		}},
		{name: "clock-steps-10s", long: true, lasts: 3 * time.Second, begin: func(f *fleet) (func(), []int) {
			f.servers[steppedServer].signal(syscall.SIGUSR1)
			return func() { f.servers[steppedServer].signal(syscall.SIGHUP) }, nil
		}},
		{name: "clock-steps-10m", long: true, lasts: 3 * time.Second, begin: func(f *fleet) (func(), []int) {
			f.servers[steppedServer].signal(syscall.SIGUSR2)
			return func() { f.servers[steppedServer].signal(syscall.SIGHUP) }, nil
		}},
		{name: "all-members-restarted", long: true, lasts: time.Second, begin: func(f *fleet) (func(), []int) {
			for j := range size {
				f.members[j].kill()
			}
			return func() {
				started := make(chan struct{})
				for j := range size {
					go func() {
						defer func() { started <- struct{}{} }()
						f.startMember(j)
					}()
				}
				for range size {
					<-started
				}
			}, []int{0, 1, 2}
		}},
	}
}

// TestReplicas measures how soon changes count at other servers, and then disturbs a fleet in
// one way after the other. Clients lose nothing, and the servers that are not hit themselves
// leave them without an answer only for a short time. With KELSON_DISTURBED=kube-apiserver the
// servers are kube-apiservers, to compare: how long they take is told and not judged.
func TestReplicas(t *testing.T) {
	f := newFleet(t)
	if os.Getenv("KELSON_DISTURBED") == kubeAPIServer {
		peertest.Binary(t, kubeAPIServer)
		f.program = kubeAPIServer
		for i := range size { // which use the keys of those before
			f.servers[i].stop(t)
			f.startServer(i)
			f.awaitReady(i)
		}
	}
	if f.program == "" {
		t.Run("propagation", func(t *testing.T) { f.checkPropagation(t) })
	}
	f.disturbAll(faults())
	if f.program == "" {
		t.Run("readiness", func(t *testing.T) { f.checkReadiness(t) })
	}
}

// The longest times after which a server that is cut off from the store says that it is not
// ready, and after which it is ready again when it is not cut off any more; and after which
// a client that waits for it gets an answer.
const (
	maxUnready = 2 * time.Second
	maxReady   = time.Second
	maxAnswer  = 8 * time.Second
)

// checkReadiness cuts a server off from the store, by silence and by refusal.
func (f *fleet) checkReadiness(t *testing.T) {
	const server = 1
	client := f.client(server)
	ctx, cancel := context.WithTimeout(t.Context(), 2*startTimeout)
	defer cancel()
	within := func(what string, took, limit time.Duration, err error) {
		t.Helper()
		t.Logf("%s after %v", what, took.Round(time.Millisecond))
		if !testsize.Long() || testsize.Race() {
			limit *= 5 // the machine may be busy with other tests
		}
		if err != nil || took > limit {
			t.Errorf("%s after %v, %v, want at most %v", what, took, err, limit)
		}
	}
	for _, refuse := range []bool{false, true} {
		how := map[bool]string{false: "silent", true: "refusing"}[refuse]
		f.cutOff(server, refuse)
		took, err := f.awaitReadiness(ctx, client, false)
		within("not ready, with a store that is "+how, took, maxUnready, err)
		began := time.Now()
		err = client.RESTClient().Get().AbsPath("/api/v1/namespaces/default/configmaps").MaxRetries(0).Do(ctx).Error()
		took = time.Since(began)
		if !apierrors.IsServiceUnavailable(err) && !apierrors.IsTimeout(err) {
			t.Errorf("a list without the store: got %v, want 503 or 504", err)
		}
		within("list answered, with a store that is "+how, took, maxAnswer, nil)
		f.heal()
		took, err = f.awaitReadiness(ctx, client, true)
		within("ready again, after the store was "+how, took, maxReady, err)
	}
}

// awaitReadiness returns how long it takes until a server says that it is ready, or that it
// is not.
func (f *fleet) awaitReadiness(ctx context.Context, client *kubernetes.Clientset, ready bool) (time.Duration, error) {
	began := time.Now()
	for ctx.Err() == nil {
		err := client.RESTClient().Get().AbsPath("/readyz").MaxRetries(0).Do(ctx).Error()
		if (err == nil) == ready {
			return time.Since(began), nil
		}
		pause(probeInterval)
	}
	return time.Since(began), ctx.Err()
}

// disturbAll has one fault after the other, each in a subtest: with the race detector the
// first alone, and those that are long in the long suite only.
func (f *fleet) disturbAll(faults []fault) {
	test, probes := f.t, startProbes(f)
	for n, fault := range faults {
		if fault.long && !testsize.Long() || testsize.Race() && !testsize.Long() && n >= 1 {
			continue
		}
		test.Run(fault.name, func(t *testing.T) {
			f.t = t
			defer func() { f.t = test }()
			f.disturb(fault, probes)
		})
	}
}

func (f *fleet) disturb(fault fault, probes []*probe) {
	t := f.t
	l := newLoad(f, fault.name)
	for deadline := time.Now().Add(startTimeout); l.ops.Load() < 50; pause(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("got %d answers in %v, want 50", l.ops.Load(), startTimeout)
		}
	}
	for _, p := range probes {
		p.restart()
	}
	heal, hit := fault.begin(f)
	pause(fault.lasts)
	heal()
	healed := time.Now()
	for _, p := range probes {
		if !p.awaitAnswers(healed, startTimeout) {
			_, err := p.outage()
			t.Fatalf("server %d: no %s succeeds after the fault is over: %v", p.server, p.what, err)
		}
	}
	busy := time.Duration(testsize.Pick(12, 4, 4)) // the machine may be busy with other tests
	recovered := time.Since(healed)
	t.Logf("all servers answer %v after the fault is over", recovered.Round(time.Millisecond))
	if recovered > maxRecovery && testsize.Long() && !testsize.Race() || recovered > busy*maxRecovery {
		t.Errorf("all servers answer %v after the fault is over, want at most %v", recovered, maxRecovery)
	}
	pause(time.Second)
	l.stop()
	for _, p := range probes {
		outage, err := p.outage()
		limit := maxReadOutage
		if p.what == "write" {
			limit = maxWriteOutage
		}
		verdict := ""
		switch isHit := slices.Contains(hit, p.server) && (p.what == "write" || !fault.writesOnly); {
		case isHit:
			verdict = " (hit itself)"
		case f.program != "":
		case outage > limit && testsize.Long() && !testsize.Race():
			t.Errorf("server %d: no %s for %v, want at most %v; last error: %v", p.server, p.what, outage, limit, err)
		case outage > busy*limit:
			t.Errorf("server %d: no %s for %v, want at most %v even on a busy machine; last error: %v", p.server, p.what, outage, busy*limit, err)
		}
		t.Logf("server %d: longest time without a %s: %v%s; last error: %v", p.server, p.what, outage.Round(time.Millisecond), verdict, err)
	}
	l.check(fault.expires)
}
