package plugin

//lint:file-ignore SA1019 nodes may still have a configSource

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/diff"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/request"
)

const (
	nodePrefix = "system:node:"
	nodeGroup  = "system:nodes"
)

// nodeRestriction is NodeRestriction: kubelets may change only objects of their own node.
type nodeRestriction struct {
	base
	objects   admission.Objects
	authorize Authorize
	// anyRequest allows kubelets to request certificates for other nodes.
	anyRequest bool
	// anyAudience allows kubelets to request tokens for audiences that no pod uses.
	anyAudience bool
	// storageHealth allows kubelets to report the health of storage in their CSINode.
	storageHealth bool
}

func newNodeRestriction(b *builder) admission.Plugin {
	return &nodeRestriction{base{"NodeRestriction", func(t admission.Target) bool {
		if t.Operation == admission.Connect {
			return false
		}
		switch t.Group {
		case "":
			return slices.Contains([]string{"pods", "nodes", "persistentvolumeclaims", "serviceaccounts"}, t.Resource)
		case certificatesGroup:
			return t.Resource == "podcertificaterequests" || t.Resource == signingRequests
		case "coordination.k8s.io":
			return t.Resource == "leases"
		case storageGroup:
			return t.Resource == "csinodes"
		case "resource.k8s.io":
			return t.Resource == "resourceslices"
		}
		return false
	}}, b.Objects, b.Authorize, b.Gates != nil && b.Gates("AllowInsecureKubeletCertificateSigningRequests"),
		b.Gates != nil && !b.Gates("ServiceAccountNodeAudienceRestriction"), b.Gates != nil && b.Gates("CSIVolumeHealth")}
}

// nodeOf returns the name of the node if the user is a kubelet.
func nodeOf(user *request.User) (name string, isNode bool) {
	name, isNode = strings.CutPrefix(user.Name, nodePrefix)
	return name, isNode && slices.Contains(user.Groups, nodeGroup)
}

// Admit implements admission.Mutator. It changes nothing; it checks before other plugins.
func (p *nodeRestriction) Admit(ctx context.Context, a *admission.Attributes) error {
	node, isNode := nodeOf(&a.Request.User)
	if !isNode {
		return nil
	}
	if node == "" {
		return a.Forbidden(fmt.Errorf("could not determine node from user %q", a.Request.User.Name))
	}
	switch t := a.Target(); t.Resource {
	case "pods":
		switch t.Subresource {
		case "":
			return p.pod(ctx, node, a)
		case "status":
			return podStatus(node, a)
		case "eviction":
			return p.eviction(ctx, node, a)
		}
		return a.Forbidden(fmt.Errorf("unexpected pod subresource %q, only 'status' and 'eviction' are allowed", t.Subresource))
	case "nodes":
		return ownNode(node, a)
	case "persistentvolumeclaims":
		if t.Subresource != "status" {
			return a.Forbidden(errors.New("may only update PVC status"))
		}
		return claimStatus(node, a)
	case "serviceaccounts":
		return p.token(ctx, node, a)
	case "podcertificaterequests":
		return p.certificate(ctx, node, a)
	case "leases":
		if a.Namespace != corev1.NamespaceNodeLease {
			return a.Forbidden(fmt.Errorf("can only access leases in the %q system namespace", corev1.NamespaceNodeLease))
		}
		if a.Name != node {
			return a.Forbidden(errors.New("can only access node lease with the same name as the requesting node"))
		}
	case "csinodes":
		if a.Name != node {
			return a.Forbidden(errors.New("can only access CSINode with the same name as the requesting node"))
		}
		if t.Subresource == "status" {
			return p.csiNodeStatus(node, a)
		}
	case "resourceslices":
		return ownSlice(node, a)
	case signingRequests:
		if !p.anyRequest {
			return nodeRequest(node, a)
		}
	}
	return nil
}

func unexpected(a *admission.Attributes, obj any) error {
	return a.Forbidden(fmt.Errorf("unexpected type %T", obj))
}

// existing reads the pod that a request names.
func (p *nodeRestriction) existing(ctx context.Context, a *admission.Attributes, name string) (*corev1.Pod, error) {
	pod, err := get[*corev1.Pod](ctx, p.objects, "", "pods", a.Namespace, name)
	switch {
	case apierrors.IsNotFound(err):
		err = apierrors.NewNotFound(schema.GroupResource{Resource: "pod"}, name) // with the resource name that kube-apiserver has here
	case err != nil:
		err = a.Forbidden(err)
	}
	return pod, err
}

func (p *nodeRestriction) pod(ctx context.Context, node string, a *admission.Attributes) error {
	switch a.Operation {
	case admission.Create:
		pod, ok := a.Object.(*corev1.Pod)
		if !ok {
			return unexpected(a, a.Object)
		}
		return p.mirrorPod(ctx, node, a, pod)
	case admission.Delete:
		pod, ok := a.Old.(*corev1.Pod)
		if !ok {
			return unexpected(a, a.Old)
		}
		if pod.Spec.NodeName != node {
			return a.Forbidden(fmt.Errorf("node %q can only delete pods with spec.nodeName set to itself", node))
		}
		return nil
	}
	return a.Forbidden(fmt.Errorf("unexpected operation %q, node %q can only create and delete mirror pods", a.Operation, node))
}

// mirrorPod checks a mirror pod that a kubelet creates for a static pod.
func (p *nodeRestriction) mirrorPod(ctx context.Context, node string, a *admission.Attributes, pod *corev1.Pod) error {
	refuse := func(format string, args ...any) error { return a.Forbidden(fmt.Errorf(format, args...)) }
	owners := pod.OwnerReferences
	switch {
	case !isMirror(pod):
		return refuse("pod does not have %q annotation, node %q can only create mirror pods", corev1.MirrorPodAnnotationKey, node)
	case pod.Spec.NodeName != node:
		return refuse("node %q can only create pods with spec.nodeName set to itself", node)
	case len(owners) > 1:
		return refuse("node %q can only create pods with a single owner reference set to itself", node)
	case len(owners) == 0 || owners[0].APIVersion != "v1" || owners[0].Kind != "Node" || owners[0].Name != node:
		return refuse("node %q can only create pods with an owner reference set to itself", node)
	case owners[0].Controller == nil || !*owners[0].Controller:
		return refuse("node %q can only create pods with a controller owner reference set to itself", node)
	case owners[0].BlockOwnerDeletion != nil && *owners[0].BlockOwnerDeletion:
		return refuse("node %q must not set blockOwnerDeletion on an owner reference", node)
	}
	n, err := get[*corev1.Node](ctx, p.objects, "", "nodes", "", node)
	switch {
	case apierrors.IsNotFound(err):
		return err
	case err != nil:
		return refuse("error looking up node %s to verify uid: %w", node, err)
	case owners[0].UID != n.UID:
		return refuse("node %s UID mismatch: expected %s got %s", node, owners[0].UID, n.UID)
	}
	what, err := references(&pod.Spec)
	if err != nil {
		return refuse("error checking mirror pod for API references: %w", err)
	}
	if what != "" {
		return refuse("node %q can not create pods that reference %s", node, what)
	}
	return nil
}

// podStatus checks that a kubelet changes only the status of its pods.
func podStatus(node string, a *admission.Attributes) error {
	if a.Operation != admission.Update {
		return a.Forbidden(fmt.Errorf("unexpected operation %q", a.Operation))
	}
	old, was := a.Old.(*corev1.Pod)
	pod, ok := a.Object.(*corev1.Pod)
	equal := func(a, b any) bool { return equality.Semantic.DeepEqual(a, b) }
	switch {
	case !was || !ok:
		return unexpected(a, a.Object)
	case old.Spec.NodeName != node:
		return a.Forbidden(fmt.Errorf("node %q can only update pod status for pods with spec.nodeName set to itself", node))
	case !maps.Equal(old.Labels, pod.Labels):
		return a.Forbidden(fmt.Errorf("node %q cannot update labels through pod status", node))
	case !equal(old.Status.ResourceClaimStatuses, pod.Status.ResourceClaimStatuses):
		return a.Forbidden(fmt.Errorf("node %q cannot update resource claim statues", node))
	case !equal(old.Status.ExtendedResourceClaimStatus, pod.Status.ExtendedResourceClaimStatus):
		return a.Forbidden(fmt.Errorf("node %q cannot update extended resource claim status", node))
	case !equal(old.Status.NodeAllocatableResourceClaimStatuses, pod.Status.NodeAllocatableResourceClaimStatuses):
		return a.Forbidden(fmt.Errorf("node %q cannot update node allocatable resource claim statuses", node))
	}
	return nil
}

func (p *nodeRestriction) eviction(ctx context.Context, node string, a *admission.Attributes) error {
	if a.Operation != admission.Create {
		return a.Forbidden(fmt.Errorf("unexpected operation %s", a.Operation))
	}
	eviction, ok := a.Object.(*policyv1.Eviction)
	if !ok {
		return unexpected(a, a.Object)
	}
	name := a.Name
	if name == "" {
		if name = eviction.Name; name == "" {
			return a.Forbidden(errors.New("could not determine pod from request data"))
		}
	}
	pod, err := p.existing(ctx, a, name)
	if err != nil {
		return err
	}
	if pod.Spec.NodeName != node {
		return a.Forbidden(fmt.Errorf("node %s can only evict pods with spec.nodeName set to itself", node))
	}
	return nil
}

// claimStatus checks that a kubelet changes only the capacity in the status of a claim.
func claimStatus(node string, a *admission.Attributes) error {
	if a.Operation != admission.Update {
		return a.Forbidden(fmt.Errorf("unexpected operation %q", a.Operation))
	}
	old, was := a.Old.(*corev1.PersistentVolumeClaim)
	claim, ok := a.Object.(*corev1.PersistentVolumeClaim)
	if !was || !ok {
		return unexpected(a, a.Object)
	}
	old, claim = old.DeepCopy(), claim.DeepCopy()
	for _, c := range []*corev1.PersistentVolumeClaim{old, claim} {
		c.ResourceVersion, c.ManagedFields = "", nil
		s := &c.Status
		s.Capacity, s.Conditions, s.AllocatedResourceStatuses, s.AllocatedResources = nil, nil, nil, nil
	}
	if !equality.Semantic.DeepEqual(old, claim) {
		return a.Forbidden(fmt.Errorf("node %q is not allowed to update fields other than status.quantity and status.conditions: %v", node, diff.Diff(old, claim)))
	}
	return nil
}

// csiNodeStatus checks that a kubelet changes nothing but the status of its CSINode.
func (p *nodeRestriction) csiNodeStatus(node string, a *admission.Attributes) error {
	if !p.storageHealth {
		return a.Forbidden(errors.New("CSIVolumeHealth feature gate is disabled"))
	}
	if a.Operation != admission.Update {
		return a.Forbidden(fmt.Errorf("unexpected operation %q", a.Operation))
	}
	old, was := a.Old.(*storagev1.CSINode)
	if !was {
		return unexpected(a, a.Old)
	}
	n, ok := a.Object.(*storagev1.CSINode)
	if !ok {
		return unexpected(a, a.Object)
	}
	if !equality.Semantic.DeepEqual(old.Spec, n.Spec) {
		return a.Forbidden(fmt.Errorf("node %q is not allowed to modify CSINode spec via status", node))
	}
	return nil
}

// ownNode checks a write of a kubelet to its node: taints, some labels and owner references
// must not change.
func ownNode(name string, a *admission.Attributes) error {
	if a.Name != name {
		return a.Forbidden(fmt.Errorf("node %q is not allowed to modify node %q", name, a.Name))
	}
	node, ok := a.Object.(*corev1.Node)
	if !ok {
		return nil // delete
	}
	old, was := a.Old.(*corev1.Node)
	if !was {
		if node.Spec.ConfigSource != nil {
			return a.Forbidden(fmt.Errorf("node %q is not allowed to create pods with a non-nil configSource", name))
		}
		if labels := forbiddenLabels(node.Labels, nil); len(labels) > 0 {
			return a.Forbidden(fmt.Errorf("node %q is not allowed to set the following labels: %s", name, strings.Join(labels, ", ")))
		}
		return nil
	}
	equal := func(a, b any) bool { return equality.Semantic.DeepEqual(a, b) }
	switch {
	case node.Spec.ConfigSource != nil && !equal(node.Spec.ConfigSource, old.Spec.ConfigSource):
		return a.Forbidden(fmt.Errorf("node %q is not allowed to update configSource to a new non-nil configSource", name))
	case !equal(node.Spec.Taints, old.Spec.Taints):
		return a.Forbidden(fmt.Errorf("node %q is not allowed to modify taints", name))
	case !equal(node.OwnerReferences, old.OwnerReferences):
		return a.Forbidden(fmt.Errorf("node %q is not allowed to modify ownerReferences", name))
	}
	if labels := forbiddenLabels(node.Labels, old.Labels); len(labels) > 0 {
		return a.Forbidden(fmt.Errorf("is not allowed to modify labels: %s", strings.Join(labels, ", ")))
	}
	return nil
}

// forbiddenLabels returns the changed labels that kubelets must not set, sorted.
func forbiddenLabels(now, before map[string]string) (forbidden []string) {
	for _, key := range slices.Sorted(maps.Keys(labelUnion(now, before))) {
		v, has := now[key]
		w, had := before[key]
		if has == had && v == w {
			continue
		}
		domain := ""
		if d, _, ok := strings.Cut(key, "/"); ok {
			domain = d
		}
		restricted := within(domain, corev1.LabelNamespaceNodeRestriction)
		kubernetes := within(domain, "kubernetes.io") || within(domain, "k8s.io")
		if restricted || kubernetes && !isKubeletLabel(key, domain) {
			forbidden = append(forbidden, key)
		}
	}
	return forbidden
}

func labelUnion(a, b map[string]string) map[string]string {
	all := maps.Clone(a)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, b)
	return all
}

// within reports whether a domain is of or a subdomain of it.
func within(domain, of string) bool { return domain == of || strings.HasSuffix(domain, "."+of) }

func isKubeletLabel(key, domain string) bool {
	switch key {
	case corev1.LabelHostname, corev1.LabelTopologyZone, corev1.LabelTopologyRegion,
		corev1.LabelFailureDomainBetaZone, corev1.LabelFailureDomainBetaRegion,
		corev1.LabelInstanceType, corev1.LabelInstanceTypeStable, corev1.LabelOSStable, corev1.LabelArchStable,
		"beta.kubernetes.io/os", "beta.kubernetes.io/arch":
		return true
	}
	return within(domain, corev1.LabelNamespaceSuffixKubelet) || within(domain, corev1.LabelNamespaceSuffixNode)
}

// ownSlice checks that a ResourceSlice of a kubelet is for its node.
func ownSlice(node string, a *admission.Attributes) error {
	obj, verb := a.Object, "create"
	switch a.Operation {
	case admission.Update:
		return nil
	case admission.Delete:
		obj, verb = a.Old, "delete"
	}
	slice, ok := obj.(*resourcev1.ResourceSlice)
	if !ok {
		return unexpected(a, obj)
	}
	if slice.Spec.NodeName == nil || *slice.Spec.NodeName != node {
		return a.Forbidden(fmt.Errorf("can only %s ResourceSlice with the same NodeName as the requesting node", verb))
	}
	return nil
}

// nodeRequest checks that a CertificateSigningRequest of a kubelet is for its node.
func nodeRequest(node string, a *admission.Attributes) error {
	csr, ok := a.Object.(*certificatesv1.CertificateSigningRequest)
	if a.Operation != admission.Create || !ok {
		return nil
	}
	if s := csr.Spec.SignerName; s != certificatesv1.KubeletServingSignerName && s != certificatesv1.KubeAPIServerClientKubeletSignerName {
		return nil
	}
	parsed, err := parseRequest(csr.Spec.Request)
	if err != nil {
		return a.Forbidden(fmt.Errorf("unable to parse csr: %w", err))
	}
	if parsed.Subject.CommonName != nodePrefix+node {
		return a.Forbidden(fmt.Errorf("can only create a node CSR with CN=%s%s", nodePrefix, node))
	}
	return nil
}
