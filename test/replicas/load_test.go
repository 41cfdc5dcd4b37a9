package replicas

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycore "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
)

const (
	// requestTimeout is how long clients wait for an answer.
	requestTimeout = 10 * time.Second
	// thinkTime is the pause of a client between two requests: the load is there to meet
	// faults, not to wear servers out.
	thinkTime = 15 * time.Millisecond
)

// pause waits for a time, which is part of a load or of a loop that polls.
func pause(d time.Duration) { <-time.After(d) }

// dialer returns a dial function of its own for a client, so that client-go gives it
// connections that it shares with no other.
func dialer() func(ctx context.Context, network, address string) (net.Conn, error) {
	return (&net.Dialer{Timeout: 5 * time.Second}).DialContext
}

// outcome is what a client knows of a write.
type outcome int

const (
	written outcome = iota
	notWritten
	unknown
)

// outcomeOf returns what a client knows of a write that returned err.
func outcomeOf(err error) outcome {
	switch {
	case err == nil:
		return written
	case apierrors.IsServiceUnavailable(err), apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err),
		apierrors.IsTooManyRequests(err), apierrors.IsInvalid(err), apierrors.IsForbidden(err), apierrors.ReasonForError(err) == "InsufficientStorage":
		return notWritten
	}
	return unknown
}

// load is clients that work on all servers of a fleet, in a namespace of their own, and
// what they were told.
type load struct {
	f         *fleet
	namespace string
	clients   [size]*kubernetes.Clientset
	stopped   chan struct{}
	working   sync.WaitGroup
	ops       atomic.Int64 // requests that were answered
	began     time.Time
	since     int64            // revision of the store when the load began
	recorded  chan []seenEvent // the store's own history, once it has come to the end

	mu       sync.Mutex
	registry []porcupine.Operation
	counted  [2]tally // acknowledged and uncertain increments of each counter
	named    map[string]*fate
	made     map[string]bool // names that the server made and acknowledged
	madeLost int             // creations with such names whose outcome is unknown
	applied  [2]appliedField
	services map[string]*fate
	problems []string
	watchers []*follower
}

type tally struct{ acknowledged, uncertain int }

// fate is what a client knows of an object.
type fate struct {
	created, deleted outcome // deleted is notWritten before it was tried
}

// appliedField is what one of the managers of an object has applied.
type appliedField struct {
	acknowledged int
	tried        int // newer values whose outcome is unknown
}

// newLoad starts the clients, each of which works on all servers.
func newLoad(f *fleet, name string) *load {
	f.t.Helper()
	var clients [size]*kubernetes.Clientset
	for i := range size {
		clients[i] = f.client(i)
	}
	return newLoadOf(f, name, clients)
}

// newLoadOf starts clients that work on what the given ones reach.
func newLoadOf(f *fleet, name string, clients [size]*kubernetes.Clientset) *load {
	f.t.Helper()
	l := &load{
		f: f, namespace: "load-" + name, stopped: make(chan struct{}), began: time.Now(), clients: clients, recorded: make(chan []seenEvent, 1),
		named: map[string]*fate{}, made: map[string]bool{}, services: map[string]*fate{},
	}
	ctx, cancel := context.WithTimeout(f.t.Context(), startTimeout)
	defer cancel()
	if _, err := l.clients[0].CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: l.namespace}}, metav1.CreateOptions{}); err != nil {
		f.t.Fatal(err)
	}
	var err error
	if l.since, err = f.history.revision(ctx); err != nil {
		f.t.Fatal(err)
	}
	l.record()
	for _, name := range []string{"counter-0", "counter-1", "register-0", "register-1", "register-2", "applied"} {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"value": "0"}}
		if _, err := l.clients[0].CoreV1().ConfigMaps(l.namespace).Create(ctx, cm, metav1.CreateOptions{}); err != nil {
			f.t.Fatal(err)
		}
	}
	for i := range 2 {
		l.work(i, l.count)
		l.work(i, l.create)
		l.work(i, l.generate)
		l.work(i, l.apply)
		l.work(i, l.serve)
		l.work(i, l.page)
	}
	for i := range size {
		l.work(i, l.register)
		l.follow(i, i == 2, 0)
	}
	l.follow(0, false, stayAtServer)
	return l
}

// work calls a function until the load is stopped.
func (l *load) work(worker int, step func(ctx context.Context, worker, n int)) {
	l.working.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-l.stopped:
				return
			case <-time.After(thinkTime/2 + rand.N(thinkTime)):
			}
			ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
			step(ctx, worker, n)
			cancel()
		}
	})
}

// stop ends the clients that write and read. Watchers go on until they have seen all.
func (l *load) stop() {
	close(l.stopped)
	l.working.Wait()
}

func (l *load) problem(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.problems) < 20 {
		l.problems = append(l.problems, fmt.Sprintf(format, args...))
	}
}

// note records an outcome under the lock.
func (l *load) note(record func()) {
	l.ops.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	record()
}

// any returns the client of the server whose turn it is.
func (l *load) any(worker, n int) *kubernetes.Clientset { return l.clients[(worker+n)%size] }

// count increments a counter with a guarded update: read at one server, write at another.
func (l *load) count(ctx context.Context, worker, n int) {
	which := n % 2
	read, write := l.any(worker, n), l.any(worker, n+1)
	cm, err := read.CoreV1().ConfigMaps(l.namespace).Get(ctx, fmt.Sprintf("counter-%d", which), metav1.GetOptions{})
	if err != nil {
		return
	}
	value, err := strconv.Atoi(cm.Data["value"])
	if err != nil {
		l.problem("counter %d has the value %q", which, cm.Data["value"])
		return
	}
	cm.Data["value"] = strconv.Itoa(value + 1)
	_, err = write.CoreV1().ConfigMaps(l.namespace).Update(ctx, cm, metav1.UpdateOptions{})
	switch outcomeOf(err) {
	case written:
		l.note(func() { l.counted[which].acknowledged++ })
	case unknown:
		l.note(func() { l.counted[which].uncertain++ })
	}
}

// registerInput is an operation on a register: a read, or a write of a value.
type registerInput struct {
	key   int
	write bool
	value string
}

// register reads registers and writes them without a guard, and records when.
func (l *load) register(ctx context.Context, worker, n int) {
	in := registerInput{key: n % 3, write: rand.N(2) == 0, value: fmt.Sprintf("%d-%d", worker, n)}
	name := fmt.Sprintf("register-%d", in.key)
	maps := l.any(worker, n).CoreV1().ConfigMaps(l.namespace)
	op := porcupine.Operation{ClientId: worker, Input: in, Call: int64(time.Since(l.began))}
	var err error
	if in.write {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"value": in.value}}
		_, err = maps.Update(ctx, cm, metav1.UpdateOptions{})
	} else {
		var cm *corev1.ConfigMap
		if cm, err = maps.Get(ctx, name, metav1.GetOptions{}); err == nil {
			op.Output = cm.Data["value"]
		}
	}
	op.Return = int64(time.Since(l.began))
	switch {
	case err == nil:
	case in.write && outcomeOf(err) == unknown:
		op.Return = int64(time.Hour) // it may be applied at any time
	default:
		return
	}
	l.note(func() {
		// A client that got no answer goes on as another one.
		if op.Return == int64(time.Hour) {
			op.ClientId = 100 + len(l.registry)
		}
		l.registry = append(l.registry, op)
	})
}

// create creates objects with names of its own, and deletes some of them again.
func (l *load) create(ctx context.Context, worker, n int) {
	maps := l.any(worker, n).CoreV1().ConfigMaps(l.namespace)
	name := fmt.Sprintf("named-%d-%d", worker, n/3)
	if n%3 == 1 {
		return
	}
	if n%3 == 0 {
		_, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			// client-go has sent it twice, and the first was applied.
			err = nil
		}
		l.note(func() { l.named[name] = &fate{created: outcomeOf(err), deleted: notWritten} })
		return
	}
	l.mu.Lock()
	known := l.named[name]
	l.mu.Unlock()
	if known == nil || known.created != written || n%2 == 0 {
		return
	}
	err := maps.Delete(ctx, name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		l.problem("%s is gone, though its creation was acknowledged and nobody has deleted it", name)
	}
	l.note(func() { known.deleted = outcomeOf(err) })
	if err == nil {
		if _, err := l.any(worker, n+1).CoreV1().ConfigMaps(l.namespace).Get(ctx, name, metav1.GetOptions{}); err == nil {
			l.problem("%s can be read after its deletion was acknowledged", name)
		}
	}
}

// generate creates objects whose names the server makes.
func (l *load) generate(ctx context.Context, worker, n int) {
	cm, err := l.any(worker, n).CoreV1().ConfigMaps(l.namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "made-"}}, metav1.CreateOptions{})
	switch outcomeOf(err) {
	case written:
		l.note(func() {
			if l.made[cm.Name] {
				l.problems = append(l.problems, "the name "+cm.Name+" was given twice")
			}
			l.made[cm.Name] = true
		})
	case unknown:
		l.note(func() { l.madeLost++ })
	}
}

// apply has two managers apply a field each to the same object.
func (l *load) apply(ctx context.Context, worker, n int) {
	config := applycore.ConfigMap("applied", l.namespace).WithData(map[string]string{fmt.Sprintf("field-%d", worker): strconv.Itoa(n)})
	_, err := l.any(worker, n).CoreV1().ConfigMaps(l.namespace).Apply(ctx, config, metav1.ApplyOptions{FieldManager: fmt.Sprintf("manager-%d", worker)})
	if apierrors.IsConflict(err) {
		l.problem("apply of a field that nobody else has: %v", err)
	}
	switch outcomeOf(err) {
	case written:
		l.note(func() { l.applied[worker] = appliedField{acknowledged: n, tried: n} })
	case unknown:
		l.note(func() { l.applied[worker].tried = n })
	}
}

// serve creates services with addresses and node ports, and deletes most of them again.
func (l *load) serve(ctx context.Context, worker, n int) {
	services := l.any(worker, n).CoreV1().Services(l.namespace)
	name := fmt.Sprintf("service-%d-%d", worker, n/2)
	if n%2 == 0 {
		if n%8 != 0 {
			return // addresses are few
		}
		_, err := services.Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80}}},
		}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			err = nil
		}
		if apierrors.IsInvalid(err) {
			l.problem("service %s: %v", name, err)
		}
		l.note(func() { l.services[name] = &fate{created: outcomeOf(err), deleted: notWritten} })
		return
	}
	l.mu.Lock()
	known := l.services[name]
	l.mu.Unlock()
	if known == nil || known.created != written || n%16 == 1 {
		return
	}
	err := services.Delete(ctx, name, metav1.DeleteOptions{})
	l.note(func() { known.deleted = outcomeOf(err) })
}

// page reads lists in different ways, which have to agree where they are of one revision.
func (l *load) page(ctx context.Context, worker, n int) {
	one, other := l.any(worker, n).CoreV1().ConfigMaps(l.namespace), l.any(worker, n+1).CoreV1().ConfigMaps(l.namespace)
	if _, err := one.List(ctx, metav1.ListOptions{ResourceVersion: "0", Limit: 10}); err == nil {
		l.ops.Add(1)
	}
	whole, err := one.List(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	same := func(how string, items []corev1.ConfigMap) {
		l.ops.Add(1)
		if !slices.EqualFunc(items, whole.Items, func(a, b corev1.ConfigMap) bool { return a.Name == b.Name && a.ResourceVersion == b.ResourceVersion }) {
			l.problem("%s: a list of revision %s has %d items that differ from the %d of the same list at another server", how, whole.ResourceVersion, len(items), len(whole.Items))
		}
	}
	exact, err := other.List(ctx, metav1.ListOptions{ResourceVersion: whole.ResourceVersion, ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	if err == nil {
		same("exact", exact.Items)
	}
	newer, err := other.List(ctx, metav1.ListOptions{ResourceVersion: whole.ResourceVersion, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan})
	if err == nil && revisionOf(newer.ResourceVersion) < revisionOf(whole.ResourceVersion) {
		l.problem("not older than %s: got revision %s", whole.ResourceVersion, newer.ResourceVersion)
	}
	var items []corev1.ConfigMap
	options := metav1.ListOptions{ResourceVersion: whole.ResourceVersion, ResourceVersionMatch: metav1.ResourceVersionMatchExact, Limit: max(1, int64(len(whole.Items)/3))}
	for page := 0; ; page++ {
		list, err := l.any(worker, n+page).CoreV1().ConfigMaps(l.namespace).List(ctx, options)
		if err != nil {
			return
		}
		items = append(items, list.Items...)
		if list.Continue == "" {
			break
		}
		options = metav1.ListOptions{Limit: options.Limit, Continue: list.Continue}
	}
	same("in pages", items)
}

func revisionOf(resourceVersion string) int64 {
	n, _ := strconv.ParseInt(resourceVersion, 10, 64)
	return n
}

// seenEvent is an event as a client saw it.
type seenEvent struct {
	revision int64
	kind     string // ADDED, MODIFIED or DELETED
	name     string
}

// follower is a client that watches, and moves to another server whenever a watch ends.
type follower struct {
	name     string
	stay     time.Duration // about how long it watches at one server; 0 is as long as it can
	from, at int64         // the revisions where it began and has come to, at is under load.mu
	events   []seenEvent
	expired  int // how often it had to list again
	moves    int
	done     chan struct{}
	cancel   context.CancelFunc
}

// follow watches the config maps of the load, beginning at a server, and stays about so long
// at each; 0 is as long as it can. With stream, the initial state comes with the watch.
func (l *load) follow(server int, stream bool, stay time.Duration) {
	ctx, cancel := context.WithCancel(context.Background())
	w := &follower{name: fmt.Sprintf("watcher %d", len(l.watchers)), stay: stay, done: make(chan struct{}), cancel: cancel}
	l.watchers = append(l.watchers, w)
	go func() {
		defer close(w.done)
		for n := server; ctx.Err() == nil; n++ {
			l.watch(ctx, w, l.clients[n%size], stream)
			pause(thinkTime)
		}
	}()
	l.f.t.Cleanup(func() { cancel(); <-w.done })
}

// watch runs one watch until it ends.
func (l *load) watch(ctx context.Context, w *follower, client *kubernetes.Clientset, stream bool) {
	l.mu.Lock()
	at := w.at
	w.moves++
	l.mu.Unlock()
	maps := client.CoreV1().ConfigMaps(l.namespace)
	options := metav1.ListOptions{ResourceVersion: strconv.FormatInt(at, 10), AllowWatchBookmarks: true}
	initial := false
	if at == 0 {
		options.ResourceVersion = ""
		if stream {
			options.SendInitialEvents, options.ResourceVersionMatch = new(true), metav1.ResourceVersionMatchNotOlderThan
			initial = true
		} else {
			bounded, cancel := context.WithTimeout(ctx, requestTimeout)
			list, err := maps.List(bounded, metav1.ListOptions{})
			cancel()
			if err != nil {
				return
			}
			options.ResourceVersion = list.ResourceVersion
			l.mu.Lock()
			w.from, w.at = revisionOf(list.ResourceVersion), revisionOf(list.ResourceVersion)
			l.mu.Unlock()
		}
	}
	// A connection that has fallen silent is noticed by its client, not by us.
	bounded, cancel := context.WithCancel(ctx)
	defer cancel()
	if w.stay > 0 {
		defer time.AfterFunc(w.stay/2+rand.N(w.stay), cancel).Stop()
	}
	stream2, err := maps.Watch(bounded, options)
	if err != nil {
		return
	}
	defer stream2.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case ev, ok := <-stream2.ResultChan():
			if !ok {
				return
			}
			switch obj := ev.Object.(type) {
			case *corev1.ConfigMap:
				revision := revisionOf(obj.ResourceVersion)
				l.mu.Lock()
				switch {
				case ev.Type == "BOOKMARK" && initial:
					if obj.Annotations[metav1.InitialEventsAnnotationKey] == "true" {
						initial = false
						w.from, w.at = revision, revision
					}
				case ev.Type == "BOOKMARK":
					w.at = max(w.at, revision)
				case !initial:
					w.events = append(w.events, seenEvent{revision, string(ev.Type), obj.Name})
					w.at = max(w.at, revision)
				}
				l.mu.Unlock()
			case *metav1.Status:
				if obj.Code == http.StatusGone {
					l.mu.Lock()
					w.expired++
					w.events, w.from, w.at = nil, 0, 0
					l.mu.Unlock()
				}
				return
			}
		}
	}
}

// endName is the name of the object that is created last.
const endName = "the-end"

// history is what a store itself says about its changes.
type history interface {
	revision(ctx context.Context) (int64, error)
	// follow passes the changes of keys with a prefix after a revision to note, in their
	// order and with the rest of the key as the name, until note returns false.
	follow(ctx context.Context, prefix string, after int64, note func(seenEvent) bool) error
}

// record follows the store's own history of the config maps of the load until the object
// endName is created.
func (l *load) record() {
	ctx, cancel := context.WithCancel(context.Background())
	l.f.t.Cleanup(cancel)
	go func() {
		var events []seenEvent
		err := l.f.history.follow(ctx, "/registry/configmaps/"+l.namespace+"/", l.since, func(e seenEvent) bool {
			events = append(events, e)
			return e.name != endName
		})
		if err != nil && ctx.Err() == nil {
			l.problem("the store's history since %d: %v", l.since, err)
		}
		l.recorded <- events
	}()
}

// etcdHistory is the history of etcd.
type etcdHistory struct{ client *clientv3.Client }

func (h etcdHistory) revision(ctx context.Context) (int64, error) {
	resp, err := h.client.Get(ctx, "nothing")
	if err != nil {
		return 0, err
	}
	return resp.Header.Revision, nil
}

func (h etcdHistory) follow(ctx context.Context, prefix string, after int64, note func(seenEvent) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for resp := range h.client.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(after+1)) {
		if err := resp.Err(); err != nil {
			return err
		}
		for _, e := range resp.Events {
			kind := "MODIFIED"
			if e.IsCreate() {
				kind = "ADDED"
			} else if e.Type == clientv3.EventTypeDelete {
				kind = "DELETED"
			}
			if !note(seenEvent{e.Kv.ModRevision, kind, strings.TrimPrefix(string(e.Kv.Key), prefix)}) {
				return nil
			}
		}
	}
	return ctx.Err()
}

var errLate = errors.New("took too long")

// finishWatches waits until all watchers have come to a revision, and ends them.
func (l *load) finishWatches(revision int64) error {
	deadline := time.Now().Add(startTimeout)
	for _, w := range l.watchers {
		for {
			l.mu.Lock()
			at := w.at
			l.mu.Unlock()
			if at >= revision {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("%s is at %d, want %d: %w", w.name, at, revision, errLate)
			}
			pause(10 * time.Millisecond)
		}
		w.cancel()
		<-w.done
	}
	return nil
}
