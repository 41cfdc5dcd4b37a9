package quota

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/request"
)

// Evaluator computes the usage of the objects of a resource.
type Evaluator struct {
	// handles reports whether a kind of write can change usage, concerns whether a
	// write does; nil concerns is always.
	handles  func(t admission.Target) bool
	concerns func(a *admission.Attributes) bool
	// counts reports whether a resource name of a quota is about such objects.
	counts func(name corev1.ResourceName) bool
	// scope reports whether an object is in a scope; nil is in none.
	scope func(scope corev1.ScopedResourceSelectorRequirement, obj any) (bool, error)
	// requires returns an error if an object lacks requests or limits for limited names.
	requires func(limited []corev1.ResourceName, obj any) error
	usage    func(obj any) corev1.ResourceList
}

// Usage returns the usage of an object, by the resource names of quotas.
func (e *Evaluator) Usage(obj any) corev1.ResourceList { return e.usage(obj) }

// Counted returns the names in a list that are about such objects, sorted.
func (e *Evaluator) Counted(list corev1.ResourceList) []corev1.ResourceName {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(list)), func(name corev1.ResourceName) bool { return !e.counts(name) })
}

// Matches reports whether a quota applies to an object: it limits something that such
// objects use, and the object is in all of its scopes.
func (e *Evaluator) Matches(q *corev1.ResourceQuota, obj any) (bool, error) {
	if len(e.Counted(q.Status.Hard)) == 0 {
		return false, nil
	}
	for _, s := range Scopes(q) {
		in, err := e.inScope(s, obj)
		if err != nil || !in {
			return false, err
		}
	}
	return true, nil
}

func (e *Evaluator) inScope(s corev1.ScopedResourceSelectorRequirement, obj any) (bool, error) {
	if e.scope == nil {
		return false, nil
	}
	return e.scope(s, obj)
}

// Scopes returns spec.scopes and spec.scopeSelector of a quota.
func Scopes(q *corev1.ResourceQuota) []corev1.ScopedResourceSelectorRequirement {
	var scopes []corev1.ScopedResourceSelectorRequirement
	for _, s := range q.Spec.Scopes {
		scopes = append(scopes, corev1.ScopedResourceSelectorRequirement{ScopeName: s, Operator: corev1.ScopeSelectorOpExists})
	}
	if q.Spec.ScopeSelector != nil {
		scopes = append(scopes, q.Spec.ScopeSelector.MatchExpressions...)
	}
	return scopes
}

// selects reports whether a scope selector matches a value, "" for none.
func selects(scope corev1.ScopedResourceSelectorRequirement, value string) (bool, error) {
	ops := map[corev1.ScopeSelectorOperator]selection.Operator{
		corev1.ScopeSelectorOpIn: selection.In, corev1.ScopeSelectorOpNotIn: selection.NotIn,
		corev1.ScopeSelectorOpExists: selection.Exists, corev1.ScopeSelectorOpDoesNotExist: selection.DoesNotExist,
	}
	op, ok := ops[scope.Operator]
	if !ok {
		return false, fmt.Errorf("failed to parse and convert selector: %q is not a valid scope selector operator", scope.Operator)
	}
	r, err := labels.NewRequirement(string(scope.ScopeName), op, scope.Values)
	if err != nil {
		return false, fmt.Errorf("failed to parse and convert selector: %w", err)
	}
	set := labels.Set{}
	if value != "" {
		set[string(scope.ScopeName)] = value
	}
	return r.Matches(set), nil
}

// receivedClock returns the clock of deletionTimestamps: the time at which the request was
// received.
func receivedClock(ctx context.Context) func() time.Time {
	return func() time.Time { return request.From(ctx).Received }
}

// Settings are how usage is computed. The zero value is how a server does it by default.
type Settings struct {
	// NoDevices counts ResourceClaims like objects of any other kind: a quota limits their
	// number, not the devices that they ask for.
	NoDevices bool
}

// For returns the Evaluator of a resource; nil for resources that are never limited.
func (s Settings) For(ctx context.Context, objects admission.Objects, group, name string) *Evaluator {
	switch group + "/" + name {
	case "/bindings", "/componentstatuses", "/events", "events.k8s.io/events", "/namespaces",
		"authentication.k8s.io/tokenreviews", "authentication.k8s.io/selfsubjectreviews",
		"authorization.k8s.io/subjectaccessreviews", "authorization.k8s.io/selfsubjectaccessreviews",
		"authorization.k8s.io/localsubjectaccessreviews", "authorization.k8s.io/selfsubjectrulesreviews":
		return nil
	case "/pods":
		return pods(receivedClock(ctx))
	case "/services":
		return services()
	case "/persistentvolumeclaims":
		return claims()
	case "resource.k8s.io/resourceclaims":
		if !s.NoDevices {
			return devices(ctx, objects)
		}
	case "/configmaps", "/resourcequotas", "/replicationcontrollers", "/secrets":
		return count(corev1.ResourceName("count/"+name), corev1.ResourceName(name))
	}
	if group != "" {
		name += "." + group
	}
	return count(corev1.ResourceName("count/" + name))
}

func onWrites(t admission.Target) bool {
	return t.Subresource == "" && (t.Operation == admission.Create || t.Operation == admission.Update)
}

// count counts objects, under one or two resource names.
func count(names ...corev1.ResourceName) *Evaluator {
	return &Evaluator{
		handles: func(t admission.Target) bool { return t.Subresource == "" && t.Operation == admission.Create },
		counts:  func(name corev1.ResourceName) bool { return slices.Contains(names, name) },
		usage: func(any) corev1.ResourceList {
			used := corev1.ResourceList{}
			for _, name := range names {
				used[name] = one()
			}
			return used
		},
	}
}

// services counts services, node ports and load balancers.
func services() *Evaluator {
	counted := []corev1.ResourceName{"count/services", corev1.ResourceServices, corev1.ResourceServicesNodePorts, corev1.ResourceServicesLoadBalancers}
	return &Evaluator{
		handles: onWrites,
		counts:  func(name corev1.ResourceName) bool { return slices.Contains(counted, name) },
		usage: func(obj any) corev1.ResourceList {
			service := obj.(*corev1.Service)
			ports, balancers := 0, 0
			switch service.Spec.Type {
			case corev1.ServiceTypeNodePort:
				ports = len(service.Spec.Ports)
			case corev1.ServiceTypeLoadBalancer:
				balancers = 1
				all := service.Spec.AllocateLoadBalancerNodePorts == nil || *service.Spec.AllocateLoadBalancerNodePorts
				for i := range service.Spec.Ports {
					if all || service.Spec.Ports[i].NodePort != 0 {
						ports++
					}
				}
			}
			return corev1.ResourceList{
				"count/services": one(), corev1.ResourceServices: one(),
				corev1.ResourceServicesNodePorts:     *resource.NewQuantity(int64(ports), resource.DecimalSI),
				corev1.ResourceServicesLoadBalancers: *resource.NewQuantity(int64(balancers), resource.DecimalSI),
			}
		},
	}
}

// ofClass separates the storage class from the resource name of a quota.
const ofClass = ".storageclass.storage.k8s.io/"

// claims computes the usage of PersistentVolumeClaims.
func claims() *Evaluator {
	return &Evaluator{
		handles: func(t admission.Target) bool {
			return onWrites(t) || t.Subresource == "status" && t.Operation == admission.Update
		},
		counts: func(name corev1.ResourceName) bool {
			return name == "count/persistentvolumeclaims" || name == corev1.ResourcePersistentVolumeClaims || name == corev1.ResourceRequestsStorage ||
				strings.HasSuffix(string(name), ofClass+string(corev1.ResourcePersistentVolumeClaims)) ||
				strings.HasSuffix(string(name), ofClass+string(corev1.ResourceRequestsStorage))
		},
		scope: claimInScope,
		usage: func(obj any) corev1.ResourceList {
			claim := obj.(*corev1.PersistentVolumeClaim)
			used := corev1.ResourceList{"count/persistentvolumeclaims": one(), corev1.ResourcePersistentVolumeClaims: one()}
			class, ok := claim.Annotations[corev1.BetaStorageClassAnnotation]
			if !ok && claim.Spec.StorageClassName != nil {
				class = *claim.Spec.StorageClassName
			}
			if class != "" {
				used[corev1.ResourceName(class+ofClass)+corev1.ResourcePersistentVolumeClaims] = one()
			}
			size, ok := claim.Spec.Resources.Requests[corev1.ResourceStorage]
			if !ok {
				return used
			}
			size = wholeBytes(size)
			if allocated, ok := claim.Status.AllocatedResources[corev1.ResourceStorage]; ok && allocated.Cmp(size) > 0 {
				size = wholeBytes(allocated)
			}
			used[corev1.ResourceRequestsStorage] = size
			if class != "" {
				used[corev1.ResourceName(class+ofClass)+corev1.ResourceRequestsStorage] = size
			}
			return used
		},
	}
}

// wholeBytes rounds a quantity up to whole bytes.
func wholeBytes(q resource.Quantity) resource.Quantity {
	rounded := q.DeepCopy()
	if !rounded.RoundUp(0) {
		return rounded
	}
	return q
}

// claimInScope matches the VolumeAttributesClasses of a claim, current and target.
func claimInScope(scope corev1.ScopedResourceSelectorRequirement, obj any) (bool, error) {
	if scope.ScopeName != corev1.ResourceQuotaScopeVolumeAttributesClass {
		return false, nil
	}
	claim := obj.(*corev1.PersistentVolumeClaim)
	var classes []string
	for _, name := range []*string{claim.Spec.VolumeAttributesClassName, claim.Status.CurrentVolumeAttributesClassName} {
		if name != nil && *name != "" {
			classes = append(classes, *name)
		}
	}
	if m := claim.Status.ModifyVolumeStatus; m != nil && m.TargetVolumeAttributesClassName != "" {
		classes = append(classes, m.TargetVolumeAttributesClassName)
	}
	if scope.Operator == corev1.ScopeSelectorOpExists {
		return len(classes) > 0, nil
	}
	if len(classes) == 0 {
		classes = []string{""}
	}
	for _, class := range classes {
		if in, err := selects(scope, class); in || err != nil {
			return in, err
		}
	}
	return false, nil
}

// devices computes the usage of ResourceClaims. A claim may have been made for extended
// resources of a pod, which were charged with the pod.
func devices(ctx context.Context, objects admission.Objects) *Evaluator {
	d := &deviceClaims{ctx: ctx, objects: objects}
	return &Evaluator{handles: onWrites, counts: d.counts, usage: d.usage}
}

type deviceClaims struct {
	ctx     context.Context
	objects admission.Objects
	classes map[string]string // DeviceClass → extended resource; read on first use
}

// resourceOf returns the extended resource of a DeviceClass.
func (d *deviceClaims) resourceOf(class string) string {
	if d.classes == nil {
		d.classes = map[string]string{}
		list, err := d.objects.List(d.ctx, "resource.k8s.io", "deviceclasses", "")
		if err != nil && !errors.Is(err, context.Canceled) {
			return ""
		}
		for _, obj := range list {
			if c, ok := obj.(*resourcev1.DeviceClass); ok && c.Spec.ExtendedResourceName != nil {
				d.classes[c.Name] = *c.Spec.ExtendedResourceName
			}
		}
	}
	return d.classes[class]
}

func (d *deviceClaims) counts(name corev1.ResourceName) bool {
	if name == "count/resourceclaims.resource.k8s.io" || strings.HasSuffix(string(name), corev1.ResourceClaimsPerClass) {
		return true
	}
	if class, ok := strings.CutPrefix(string(name), corev1.ResourceImplicitExtendedClaimsPerClass); ok && d.resourceOf(class) != "" {
		return true
	}
	if !isExtendedQuota(name) {
		return false
	}
	d.resourceOf("")
	return slices.Contains(slices.Collect(maps.Values(d.classes)), strings.TrimPrefix(string(name), corev1.DefaultResourceRequestsPrefix))
}

func (d *deviceClaims) usage(obj any) corev1.ResourceList {
	claim := obj.(*resourcev1.ResourceClaim)
	used := corev1.ResourceList{"count/resourceclaims.resource.k8s.io": one()}
	amount := func(mode resourcev1.DeviceAllocationMode, count int64) resource.Quantity {
		switch mode {
		case resourcev1.DeviceAllocationModeExactCount:
		case resourcev1.DeviceAllocationModeAll:
			count = resourcev1.AllocationResultsMaxSize
		default:
			count = 0
		}
		return *resource.NewQuantity(count, resource.DecimalSI)
	}
	name := func(class string) corev1.ResourceName {
		return corev1.ResourceName(class + corev1.ResourceClaimsPerClass)
	}
	for i := range claim.Spec.Devices.Requests {
		r := &claim.Spec.Devices.Requests[i]
		most := corev1.ResourceList{}
		for _, sub := range r.FirstAvailable {
			raise(most, corev1.ResourceList{name(sub.DeviceClassName): amount(sub.AllocationMode, sub.Count)})
		}
		if len(r.FirstAvailable) == 0 && r.Exactly != nil {
			most[name(r.Exactly.DeviceClassName)] = amount(r.Exactly.AllocationMode, r.Exactly.Count)
		}
		addTo(used, most)
	}
	extended := corev1.ResourceList{}
	for name, quantity := range used {
		class, ok := strings.CutSuffix(string(name), corev1.ResourceClaimsPerClass)
		if !ok || class == "" {
			continue
		}
		extended[corev1.ResourceName(corev1.ResourceImplicitExtendedClaimsPerClass+class)] = quantity
		if name := d.resourceOf(class); name != "" {
			extended[corev1.ResourceName(corev1.DefaultResourceRequestsPrefix+name)] = quantity
		}
	}
	charged := d.charged(claim)
	for name, quantity := range extended {
		quantity = quantity.DeepCopy()
		if q, ok := charged[name]; ok {
			quantity.Sub(q)
		}
		if quantity.Sign() > 0 {
			used[name] = quantity
		}
	}
	return used
}

// charged returns the extended resources that were charged with the pod of an automatic
// claim; they count for the first such claim of the pod.
func (d *deviceClaims) charged(claim *resourcev1.ResourceClaim) corev1.ResourceList {
	owner := metav1.GetControllerOfNoCopy(claim)
	if claim.Annotations[resourcev1.ExtendedResourceClaimAnnotation] != "true" || owner == nil || owner.Kind != "Pod" || owner.APIVersion != "v1" {
		return nil
	}
	obj, err := d.objects.Get(d.ctx, "", "pods", claim.Namespace, owner.Name)
	pod, ok := obj.(*corev1.Pod)
	if err != nil || !ok || pod.UID != owner.UID {
		return nil
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil && s.ResourceClaimName != claim.Name {
		return nil
	} else if s == nil {
		others, err := d.objects.List(d.ctx, "resource.k8s.io", "resourceclaims", claim.Namespace)
		if err != nil {
			return nil
		}
		for _, obj := range others {
			other := metav1.GetControllerOfNoCopy(obj)
			if other == nil || other.UID != pod.UID || obj.GetAnnotations()[resourcev1.ExtendedResourceClaimAnnotation] != "true" {
				continue
			}
			c := obj.GetCreationTimestamp().Compare(claim.CreationTimestamp.Time)
			if c < 0 || c == 0 && obj.GetName() < claim.Name {
				return nil
			}
		}
	}
	return pods(receivedClock(d.ctx)).usage(pod)
}
