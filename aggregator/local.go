package aggregator

import (
	"context"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/apikeel/kelson/internal/loopback"
	"github.com/apikeel/kelson/internal/protect"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// This file creates and removes the APIServices of the groups that this process serves.

// automanaged is the label of APIServices that the server manages: onStart for built-in
// groups, always for custom resources. An APIService without the label belongs to a
// user and is left alone.
const (
	automanaged = "kube-aggregator.kubernetes.io/automanaged"
	always      = "true"
	onStart     = "onstart"
)

// priority orders groups and versions in discovery.
type priority struct{ group, version int32 }

// customPriority is the priority of custom resources.
func customPriority() priority { return priority{1000, 100} }

// priorities are the priorities of the APIServices of built-in groups and versions, as in kube-apiserver.
type priorities struct {
	groups  map[string]int32
	special map[schema.GroupVersion]int32 // versions that differ from usual
	usual   map[string]int32
}

var builtinPriorities = sync.OnceValue(func() *priorities {
	return &priorities{groups: map[string]int32{
		"": 18000, "apps": 17800, "events.k8s.io": 17750, "authentication.k8s.io": 17700, "authorization.k8s.io": 17600,
		"autoscaling": 17500, "batch": 17400, "certificates.k8s.io": 17300, "networking.k8s.io": 17200, "policy": 17100,
		"rbac.authorization.k8s.io": 17000, "storage.k8s.io": 16800, "apiextensions.k8s.io": 16700,
		"admissionregistration.k8s.io": 16700, "scheduling.k8s.io": 16600, "coordination.k8s.io": 16500, "node.k8s.io": 16300,
		"discovery.k8s.io": 16200, "resource.k8s.io": 16200, "flowcontrol.apiserver.k8s.io": 16100,
		"internal.apiserver.k8s.io": 16000, "storagemigration.k8s.io": 15800, "lifecycle.k8s.io": 15700,
	}, special: map[schema.GroupVersion]int32{
		{Version: "v1"}: 1,
		{Group: "events.k8s.io", Version: "v1beta1"}: 5,
		{Group: "autoscaling", Version: "v2"}:        30, {Group: "autoscaling", Version: "v2beta2"}: 1, {Group: "autoscaling", Version: "v2beta1"}: 9,
		{Group: "admissionregistration.k8s.io", Version: "v1beta1"}: 12, {Group: "admissionregistration.k8s.io", Version: "v1alpha1"}: 9,
		{Group: "coordination.k8s.io", Version: "v1beta1"}: 13, {Group: "coordination.k8s.io", Version: "v1alpha2"}: 12,
		{Group: "discovery.k8s.io", Version: "v1beta1"}:        12,
		{Group: "flowcontrol.apiserver.k8s.io", Version: "v1"}: 21, {Group: "flowcontrol.apiserver.k8s.io", Version: "v1beta3"}: 18,
		{Group: "flowcontrol.apiserver.k8s.io", Version: "v1beta2"}: 15, {Group: "flowcontrol.apiserver.k8s.io", Version: "v1beta1"}: 12,
		{Group: "internal.apiserver.k8s.io", Version: "v1alpha1"}: 9,
		{Group: "scheduling.k8s.io", Version: "v1alpha3"}:         3,
		{Group: "resource.k8s.io", Version: "v1"}:                 21, {Group: "resource.k8s.io", Version: "v1beta2"}: 15,
	}, usual: map[string]int32{"v1": 15, "v1beta1": 9, "v1alpha1": 1, "v1alpha3": 1}}
})

// builtinPriority returns the priority of a built-in group and version.
func builtinPriority(gv schema.GroupVersion) (priority, bool) {
	p := builtinPriorities()
	group, ok := p.groups[gv.Group]
	if !ok {
		return priority{}, false
	}
	if version, ok := p.special[gv]; ok {
		return priority{group, version}, true
	}
	version, ok := p.usual[gv.Version]
	return priority{group, version}, ok
}

// reduce drops from an APIService what this package does not read: there are dozens of
// local ones, which differ in little more than their names.
func reduce(service *apiregistration.APIService) *apiregistration.APIService {
	shared := sharedParts()
	labels, known := shared.labels[service.Labels[automanaged]]
	if !known {
		labels = service.Labels
	}
	service.ObjectMeta = metav1.ObjectMeta{Name: service.Name, UID: service.UID, Labels: labels}
	if service.Spec.Service == nil && isAvailable(service) {
		service.Status = shared.local
	}
	return service
}

// sharedParts are parts of reduced APIServices. They never change.
var sharedParts = sync.OnceValue(func() (shared struct {
	labels map[string]map[string]string // by the value of the label automanaged
	local  apiregistration.APIServiceStatus
}) {
	shared.labels = map[string]map[string]string{"": nil, always: {automanaged: always}, onStart: {automanaged: onStart}}
	setCondition(&shared.local, localCondition(), time.Time{})
	return shared
})

// LocalServices returns the APIServices for the groups of a catalog.
func LocalServices(catalog *resource.Catalog) []*apiregistration.APIService {
	var wanted []*apiregistration.APIService
	for _, g := range catalog.Groups() {
		if g.Name == Group {
			continue
		}
		for i := range g.Versions {
			gv := schema.GroupVersion{Group: g.Name, Version: g.Versions[i].Name}
			p, builtin := builtinPriority(gv)
			label := onStart
			if !builtin {
				p, label = customPriority(), always
			}
			wanted = append(wanted, &apiregistration.APIService{
				TypeMeta:   metav1.TypeMeta{APIVersion: Group + "/v1", Kind: "APIService"},
				ObjectMeta: metav1.ObjectMeta{Name: gv.Version + "." + gv.Group, Labels: map[string]string{automanaged: label}},
				Spec:       apiregistration.APIServiceSpec{Group: gv.Group, Version: gv.Version, GroupPriorityMinimum: p.group, VersionPriority: p.version},
			})
		}
	}
	return wanted
}

// Register creates the APIServices of everything that is served at the start, and
// removes stale ones.
func (s *Server) Register(ctx context.Context) error {
	if err := s.Settled(ctx); err != nil {
		return err
	}
	if err := s.register(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	s.started = true
	s.mu.Unlock()
	s.changed.Add(1)
	return nil
}

// registerWorkers is how many APIServices are written in parallel, so that they share
// commits of the store.
const registerWorkers = 16

// register creates, updates and deletes the managed APIServices as the catalog
// requires.
func (s *Server) register(ctx context.Context) error {
	s.sync(ctx)
	catalog := s.Catalog()
	var writes []func() error
	add := func(f func() error) { writes = append(writes, f) }
	s.mu.Lock()
	started := s.started
	served := map[string]bool{}
	for _, wanted := range LocalServices(catalog) {
		served[wanted.Name] = true
		current, onlyAtStart := s.services[wanted.Name], wanted.Labels[automanaged] == onStart
		switch {
		case onlyAtStart && started:
		case current == nil && !started && s.Create != nil:
			add(func() error { return s.Create(ctx, wanted) })
		case current == nil:
			add(func() error {
				return s.client().Do(ctx, loopback.Call{Method: http.MethodPost, Path: servicesPath, Body: wanted})
			})
		case current.Labels[automanaged] != "" && !equality.Semantic.DeepEqual(current.Spec, wanted.Spec):
			add(func() error {
				return s.update(ctx, wanted.Name, "", func(now *apiregistration.APIService) { now.Spec = wanted.Spec })
			})
		}
	}
	for name, current := range s.services {
		label := current.Labels[automanaged]
		switch {
		case !served[name] && (label == always || label == onStart && !started):
			options := &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &current.UID}}
			add(func() error {
				return s.client().Do(ctx, loopback.Call{Method: http.MethodDelete, Path: servicesPath + "/" + name, Body: options})
			})
		case current.Spec.Service == nil && !isAvailable(current):
			add(func() error { return s.setCondition(ctx, name, localCondition()) })
		}
	}
	s.mu.Unlock()
	return protect.Each(len(writes), registerWorkers, func(i int) error {
		err := writes[i]()
		if apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return nil // another server was faster
		}
		return err
	})
}

// setCondition writes the Available condition of an APIService if it has changed.
func (s *Server) setCondition(ctx context.Context, name string, c apiregistration.APIServiceCondition) error {
	return s.update(ctx, name, "/status", func(service *apiregistration.APIService) {
		setCondition(&service.Status, c, request.From(ctx).Received)
	})
}

// servicesPath is where this server has APIServices.
const servicesPath = "/apis/" + Group + "/v1/" + Resource

func (s *Server) update(ctx context.Context, name, subresource string, change func(*apiregistration.APIService)) error {
	return loopback.Update(ctx, s.client(), servicesPath+"/"+name, subresource, func(service *apiregistration.APIService) error {
		change(service)
		return nil
	})
}

// client writes APIServices as the server itself.
func (s *Server) client() *loopback.Client {
	return &loopback.Client{Transport: s.Loopback, Agent: "kube-apiserver"}
}
