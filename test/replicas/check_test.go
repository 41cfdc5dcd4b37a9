package replicas

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// check compares what clients were told with what is stored. mayExpire allows watchers to
// have lost their place.
func (l *load) check(mayExpire bool) {
	t := l.f.t
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*startTimeout)
	defer cancel()
	client := l.clients[0]
	end, err := client.CoreV1().ConfigMaps(l.namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: endName}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.finishWatches(revisionOf(end.ResourceVersion)); err != nil {
		t.Error(err)
	}
	// Each server has to show the same, which is what is stored.
	var stored map[string]corev1.ConfigMap
	for i, c := range l.clients {
		list, err := c.CoreV1().ConfigMaps(l.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		shown := map[string]corev1.ConfigMap{}
		for _, cm := range list.Items {
			shown[cm.Name] = cm
		}
		if stored == nil {
			stored = shown
		}
		if len(shown) != len(stored) || len(list.Items) != len(stored) {
			t.Errorf("server %d shows %d config maps, server 0 %d", i, len(list.Items), len(stored))
		}
		for name, cm := range shown {
			if stored[name].ResourceVersion != cm.ResourceVersion {
				t.Errorf("server %d shows %s at revision %s, server 0 at %s", i, name, cm.ResourceVersion, stored[name].ResourceVersion)
			}
		}
	}
	var history []seenEvent
	select {
	case history = <-l.recorded:
	case <-ctx.Done():
		t.Error("the store's own history does not come to its end")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.checkObjects(stored)
	l.checkServices(ctx)
	l.checkRegisters()
	l.checkWatchers(history, mayExpire)
	for _, p := range l.problems {
		t.Error(p)
	}
	if l.ops.Load() < 50 {
		t.Errorf("got %d answers in all, want at least 50: the load has tested nothing", l.ops.Load())
	}
	moves, expired := 0, 0
	for _, w := range l.watchers {
		moves += w.moves
		expired += w.expired
	}
	t.Logf("%d answers; counters %+v; %d named, %d made (%d unknown); %d registers; %d services; %d watches, %d of them expired",
		l.ops.Load(), l.counted, len(l.named), len(l.made), l.madeLost, len(l.registry), len(l.services), moves, expired)
}

// checkObjects checks that nothing acknowledged is lost, and nothing refused is there.
func (l *load) checkObjects(stored map[string]corev1.ConfigMap) {
	t := l.f.t
	for which, n := range l.counted {
		value := 0
		if _, err := fmt.Sscan(stored[fmt.Sprintf("counter-%d", which)].Data["value"], &value); err != nil {
			t.Error(err)
		}
		if value < n.acknowledged || value > n.acknowledged+n.uncertain {
			t.Errorf("counter %d: got %d, want %d increments that were acknowledged and at most %d more", which, value, n.acknowledged, n.uncertain)
		}
	}
	for name, known := range l.named {
		_, there := stored[name]
		mustBe := known.created == written && known.deleted == notWritten
		mustNotBe := known.created == notWritten || known.deleted == written
		if there && mustNotBe || !there && mustBe {
			t.Errorf("%s: stored: %v, though clients were told %+v (0 written, 1 not written, 2 unknown)", name, there, *known)
		}
	}
	made := 0
	for name := range stored {
		if strings.HasPrefix(name, "made-") {
			made++
		}
	}
	for name := range l.made {
		if _, ok := stored[name]; !ok {
			t.Errorf("%s is lost", name)
		}
	}
	if made > len(l.made)+l.madeLost {
		t.Errorf("got %d objects with names made by the server, want %d and at most %d more", made, len(l.made), l.madeLost)
	}
	for manager, field := range l.applied {
		value := 0
		_, _ = fmt.Sscan(stored["applied"].Data[fmt.Sprintf("field-%d", manager)], &value)
		if value < field.acknowledged || value > field.tried {
			t.Errorf("manager %d: got %d, want its last value %d, or up to %d", manager, value, field.acknowledged, field.tried)
		}
	}
}

// maxLostReservations is how many reservations one fault may interrupt.
const maxLostReservations = 6

// checkServices checks that every address and node port has one owner, and that what is
// reserved in the store is what services use.
func (l *load) checkServices(ctx context.Context) {
	t := l.f.t
	services, err := l.clients[0].CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Error(err)
		return
	}
	owners, ports, there := map[string]string{}, map[int32]string{}, map[string]bool{}
	for _, s := range services.Items {
		name := s.Namespace + "/" + s.Name
		if s.Namespace == l.namespace {
			there[s.Name] = true
		}
		if other := owners[s.Spec.ClusterIP]; other != "" {
			t.Errorf("%s and %s have the address %s", name, other, s.Spec.ClusterIP)
		}
		owners[s.Spec.ClusterIP] = name
		for _, p := range s.Spec.Ports {
			if other := ports[p.NodePort]; p.NodePort != 0 && other != "" {
				t.Errorf("%s and %s have the node port %d", name, other, p.NodePort)
			}
			ports[p.NodePort] = name
		}
	}
	lost := 0
	for name, known := range l.services {
		if known.created == written && known.deleted == notWritten && !there[name] || (known.created == notWritten || known.deleted == written) && there[name] {
			t.Errorf("service %s: stored: %v, though clients were told %+v (0 written, 1 not written, 2 unknown)", name, there[name], *known)
		}
		if known.created == unknown || known.deleted == unknown {
			lost++
		}
	}
	addresses, err := l.clients[0].NetworkingV1().IPAddresses().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Error(err)
		return
	}
	reserved := map[string]bool{}
	unused := 0
	for _, a := range addresses.Items {
		reserved[a.Name] = true
		if owners[a.Name] == "" {
			unused++
		}
	}
	for address, owner := range owners {
		if !reserved[address] {
			t.Errorf("the address %s of %s is not reserved", address, owner)
		}
	}
	// A reservation whose outcome was unknown to the server is taken back by the repair,
	// minutes later. client-go repeats the creation of its service by itself.
	if allowed := l.f.lostServices + lost + maxLostReservations; unused > allowed {
		t.Errorf("%d addresses are reserved that nobody uses, want at most %d, of writes whose outcome is unknown", unused, allowed)
	}
	l.f.lostServices += lost + maxLostReservations
}

// checkRegisters checks that reads and writes of registers are linearizable.
func (l *load) checkRegisters() {
	model := porcupine.Model{
		Partition: func(history []porcupine.Operation) (parts [][]porcupine.Operation) {
			byKey := map[int][]porcupine.Operation{}
			for _, op := range history {
				key := op.Input.(registerInput).key
				byKey[key] = append(byKey[key], op)
			}
			for _, part := range byKey {
				parts = append(parts, part)
			}
			return parts
		},
		Init: func() any { return "0" },
		Step: func(state, input, output any) (bool, any) {
			in := input.(registerInput)
			if in.write {
				return true, in.value
			}
			return output.(string) == state.(string), state
		},
		DescribeOperation: func(input, output any) string {
			in := input.(registerInput)
			if in.write {
				return fmt.Sprintf("write %d %s", in.key, in.value)
			}
			return fmt.Sprintf("read %d: %v", in.key, output)
		},
	}
	switch porcupine.CheckOperationsTimeout(model, l.registry, time.Minute) {
	case porcupine.Illegal:
		l.f.t.Errorf("%d reads and writes of registers are not linearizable", len(l.registry))
	case porcupine.Unknown:
		l.f.t.Logf("%d reads and writes of registers are too many to check", len(l.registry))
	}
}

// checkWatchers compares what watchers saw with the store's own history.
func (l *load) checkWatchers(history []seenEvent, mayExpire bool) {
	t := l.f.t
	if len(history) == 0 {
		t.Error("the store has no history of the load")
		return
	}
	end := history[len(history)-1].revision
	for _, w := range l.watchers {
		if w.expired > 0 && !mayExpire {
			t.Errorf("%s had to list again %d times, want never", w.name, w.expired)
		}
		from := w.from
		until := func(events []seenEvent) []seenEvent {
			return slices.DeleteFunc(slices.Clone(events), func(e seenEvent) bool { return e.revision <= from || e.revision > end })
		}
		got, want := until(w.events), until(history)
		if slices.Equal(got, want) {
			continue
		}
		t.Errorf("%s saw %d events after revision %d, want the %d of the store's history", w.name, len(got), from, len(want))
		for i := range min(len(got), len(want)) {
			if got[i] != want[i] {
				t.Errorf("first difference: got %+v, want %+v", got[i], want[i])
				break
			}
		}
	}
}
