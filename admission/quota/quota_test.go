package quota

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// stored is Objects of a test, with a guard as a store has it.
type stored struct {
	mu      sync.Mutex
	objects map[string]resource.Object
	version int
	writes  int
	fail    error // of updates
}

func newStored(objs ...resource.Object) *stored {
	s := &stored{objects: map[string]resource.Object{}}
	for _, obj := range objs {
		s.put(obj)
	}
	return s
}

func (s *stored) put(obj resource.Object) resource.Object {
	s.version++
	obj.SetResourceVersion(strconv.Itoa(s.version))
	s.objects[fmt.Sprintf("%T/%s/%s", obj, obj.GetNamespace(), obj.GetName())] = obj
	return obj
}

func (s *stored) Get(_ context.Context, group, name, namespace, key string) (resource.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, obj := range s.objects {
		if strings.HasSuffix(k, "/"+namespace+"/"+key) && strings.Contains(strings.ToLower(k), strings.TrimSuffix(name, "s")) {
			return obj, nil
		}
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Group: group, Resource: name}, key)
}

func (s *stored) GetNewest(ctx context.Context, group, name, namespace, key string) (resource.Object, error) {
	return s.Get(ctx, group, name, namespace, key)
}

func (s *stored) List(_ context.Context, _, name, namespace string) (objs []resource.Object, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, obj := range s.objects {
		if strings.Contains(strings.ToLower(k), strings.TrimSuffix(strings.TrimSuffix(name, "s"), "e")) && (namespace == "" || obj.GetNamespace() == namespace) {
			objs = append(objs, obj)
		}
	}
	slices.SortFunc(objs, func(a, b resource.Object) int { return strings.Compare(a.GetName(), b.GetName()) })
	return objs, nil
}

func (s *stored) UpdateStatus(ctx context.Context, group, name, namespace, key string, change func(resource.Object) error) (resource.Object, error) {
	for {
		if s.fail != nil {
			return nil, s.fail
		}
		old, err := s.Get(ctx, group, name, namespace, key)
		if err != nil {
			return nil, err
		}
		next := old.DeepCopyObject().(resource.Object)
		if err := change(next); err != nil {
			return nil, err
		}
		s.mu.Lock()
		if s.objects[fmt.Sprintf("%T/%s/%s", old, namespace, key)] != old {
			s.mu.Unlock()
			continue // somebody was faster
		}
		s.writes++
		next = s.put(next)
		s.mu.Unlock()
		return next, nil
	}
}

func (s *stored) used(t *testing.T, quota string, name corev1.ResourceName) string {
	t.Helper()
	obj, err := s.Get(t.Context(), "", "resourcequotas", "ns", quota)
	if err != nil {
		t.Fatal(err)
	}
	q := obj.(*corev1.ResourceQuota).Status.Used[name]
	return q.String()
}

func amount(pairs ...string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		l[corev1.ResourceName(pairs[i])] = apiresource.MustParse(pairs[i+1])
	}
	return l
}

func newQuota(name string, hard corev1.ResourceList, change ...func(*corev1.ResourceQuota)) *corev1.ResourceQuota {
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}
	q.Status = corev1.ResourceQuotaStatus{Hard: hard, Used: corev1.ResourceList{}}
	for name := range hard {
		q.Status.Used[name] = apiresource.MustParse("0")
	}
	for _, f := range change {
		f(q)
	}
	return q
}

func scoped(scopes ...corev1.ResourceQuotaScope) func(*corev1.ResourceQuota) {
	return func(q *corev1.ResourceQuota) { q.Spec.Scopes = scopes }
}

func write(op admission.Operation, name string, obj, old resource.Object) *admission.Attributes {
	name, sub, _ := strings.Cut(name, "/")
	gr := schema.ParseGroupResource(name)
	a := &admission.Attributes{
		Operation: op, Namespace: "ns", Name: obj.GetName(), Subresource: sub, Object: obj, Request: &request.Request{},
		Served: &resource.Served{Definition: &resource.Definition{Group: gr.Group, Resource: gr.Resource}},
	}
	if old != nil {
		a.Old = old
	}
	return a
}

func pod(change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
	for _, f := range change {
		f(p)
	}
	return p
}

func needs(requests, limits corev1.ResourceList) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: requests, Limits: limits}
	}
}

func TestQuota(t *testing.T) {
	claim := func(class, size string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}, Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, Resources: corev1.VolumeResourceRequirements{Requests: amount("storage", size)}}}
	}
	service := func(kind corev1.ServiceType, ports int) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}, Spec: corev1.ServiceSpec{Type: kind, Ports: make([]corev1.ServicePort, ports)}}
	}
	devices := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "d"}, Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
		Requests: []resourcev1.DeviceRequest{{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 3}}}}}}
	deadline := func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = new(int64(5)) }
	classed := func(name string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.PriorityClassName = name } }
	priorities := func(op corev1.ScopeSelectorOperator, values ...string) func(*corev1.ResourceQuota) {
		return func(q *corev1.ResourceQuota) {
			q.Spec.ScopeSelector = &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{
				{ScopeName: corev1.ResourceQuotaScopePriorityClass, Operator: op, Values: values}}}
		}
	}
	object := func(name string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	}
	for _, c := range []struct {
		name  string
		quota *corev1.ResourceQuota
		a     *admission.Attributes
		err   string
		used  string // name=amount
	}{
		{"count", newQuota("q", amount("count/configmaps", "1")), write(admission.Create, "configmaps", object("m"), nil), "", "count/configmaps=1"},
		{"old name", newQuota("q", amount("configmaps", "0")), write(admission.Create, "configmaps", object("m"), nil),
			`configmaps "m" is forbidden: exceeded quota: q, requested: configmaps=1, used: configmaps=0, limited: configmaps=0`, ""},
		{"any kind", newQuota("q", amount("count/widgets.example.com", "0")), write(admission.Create, "widgets.example.com", object("m"), nil), "requested: count/widgets.example.com=1", ""},
		{"another kind", newQuota("q", amount("count/secrets", "0")), write(admission.Create, "configmaps", object("m"), nil), "", "count/secrets=0"},
		{"unknown use", newQuota("q", amount("count/configmaps", "1"), func(q *corev1.ResourceQuota) { q.Status.Used = nil }), write(admission.Create, "configmaps", object("m"), nil),
			"status unknown for quota: q, resources: count/configmaps", ""},
		{"no status", newQuota("q", amount("count/configmaps", "0"), func(q *corev1.ResourceQuota) { q.Status = corev1.ResourceQuotaStatus{} }), write(admission.Create, "configmaps", object("m"), nil), "", ""},
		{"compute", newQuota("q", amount("requests.cpu", "1", "limits.memory", "1Gi")), write(admission.Create, "pods", pod(needs(amount("cpu", "2"), amount("memory", "2Gi"))), nil),
			"exceeded quota: q, requested: limits.memory=2Gi,requests.cpu=2, used: limits.memory=0,requests.cpu=0, limited: limits.memory=1Gi,requests.cpu=1", ""},
		{"must say", newQuota("q", amount("requests.cpu", "1", "limits.memory", "1Gi")), write(admission.Create, "pods", pod(), nil),
			"failed quota: q: must specify limits.memory for: c; requests.cpu for: c", ""},
		{"says as a whole", newQuota("q", amount("requests.cpu", "1")), write(admission.Create, "pods", pod(func(p *corev1.Pod) {
			p.Spec.Resources = &corev1.ResourceRequirements{Requests: amount("cpu", "500m")}
		}), nil), "", "requests.cpu=500m"},
		{"overhead", newQuota("q", amount("cpu", "3")), write(admission.Create, "pods", pod(needs(amount("cpu", "1"), nil), func(p *corev1.Pod) { p.Spec.Overhead = amount("cpu", "250m") }), nil), "", "cpu=1250m"},
		{"initial", newQuota("q", amount("cpu", "9")), write(admission.Create, "pods", pod(needs(amount("cpu", "1"), nil), func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{
				{Name: "beside", RestartPolicy: new(corev1.ContainerRestartPolicyAlways), Resources: corev1.ResourceRequirements{Requests: amount("cpu", "2")}},
				{Name: "before", Resources: corev1.ResourceRequirements{Requests: amount("cpu", "5")}},
			}
		}), nil), "", "cpu=7"},
		{"extended", newQuota("q", amount("requests.example.com/gpu", "1")), write(admission.Create, "pods", pod(needs(amount("example.com/gpu", "2"), nil)), nil), "requested: requests.example.com/gpu=2", ""},
		{"terminating", newQuota("q", amount("pods", "0"), scoped(corev1.ResourceQuotaScopeTerminating)), write(admission.Create, "pods", pod(deadline), nil), "requested: pods=1", ""},
		{"not terminating", newQuota("q", amount("pods", "0"), scoped(corev1.ResourceQuotaScopeTerminating)), write(admission.Create, "pods", pod(), nil), "", "pods=0"},
		{"begins to terminate", newQuota("q", amount("pods", "0"), scoped(corev1.ResourceQuotaScopeTerminating)), write(admission.Update, "pods", pod(deadline), pod()), "requested: pods=1", ""},
		{"update", newQuota("q", amount("pods", "0")), write(admission.Update, "pods", pod(), pod()), "", "pods=0"},
		{"best effort", newQuota("q", amount("pods", "0"), scoped(corev1.ResourceQuotaScopeBestEffort)), write(admission.Create, "pods", pod(), nil), "requested: pods=1", ""},
		{"not best effort", newQuota("q", amount("pods", "0"), scoped(corev1.ResourceQuotaScopeNotBestEffort)), write(admission.Create, "pods", pod(), nil), "", "pods=0"},
		{"priority", newQuota("q", amount("pods", "0"), priorities(corev1.ScopeSelectorOpIn, "high")), write(admission.Create, "pods", pod(classed("high")), nil), "requested: pods=1", ""},
		{"other priority", newQuota("q", amount("pods", "0"), priorities(corev1.ScopeSelectorOpIn, "high")), write(admission.Create, "pods", pod(classed("low")), nil), "", "pods=0"},
		{"no priority", newQuota("q", amount("pods", "0"), priorities(corev1.ScopeSelectorOpDoesNotExist)), write(admission.Create, "pods", pod(), nil), "requested: pods=1", ""},
		{"resize", newQuota("q", amount("requests.cpu", "3")), write(admission.Update, "pods/resize", pod(needs(amount("cpu", "5"), nil)), pod(needs(amount("cpu", "1"), nil))), "requested: requests.cpu=4", ""},
		{"resize smaller", newQuota("q", amount("requests.cpu", "0")), write(admission.Update, "pods/resize", pod(needs(amount("cpu", "1"), nil)), pod(needs(amount("cpu", "5"), nil))), "", "requests.cpu=0"},
		{"node ports", newQuota("q", amount("services.nodeports", "1")), write(admission.Create, "services", service(corev1.ServiceTypeNodePort, 2), nil), "requested: services.nodeports=2", ""},
		{"becomes a balancer", newQuota("q", amount("services", "0", "services.loadbalancers", "1")), write(admission.Update, "services", service(corev1.ServiceTypeLoadBalancer, 1), service(corev1.ServiceTypeClusterIP, 1)), "", "services.loadbalancers=1"},
		{"storage", newQuota("q", amount("requests.storage", "1Gi")), write(admission.Create, "persistentvolumeclaims", claim("fast", "2Gi"), nil), "requested: requests.storage=2Gi", ""},
		{"storage of a class", newQuota("q", amount("fast.storageclass.storage.k8s.io/requests.storage", "1Gi")), write(admission.Create, "persistentvolumeclaims", claim("fast", "2Gi"), nil), "exceeded quota", ""},
		{"storage of another", newQuota("q", amount("slow.storageclass.storage.k8s.io/requests.storage", "1Gi")), write(admission.Create, "persistentvolumeclaims", claim("fast", "2Gi"), nil), "", ""},
		{"claim grows", newQuota("q", amount("requests.storage", "2Gi")), write(admission.Update, "persistentvolumeclaims", claim("fast", "2Gi"), claim("fast", "1Gi")), "", "requests.storage=1Gi"},
		{"devices", newQuota("q", amount("gpu.deviceclass.resource.k8s.io/devices", "2")), write(admission.Create, "resourceclaims.resource.k8s.io", devices, nil), "requested: gpu.deviceclass.resource.k8s.io/devices=3", ""},
		{"negative", newQuota("q", amount("requests.cpu", "1")), write(admission.Create, "pods", pod(needs(amount("cpu", "-1"), nil)), nil), "quota usage is negative for resource(s): cpu,requests.cpu", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			objects := newStored(c.quota)
			err := admission.NewChain(New(objects, nil, Settings{}, nil, slog.New(slog.DiscardHandler))).Validate(t.Context(), c.a)
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("the error is %v, and not %q", err, c.err)
			}
			if name, want, ok := strings.Cut(c.used, "="); ok {
				if got := objects.used(t, "q", corev1.ResourceName(name)); got != want {
					t.Errorf("%s of %s is used", got, name)
				}
			}
		})
	}
}

// TestUse is about pods that are resized, or over.
func TestUse(t *testing.T) {
	status := func(allocated, actual corev1.ResourceList) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", AllocatedResources: allocated, Resources: &corev1.ResourceRequirements{Requests: actual}}}
		}
	}
	infeasible := func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodResizePending, Reason: corev1.PodReasonInfeasible}}
	}
	now := time.Now()
	for _, c := range []struct {
		name string
		pod  *corev1.Pod
		want string
	}{
		{"wants more", pod(needs(amount("cpu", "5"), nil), status(amount("cpu", "2"), amount("cpu", "1"))), "5"},
		{"has more", pod(needs(amount("cpu", "1"), nil), status(amount("cpu", "2"), amount("cpu", "3"))), "3"},
		{"cannot have more", pod(needs(amount("cpu", "5"), nil), status(amount("cpu", "2"), amount("cpu", "1")), infeasible), "2"},
		{"done", pod(needs(amount("cpu", "5"), nil), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), "0"},
		{"goes", pod(needs(amount("cpu", "5"), nil), func(p *corev1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: now}, new(int64(30))
		}), "5"},
		{"should be gone", pod(needs(amount("cpu", "5"), nil), func(p *corev1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: now.Add(-time.Minute)}, new(int64(30))
		}), "0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			used := pods(func() time.Time { return now }).Usage(c.pod)
			if got := used[corev1.ResourceRequestsCPU]; got.String() != c.want {
				t.Errorf("%s is used", got.String())
			}
			if got := used["count/pods"]; got.Value() != 1 {
				t.Errorf("it counts as %s pods", got.String())
			}
		})
	}
}

func TestLimitedByDefault(t *testing.T) {
	limited, err := Load([]byte(`apiVersion: apiserver.config.k8s.io/v1
kind: ResourceQuotaConfiguration
limitedResources:
- resource: pods
  matchScopes: [{scopeName: PriorityClass, operator: In, values: [high]}]
- resource: persistentvolumeclaims
  matchContains: [gold.storageclass.storage.k8s.io/requests.storage]
`))
	if err != nil {
		t.Fatal(err)
	}
	high := pod(func(p *corev1.Pod) { p.Spec.PriorityClassName = "high" })
	gold := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}, Spec: corev1.PersistentVolumeClaimSpec{
		StorageClassName: new("gold"), Resources: corev1.VolumeResourceRequirements{Requests: amount("storage", "1Gi")}}}
	covering := newQuota("q", amount("pods", "5", "gold.storageclass.storage.k8s.io/requests.storage", "5Gi"))
	covering.Spec.ScopeSelector = &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{
		{ScopeName: corev1.ResourceQuotaScopePriorityClass, Operator: corev1.ScopeSelectorOpIn, Values: []string{"high"}}}}
	for _, c := range []struct {
		name   string
		quotas []resource.Object
		a      *admission.Attributes
		err    string
	}{
		{"no quota", nil, write(admission.Create, "pods", high, nil), "insufficient quota to match these scopes: [{PriorityClass In [high]}]"},
		{"other pods", nil, write(admission.Create, "pods", pod(), nil), ""},
		{"quota", []resource.Object{covering}, write(admission.Create, "pods", high, nil), ""},
		{"storage", nil, write(admission.Create, "persistentvolumeclaims", gold, nil), "insufficient quota to consume: gold.storageclass.storage.k8s.io/requests.storage"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := admission.NewChain(New(newStored(c.quotas...), limited, Settings{}, nil, slog.New(slog.DiscardHandler))).Validate(t.Context(), c.a)
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("the error is %v, and not %q", err, c.err)
			}
		})
	}
}

// TestTwoQuotas: what one quota allows and another does not is charged to none.
func TestTwoQuotas(t *testing.T) {
	objects := newStored(newQuota("a", amount("count/configmaps", "5")), newQuota("b", amount("configmaps", "0")))
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "m"}}
	err := New(objects, nil, Settings{}, nil, slog.New(slog.DiscardHandler)).Validate(t.Context(), write(admission.Create, "configmaps", m, nil))
	if err == nil || !strings.Contains(err.Error(), "exceeded quota: b") {
		t.Errorf("the error is %v", err)
	}
	if got := objects.used(t, "a", "count/configmaps"); got != "0" {
		t.Errorf("%s is used of the first", got)
	}
}

// TestGiveBack: a write that fails is given back, unless somebody else has
// counted meanwhile who does not know what is pending.
func TestGiveBack(t *testing.T) {
	for _, c := range []struct {
		counted bool
		ledger  *Ledger
		want    string
	}{{false, nil, "1"}, {true, nil, "2"}, {false, NewLedger(nil, nil), "1"}, {true, NewLedger(nil, nil), "1"}} {
		objects := newStored(newQuota("q", amount("count/configmaps", "5")))
		p := New(objects, nil, Settings{}, c.ledger, slog.New(slog.DiscardHandler))
		a := write(admission.Create, "configmaps", &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "m"}}, nil)
		other := write(admission.Create, "configmaps", &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "n"}}, nil)
		if err := errors.Join(p.Validate(t.Context(), a), p.Validate(t.Context(), other)); err != nil {
			t.Fatal(err)
		}
		if c.counted {
			if _, err := objects.UpdateStatus(t.Context(), "", "resourcequotas", "ns", "q", func(resource.Object) error { return nil }); err != nil {
				t.Fatal(err)
			}
		}
		other.End(resource.Written)
		a.End(resource.NotWritten)
		a.End(resource.NotWritten)
		if got := objects.used(t, "q", "count/configmaps"); got != c.want {
			t.Errorf("counted meanwhile: %v, with a ledger: %v; %s is used, and not %s", c.counted, c.ledger != nil, got, c.want)
		}
	}
}

// TestTogether lets many wait at once: they share writes, and exactly those that
// fit get through, also if some give up waiting.
func TestTogether(t *testing.T) {
	const many, limit = 200, 50
	objects := newStored(newQuota("q", amount("count/configmaps", strconv.Itoa(limit))))
	p := New(objects, nil, Settings{}, nil, slog.New(slog.DiscardHandler))
	var all sync.WaitGroup
	var mu sync.Mutex
	charged := 0
	for i := range many {
		all.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if i%5 == 0 {
				go cancel()
			}
			err := p.Validate(ctx, write(admission.Create, "configmaps", &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: strconv.Itoa(i)}}, nil))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				charged++
			case !apierrors.IsForbidden(err) && !errors.Is(err, context.Canceled):
				t.Errorf("claim %d: %v", i, err)
			}
		})
	}
	all.Wait()
	if got := objects.used(t, "q", "count/configmaps"); charged != limit || got != strconv.Itoa(limit) {
		t.Errorf("%d were allowed and %s is used, the limit is %d", charged, got, limit)
	}
}

// TestStoreFails: without a store nothing is allowed.
func TestStoreFails(t *testing.T) {
	objects := newStored(newQuota("q", amount("count/configmaps", "5")))
	objects.fail = errors.New("no store")
	err := New(objects, nil, Settings{}, nil, slog.New(slog.DiscardHandler)).Validate(t.Context(), write(admission.Create, "configmaps", &corev1.ConfigMap{}, nil))
	if err == nil || !strings.Contains(err.Error(), "no store") {
		t.Errorf("the error is %v", err)
	}
}

// TestClaimsAreCountedWithoutDevices: without devices a quota limits the number of claims, and
// nothing that they ask for.
func TestClaimsAreCountedWithoutDevices(t *testing.T) {
	claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "d"}, Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
		Requests: []resourcev1.DeviceRequest{{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 3}}}}}}
	for _, c := range []struct {
		name, limit, wrong string
	}{
		{"gpu.deviceclass.resource.k8s.io/devices", "2", ""},
		{"count/resourceclaims.resource.k8s.io", "1", ""},
		{"count/resourceclaims.resource.k8s.io", "0", "requested: count/resourceclaims.resource.k8s.io=1"},
	} {
		p := New(newStored(newQuota("q", amount(c.name, c.limit))), nil, Settings{NoDevices: true}, nil, slog.New(slog.DiscardHandler))
		err := p.Validate(t.Context(), write(admission.Create, "resourceclaims.resource.k8s.io", claim, nil))
		if c.wrong == "" && err != nil || c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)) {
			t.Errorf("%s %s: got %v, want %q", c.name, c.limit, err, c.wrong)
		}
	}
}
