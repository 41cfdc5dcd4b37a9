package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/apikeel/kelson/test/bench/servers"
)

// operation is something that clients do, measured in slices.
type operation struct {
	name  string
	count int // in a slice, at scale 1
	// prepare makes what a slice of that size needs. It is not measured.
	prepare func(ctx context.Context, t *target, count int) error
	// work is one slice.
	work func(ctx context.Context, m *meter, count int) error
	// reference names the work of the reference server that this is compared with in
	// the short form; without one it is not part of that.
	reference string
	// noFloor says that the reference work is not the least that a server does for this.
	noFloor bool
	// floor names the work of the reference server that is the least for this, if it has no
	// reference.
	floor string
}

// floorWork returns the work of the reference server that is the least for the operation,
// nil if there is none.
func (o operation) floorWork() func(context.Context, *meter, int) error {
	switch {
	case o.floor != "":
		return referenceWork(o.floor).work
	case o.reference != "" && !o.noFloor:
		return referenceWork(o.reference).work
	}
	return nil
}

// operations returns all operations in the order in which they are measured: those that
// need objects come after those that create them.
func operations() []operation {
	return []operation{
		{name: "create ConfigMap, 1 client", count: 300, work: createConfigMaps(1), reference: writeAlone},
		{name: "create ConfigMap, 16 clients", count: 1000, work: createConfigMaps(16), reference: writeMany},
		{name: "create ConfigMap, 64 clients", count: 1000, work: createConfigMaps(64)},
		{name: "get ConfigMap, 1 client", count: 600, prepare: needConfigMaps, work: getConfigMaps(1), floor: readAlone},
		{name: "get ConfigMap, 16 clients", count: 4000, prepare: needConfigMaps, work: getConfigMaps(16), reference: readSmall},
		{name: "update ConfigMap, 16 clients", count: 1000, prepare: needConfigMaps, work: changeConfigMaps(func(o object) request {
			return request{method: http.MethodPut, body: configMap(o.name, "updated", withVersion(o.version))}
		}), reference: writeMany},
		{name: "merge patch, 16 clients", count: 1000, prepare: needConfigMaps, work: changeConfigMaps(func(o object) request {
			return request{method: http.MethodPatch, contentType: mergePatch, body: `{"data":{"value":"merged ` + o.version + `"}}`}
		}), reference: writeMany},
		{name: "JSON patch, 16 clients", count: 1000, prepare: needConfigMaps, work: changeConfigMaps(func(o object) request {
			return request{method: http.MethodPatch, contentType: jsonPatch, body: `[{"op":"replace","path":"/data/value","value":"patched ` + o.version + `"}]`}
		}), reference: writeMany},
		{name: "apply that creates, 16 clients", count: 1000, work: applyConfigMaps, reference: writeMany},
		{name: "lease update, 64 clients", count: 1000, prepare: needLeases, work: renewLeases(64), reference: writeMany, noFloor: true},
		{name: "lease update, 60 clients, a connection a lease", count: 1000, prepare: needHeartbeats, work: renewOverMany(300, func(ctx context.Context, m *meter, c *client, count int) error {
			// Each lease is one worker's alone, as it is one node's.
			leases, workers := m.target.leases[:300], 60
			return m.loop(ctx, workers, count, func(ctx context.Context, worker, i int) error {
				n := worker + workers*(i/workers%(len(leases)/workers))
				return renew(ctx, c, n, &leases[n])
			})
		})},
		{name: "quiet cluster: heartbeats, 300 connections, 60 a second", count: 300, prepare: needHeartbeats, work: renewOverMany(300, heartbeats(300, 60)), floor: writeQuiet},
		{name: "create pod, 16 clients", count: 500, work: createPods, reference: writeMany},
		{name: "list of 20 ConfigMaps, 16 clients", count: 1500, prepare: needSmallList, work: list(smallListPath, asJSON, 16), reference: readSmall, noFloor: true},
		{name: "list of 2,000 pods, JSON, 1 client", count: 12, prepare: needPods, work: list(manyPodsPath, asJSON, 1), reference: readLarge, noFloor: true},
		{name: "list of 2,000 pods, protobuf, 1 client", count: 16, prepare: needPods, work: list(manyPodsPath, asProtobuf, 1), reference: readLarge, noFloor: true},
		{name: "list of 2,000 pods, Table, 1 client", count: 16, prepare: needPods, work: list(manyPodsPath, asTable, 1), reference: readLarge, noFloor: true},
		{name: "watch events, 100 watches, 8 writers", count: 100 * 200, prepare: needConfigMaps, work: watchEvents(100, 8), reference: writeMany, noFloor: true},
		{name: "create custom resource, 16 clients", count: 500, prepare: needDefinition, work: createCustoms, reference: writeMany},
		{name: "get custom resource, 16 clients", count: 2000, prepare: needCustoms, work: getCustoms, reference: readSmall},
		{name: "list of 500 custom resources, 4 clients", count: 60, prepare: needCustomList, work: list(customListPath, asJSON, 4), reference: readLarge, noFloor: true},
		{name: "custom resource's first object after its definition", count: 3, work: firstCustoms},
	}
}

// createNamespace makes a namespace with the service account that pods in it need, which
// no controller may be there to make.
func createNamespace(ctx context.Context, t *target, name string) error {
	_, err := t.client.send(ctx, 0, request{method: http.MethodPost, path: "/api/v1/namespaces",
		body: `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"` + name + `"}}`})
	if isThere(err) != nil {
		return err
	}
	_, err = t.client.send(ctx, 0, request{method: http.MethodPost, path: "/api/v1/namespaces/" + name + "/serviceaccounts",
		body: `{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"default"}}`})
	return isThere(err)
}

// cleanUp deletes what operations have left in a server that goes on without them.
func cleanUp(ctx context.Context, t *target) error {
	var paths []string
	for _, plural := range append([]string{customPlural}, t.plurals...) {
		paths = append(paths, definitions+"/"+plural+"."+customGroup)
	}
	for _, suffix := range []string{"", "-20", "-pods", "-cr"} {
		paths = append(paths, "/api/v1/namespaces/"+namespace+suffix)
	}
	for _, path := range paths {
		if _, err := t.client.send(ctx, 0, request{method: http.MethodDelete, path: path}); err != nil && !isStatus(err, http.StatusNotFound) {
			return err
		}
	}
	return nil
}

// createAll creates count objects and returns them.
func createAll(ctx context.Context, m *meter, workers, count int, path, prefix string, text func(name string, i int) string) ([]object, error) {
	t := m.target
	first := t.count
	t.count += count
	made := make([]object, count)
	err := m.loop(ctx, workers, count, func(ctx context.Context, worker, i int) error {
		name := fmt.Sprintf("%s-%06d", prefix, first+i)
		answer, err := t.client.fetch(ctx, worker, request{method: http.MethodPost, path: path, body: text(name, first+i)})
		made[i] = object{name, resourceVersion(answer)}
		return err
	})
	return made, err
}

func newConfigMap(name string, _ int) string { return configMap(name, "new", "") }

func createConfigMaps(workers int) func(context.Context, *meter, int) error {
	return func(ctx context.Context, m *meter, count int) error {
		made, err := createAll(ctx, m, workers, count, configMapsPath, "cm", newConfigMap)
		m.target.configMaps = append(m.target.configMaps, made...)
		return err
	}
}

func needConfigMaps(ctx context.Context, t *target, count int) error {
	if missing := min(count, 1000) - len(t.configMaps); missing > 0 {
		return createConfigMaps(16)(ctx, &meter{target: t}, missing)
	}
	return nil
}

func getConfigMaps(workers int) func(context.Context, *meter, int) error {
	return func(ctx context.Context, m *meter, count int) error {
		t := m.target
		return m.loop(ctx, workers, count, func(ctx context.Context, worker, i int) error {
			n, err := t.client.send(ctx, worker, request{path: configMapsPath + "/" + t.configMaps[i%len(t.configMaps)].name})
			m.bytes.Add(n)
			return err
		})
	}
}

func changeConfigMaps(change func(object) request) func(context.Context, *meter, int) error {
	return func(ctx context.Context, m *meter, count int) error {
		t := m.target
		return m.loop(ctx, 16, min(count, len(t.configMaps)), func(ctx context.Context, worker, i int) error {
			o := &t.configMaps[i]
			r := change(*o)
			r.path = configMapsPath + "/" + o.name
			answer, err := t.client.fetch(ctx, worker, r)
			o.version = resourceVersion(answer)
			return err
		})
	}
}

func applyConfigMaps(ctx context.Context, m *meter, count int) error {
	t := m.target
	first := t.count
	t.count += count
	return m.loop(ctx, 16, count, func(ctx context.Context, worker, i int) error {
		name := fmt.Sprintf("applied-%06d", first+i)
		_, err := t.client.send(ctx, worker, request{method: http.MethodPatch, path: configMapsPath + "/" + name + "?fieldManager=bench",
			contentType: applyPatch, body: configMap(name, "applied", "")})
		return err
	})
}

func createPods(ctx context.Context, m *meter, count int) error {
	_, err := createAll(ctx, m, 16, count, podsPath, "pod", pod)
	return err
}

// Lists have namespaces of their own, so that they are as long in every round.
const (
	smallListPath  = "/api/v1/namespaces/" + namespace + "-20/configmaps"
	manyPodsPath   = "/api/v1/namespaces/" + namespace + "-pods/pods"
	manyPods       = 2000
	customPlural   = "databases"
	customKind     = "Database"
	customListPath = "/apis/" + customGroup + "/v1/namespaces/" + namespace + "-cr/" + customPlural
)

func needSmallList(ctx context.Context, t *target, _ int) error {
	if err := createNamespace(ctx, t, namespace+"-20"); err != nil {
		return err
	}
	_, err := createAll(ctx, &meter{target: t}, 4, 19, smallListPath, "cm", newConfigMap) // and kube-root-ca.crt, where a controller makes it
	return err
}

func needPods(ctx context.Context, t *target, _ int) error {
	if t.pods > 0 {
		return nil
	}
	t.pods = manyPods
	if err := createNamespace(ctx, t, namespace+"-pods"); err != nil {
		return err
	}
	_, err := createAll(ctx, &meter{target: t}, 16, manyPods, manyPodsPath, "pod", pod)
	return err
}

// list measures a list. The answer must have an end and a length that is not tiny.
func list(path, accept string, workers int) func(context.Context, *meter, int) error {
	return func(ctx context.Context, m *meter, count int) error {
		t := m.target
		return m.loop(ctx, workers, count, func(ctx context.Context, worker, _ int) error {
			n, err := t.client.send(ctx, worker, request{path: path, accept: accept})
			m.bytes.Add(n)
			if err == nil && n < 1000 {
				err = fmt.Errorf("GET %s: got %d bytes, want a list", path, n)
			}
			return err
		})
	}
}

// createDefinition makes a definition and waits until it is served.
func createDefinition(ctx context.Context, t *target, plural, kind string) error {
	_, err := t.client.send(ctx, 0, request{method: http.MethodPost, path: definitions, body: definition(plural, kind)})
	if isThere(err) != nil {
		return err
	}
	return untilServed(ctx, t, plural)
}

// servedPatience is how long a server may take to serve a new definition: kube-apiserver
// takes minutes for the last of a thousand.
const servedPatience = 10 * time.Minute

func untilServed(ctx context.Context, t *target, plural string) error {
	var err error
	for end := time.Now().Add(servedPatience); time.Now().Before(end); {
		if _, err = t.client.send(ctx, 0, request{path: customPath(plural, namespace)}); err == nil {
			return nil
		}
		if err := servers.Wait(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	return fmt.Errorf("%s is not served after %v: %w", plural, servedPatience, err)
}

func needDefinition(ctx context.Context, t *target, _ int) error {
	if err := createDefinition(ctx, t, customPlural, customKind); err != nil {
		return err
	}
	// The first objects may be refused while kube-apiserver sets up the definition.
	var err error
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		if _, err = createAll(ctx, &meter{target: t}, 1, 1, customPath(customPlural, namespace), "first", newCustom); err == nil {
			return nil
		}
		if err := servers.Wait(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	return err
}

// firstCustoms creates definitions, and an object of each as soon as the server takes it.
func firstCustoms(ctx context.Context, m *meter, count int) error {
	t := m.target
	return m.loop(ctx, 1, count, func(ctx context.Context, _, _ int) error {
		t.count++
		plural, kind := fmt.Sprintf("firsts%06d", t.count), fmt.Sprintf("First%06d", t.count)
		if _, err := t.client.send(ctx, 0, request{method: http.MethodPost, path: definitions, body: definition(plural, kind)}); err != nil {
			return err
		}
		t.plurals = append(t.plurals, plural)
		for end := time.Now().Add(servedPatience); ; {
			_, err := t.client.send(ctx, 0, request{method: http.MethodPost, path: customPath(plural, namespace), body: custom(kind, "first", "16.4")})
			if !isStatus(err, http.StatusNotFound) || time.Now().After(end) {
				return err
			}
			if err := servers.Wait(ctx, time.Millisecond); err != nil {
				return err
			}
		}
	})
}

func newCustom(name string, _ int) string { return custom(customKind, name, "16.4") }

func createCustoms(ctx context.Context, m *meter, count int) error {
	made, err := createAll(ctx, m, 16, count, customPath(customPlural, namespace), "db", newCustom)
	m.target.customs = append(m.target.customs, made...)
	return err
}

func needCustoms(ctx context.Context, t *target, count int) error {
	if len(t.customs) > 0 {
		return nil
	}
	if err := needDefinition(ctx, t, count); err != nil {
		return err
	}
	return createCustoms(ctx, &meter{target: t}, 200)
}

func getCustoms(ctx context.Context, m *meter, count int) error {
	t := m.target
	return m.loop(ctx, 16, count, func(ctx context.Context, worker, i int) error {
		n, err := t.client.send(ctx, worker, request{path: customPath(customPlural, namespace) + "/" + t.customs[i%len(t.customs)].name})
		m.bytes.Add(n)
		return err
	})
}

func needCustomList(ctx context.Context, t *target, count int) error {
	if err := errors.Join(needDefinition(ctx, t, count), createNamespace(ctx, t, namespace+"-cr")); err != nil {
		return err
	}
	_, err := createAll(ctx, &meter{target: t}, 16, 500, customListPath, "db", newCustom)
	return err
}

// needLeases makes as many leases as a slice renews.
func needLeases(ctx context.Context, t *target, count int) error {
	missing := count - len(t.leases)
	if missing <= 0 {
		return nil
	}
	made, err := createAll(ctx, &meter{target: t}, 16, missing, leasesPath, "node", func(name string, _ int) string { return lease(name, "") })
	t.leases = append(t.leases, made...)
	return err
}

func needHeartbeats(ctx context.Context, t *target, count int) error {
	return needLeases(ctx, t, max(count, 300))
}

// renew updates a lease with the version that the last update has returned, as a kubelet does.
func renew(ctx context.Context, c *client, conn int, o *object) error {
	answer, err := c.fetch(ctx, conn, request{method: http.MethodPut, path: leasesPath + "/" + o.name, body: lease(o.name, o.version)})
	o.version = resourceVersion(answer)
	return err
}

func renewLeases(workers int) func(context.Context, *meter, int) error {
	return func(ctx context.Context, m *meter, count int) error {
		t := m.target
		return m.loop(ctx, workers, min(count, len(t.leases)), func(ctx context.Context, worker, i int) error {
			return renew(ctx, t.client, worker, &t.leases[i])
		})
	}
}

// renewOverMany does work with leases, over as many connections as there are nodes, which
// are open before.
func renewOverMany(nodes int, work func(ctx context.Context, m *meter, c *client, count int) error) func(context.Context, *meter, int) error {
	return overMany(nodes, func(t *target, i int) string { return leasesPath + "/" + t.leases[i].name }, work)
}

// overMany does work over many connections. Each of them is opened before, by getting a
// path.
func overMany(many int, path func(t *target, i int) string, work func(ctx context.Context, m *meter, c *client, count int) error) func(context.Context, *meter, int) error {
	return func(ctx context.Context, m *meter, count int) error {
		t := m.target
		c := newClient(t.Server, many)
		defer c.close()
		if err := inParallel(ctx, 8, many, func(ctx context.Context, _, i int) error {
			_, err := c.send(ctx, i, request{path: path(t, i)})
			return err
		}); err != nil {
			return err
		}
		// Opening the connections is not part of it.
		if err := t.Settle(ctx, settlePatience); err != nil {
			return err
		}
		s, err := measure(ctx, t, func(ctx context.Context, inner *meter) error { return work(ctx, inner, c, count) })
		m.result = &s
		return err
	}
}

// heartbeats renews leases at a rate.
func heartbeats(nodes, rate int) func(context.Context, *meter, *client, int) error {
	return atRate(rate, func(ctx context.Context, m *meter, c *client, i int) error {
		return renew(ctx, c, i%nodes, &m.target.leases[i%nodes])
	})
}

// atRate calls a function at a rate, whether or not the calls before have ended.
func atRate(rate int, call func(ctx context.Context, m *meter, c *client, i int) error) func(context.Context, *meter, *client, int) error {
	return func(ctx context.Context, m *meter, c *client, count int) error {
		var group sync.WaitGroup
		var failed error
		ticker := time.NewTicker(time.Second / time.Duration(rate))
		defer ticker.Stop()
		for i := range count {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-ticker.C:
			}
			group.Go(func() {
				start := time.Now()
				err := call(ctx, m, c, i)
				m.mu.Lock()
				defer m.mu.Unlock()
				m.times = append(m.times, milliseconds(time.Since(start)))
				failed = errors.Join(failed, err)
			})
		}
		group.Wait()
		return failed
	}
}

// watchEvents updates objects while many watch all of them. An operation is an event at a
// watch; its time runs from before the update is sent until that event has arrived there.
// An event that is missing, comes twice or out of order is an error.
func watchEvents(watches, writers int) func(context.Context, *meter, int) error {
	return func(ctx context.Context, m *meter, count int) error {
		t := m.target
		writes := min(count/watches, len(t.configMaps))
		text, err := t.client.fetch(ctx, 0, request{path: configMapsPath + "?limit=1"})
		if err != nil {
			return err
		}
		version := resourceVersion(text)
		c := newClient(t.Server, connections)
		defer c.close()
		watchCtx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		sent := make([]time.Time, writes)
		var mu sync.Mutex // protects sent and times
		var times []float64
		var group sync.WaitGroup
		var open sync.WaitGroup
		open.Add(watches)
		for i := range watches {
			group.Go(func() {
				resp, err := c.open(watchCtx, i, request{path: configMapsPath + "?watch=1&resourceVersion=" + version})
				open.Done()
				if err != nil {
					cancel(err)
					return
				}
				defer resp.Body.Close()
				seen := make([]bool, writes)
				lines := bufio.NewReaderSize(resp.Body, 64<<10)
				for range writes {
					line, err := lines.ReadBytes('\n')
					if err != nil {
						cancel(fmt.Errorf("watch: %w", err))
						return
					}
					now := time.Now()
					_, value, _ := bytes.Cut(line, []byte(`"value":"event `))
					digits, _, _ := bytes.Cut(value, []byte(" "))
					number, err := strconv.Atoi(string(digits))
					if err != nil || number < 0 || number >= writes || seen[number] {
						cancel(fmt.Errorf("watch: got an event that was not wanted: %.200s", line))
						return
					}
					seen[number] = true
					mu.Lock()
					times = append(times, milliseconds(now.Sub(sent[number])))
					mu.Unlock()
				}
			})
		}
		open.Wait()
		if err := t.Settle(ctx, settlePatience); err != nil {
			return err
		}
		s, err := measure(ctx, t, func(ctx context.Context, inner *meter) error {
			err := inParallel(watchCtx, writers, writes, func(ctx context.Context, worker, i int) error {
				mu.Lock()
				sent[i] = time.Now()
				mu.Unlock()
				answer, err := t.client.fetch(ctx, worker, request{method: http.MethodPatch, path: configMapsPath + "/" + t.configMaps[i].name,
					contentType: mergePatch, body: fmt.Sprintf(`{"data":{"value":"event %d of %s"}}`, i, version)})
				t.configMaps[i].version = resourceVersion(answer)
				return err
			})
			if err != nil {
				cancel(err)
			}
			group.Wait()
			inner.times = times
			return context.Cause(watchCtx)
		})
		m.result = &s
		return err
	}
}
