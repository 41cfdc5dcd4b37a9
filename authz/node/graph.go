package node

import (
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/apikeel/kelson/builtin/podspec"
	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/resource"
)

// This file is the graph of objects that belong to nodes.

// kind is the resource of a vertex.
type kind uint8

const (
	secret kind = iota
	configMap
	claim
	volume
	resourceClaim
	serviceAccount
	pod
	attachment
	slice
	certificateRequest
)

// vertex identifies an API object.
type vertex struct {
	kind            kind
	namespace, name string
}

// graph records which objects each node may access.
//
// Pods, volume attachments, resource slices and pod certificate requests are each on
// one node (anchors), and every object that they reference is counted for that node. So
// a decision is usually one map lookup, however many pods share an object. A persistent
// volume is not on a node: for it and for its secrets, the claim that it is bound to is
// looked up instead.
type graph struct {
	metrics measure.Sink // nil measures nothing

	mu sync.RWMutex
	// anchors are the objects that are on a node, by vertex.
	anchors map[vertex]anchor
	// counts is the number of anchors on a node that reference an object, or are it: by
	// object, by node.
	counts map[vertex]map[string]int
	// volumes is by name of the persistent volume; secrets has the names of the volumes
	// that need a secret.
	volumes map[string]boundVolume
	secrets map[vertex]map[string]bool
}

// anchor is an object on a node, with the vertices that it references and its own.
type anchor struct {
	node string
	refs []vertex
}

// boundVolume is a persistent volume that is bound to a claim.
type boundVolume struct {
	claim   vertex
	secrets []vertex
}

func (g *graph) clear() {
	g.anchors, g.counts = map[vertex]anchor{}, map[vertex]map[string]int{}
	g.volumes, g.secrets = map[string]boundVolume{}, map[vertex]map[string]bool{}
}

// reaches reports whether a node may access an object.
func (g *graph) reaches(object vertex, node string) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if g.counts[object][node] > 0 {
		return true
	}
	switch object.kind {
	case volume:
		v, ok := g.volumes[object.name]
		return ok && object.namespace == "" && g.counts[v.claim][node] > 0
	case secret:
		for name := range g.secrets[object] {
			if g.counts[g.volumes[name].claim][node] > 0 {
				return true
			}
		}
	}
	return false
}

// apply updates the graph with changes; with reset it starts empty.
func (g *graph) apply(reset bool, changes []resource.Change) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if reset {
		g.clear()
	}
	for i := range changes {
		began := time.Now()
		what := g.change(changes[i].Object, changes[i].Deleted)
		operation := "Add" + what
		if changes[i].Deleted {
			operation = "Delete" + what
		}
		if what != "" {
			measure.Since(g.metrics, began, measure.NodeGraphDuration, operation)
		}
	}
}

// change applies one change, and returns the name of its kind for metrics.
func (g *graph) change(object any, deleted bool) (what string) {
	switch obj := object.(type) {
	case *corev1.Pod:
		g.setAnchor(vertex{pod, obj.Namespace, obj.Name}, obj.Spec.NodeName, deleted, func() []vertex { return podRefs(obj) })
		return "Pod"
	case *corev1.PersistentVolume:
		g.setVolume(obj, deleted)
		return "PV"
	case *storagev1.VolumeAttachment:
		g.setAnchor(vertex{attachment, "", obj.Name}, obj.Spec.NodeName, deleted, nil)
		return "VolumeAttachment"
	case *resourcev1.ResourceSlice:
		node := ""
		if obj.Spec.NodeName != nil {
			node = *obj.Spec.NodeName
		}
		g.setAnchor(vertex{slice, "", obj.Name}, node, deleted, nil)
		return "ResourceSlice"
	case *certificatesv1beta1.PodCertificateRequest: // the version that is stored
		g.setAnchor(vertex{certificateRequest, obj.Namespace, obj.Name}, string(obj.Spec.NodeName), deleted, nil)
		return "PodCertificateRequest"
	case *certificatesv1.PodCertificateRequest:
		g.setAnchor(vertex{certificateRequest, obj.Namespace, obj.Name}, string(obj.Spec.NodeName), deleted, nil)
		return "PodCertificateRequest"
	}
	return ""
}

// setAnchor replaces the entry of an object that may be on a node.
func (g *graph) setAnchor(v vertex, node string, deleted bool, refs func() []vertex) {
	if old, ok := g.anchors[v]; ok {
		for _, ref := range old.refs {
			if g.counts[ref][old.node]--; g.counts[ref][old.node] == 0 {
				delete(g.counts[ref], old.node)
			}
			if len(g.counts[ref]) == 0 {
				delete(g.counts, ref)
			}
		}
		delete(g.anchors, v)
	}
	if deleted || node == "" {
		return
	}
	a := anchor{node: node, refs: []vertex{v}}
	if refs != nil {
		a.refs = append(a.refs, refs()...)
	}
	g.anchors[v] = a
	for _, ref := range a.refs {
		if g.counts[ref] == nil {
			g.counts[ref] = map[string]int{}
		}
		g.counts[ref][node]++
	}
}

func (g *graph) setVolume(pv *corev1.PersistentVolume, deleted bool) {
	for _, s := range g.volumes[pv.Name].secrets {
		if delete(g.secrets[s], pv.Name); len(g.secrets[s]) == 0 {
			delete(g.secrets, s)
		}
	}
	delete(g.volumes, pv.Name)
	ref := pv.Spec.ClaimRef
	if deleted || ref == nil {
		return
	}
	v := boundVolume{claim: vertex{claim, ref.Namespace, ref.Name}, secrets: volumeSecrets(pv)}
	g.volumes[pv.Name] = v
	for _, s := range v.secrets {
		if g.secrets[s] == nil {
			g.secrets[s] = map[string]bool{}
		}
		g.secrets[s][pv.Name] = true
	}
}

// podRefs returns the objects that the kubelet needs for a pod.
func podRefs(p *corev1.Pod) (refs []vertex) {
	// Mirror pods are created by the node itself, so they must not grant it access to
	// anything.
	if _, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return nil
	}
	add := func(k kind, name string) {
		if name != "" {
			refs = append(refs, vertex{k, p.Namespace, name})
		}
	}
	add(serviceAccount, p.Spec.ServiceAccountName)
	for _, s := range p.Spec.ImagePullSecrets {
		add(secret, s.Name)
	}
	for c := range podspec.Containers(&p.Spec) {
		for _, from := range c.EnvFrom {
			if from.SecretRef != nil {
				add(secret, from.SecretRef.Name)
			}
			if from.ConfigMapRef != nil {
				add(configMap, from.ConfigMapRef.Name)
			}
		}
		for _, env := range c.Env {
			if env.ValueFrom == nil {
				continue
			}
			if ref := env.ValueFrom.SecretKeyRef; ref != nil {
				add(secret, ref.Name)
			}
			if ref := env.ValueFrom.ConfigMapKeyRef; ref != nil {
				add(configMap, ref.Name)
			}
		}
	}
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		add(secret, volumeSecret(&v.VolumeSource))
		switch {
		case v.ConfigMap != nil:
			add(configMap, v.ConfigMap.Name)
		case v.Projected != nil:
			for _, s := range v.Projected.Sources {
				if s.Secret != nil {
					add(secret, s.Secret.Name)
				}
				if s.ConfigMap != nil {
					add(configMap, s.ConfigMap.Name)
				}
			}
		case v.PersistentVolumeClaim != nil:
			add(claim, v.PersistentVolumeClaim.ClaimName)
		case v.Ephemeral != nil:
			add(claim, p.Name+"-"+v.Name)
		}
	}
	for i := range p.Spec.ResourceClaims {
		add(resourceClaim, claimName(p, &p.Spec.ResourceClaims[i]))
	}
	if s := p.Status.ExtendedResourceClaimStatus; s != nil {
		add(resourceClaim, s.ResourceClaimName)
	}
	return refs
}

// claimName returns the name of a pod's resource claim, or "" if the claim is generated
// from a template and does not exist yet, or is not needed.
func claimName(p *corev1.Pod, c *corev1.PodResourceClaim) string {
	if c.ResourceClaimName != nil {
		return *c.ResourceClaimName
	}
	if c.ResourceClaimTemplateName != nil {
		for _, s := range p.Status.ResourceClaimStatuses {
			if s.Name == c.Name && s.ResourceClaimName != nil {
				return *s.ResourceClaimName
			}
		}
	}
	return ""
}

// volumeSecret returns the name of the secret that a pod volume needs, or "".
func volumeSecret(v *corev1.VolumeSource) string {
	var ref *corev1.LocalObjectReference
	switch {
	case v.Secret != nil:
		return v.Secret.SecretName
	case v.AzureFile != nil:
		return v.AzureFile.SecretName
	case v.CephFS != nil:
		ref = v.CephFS.SecretRef
	case v.Cinder != nil:
		ref = v.Cinder.SecretRef
	case v.FlexVolume != nil:
		ref = v.FlexVolume.SecretRef
	case v.RBD != nil:
		ref = v.RBD.SecretRef
	case v.ScaleIO != nil:
		ref = v.ScaleIO.SecretRef
	case v.ISCSI != nil:
		ref = v.ISCSI.SecretRef
	case v.StorageOS != nil:
		ref = v.StorageOS.SecretRef
	case v.CSI != nil:
		ref = v.CSI.NodePublishSecretRef
	}
	if ref == nil {
		return ""
	}
	return ref.Name
}

// volumeSecrets returns the secrets of a persistent volume that the kubelet needs,
// without those that only controllers use.
func volumeSecrets(pv *corev1.PersistentVolume) (secrets []vertex) {
	home := pv.Spec.ClaimRef.Namespace
	add := func(namespace, name string) {
		if name != "" {
			secrets = append(secrets, vertex{secret, namespace, name})
		}
	}
	// ref adds a secret whose namespace defaults to that of the claim; exact one whose
	// namespace must be set.
	ref := func(r *corev1.SecretReference) {
		if r == nil {
			return
		}
		if r.Namespace != "" {
			add(r.Namespace, r.Name)
		} else {
			add(home, r.Name)
		}
	}
	exact := func(r *corev1.SecretReference) {
		if r != nil {
			add(r.Namespace, r.Name)
		}
	}
	switch source := &pv.Spec.PersistentVolumeSource; {
	case source.AzureFile != nil:
		namespace := home
		if n := source.AzureFile.SecretNamespace; n != nil && *n != "" {
			namespace = *n
		}
		add(namespace, source.AzureFile.SecretName)
	case source.CephFS != nil:
		ref(source.CephFS.SecretRef)
	case source.Cinder != nil:
		exact(source.Cinder.SecretRef)
	case source.FlexVolume != nil:
		ref(source.FlexVolume.SecretRef)
	case source.RBD != nil:
		ref(source.RBD.SecretRef)
	case source.ScaleIO != nil:
		ref(source.ScaleIO.SecretRef)
	case source.ISCSI != nil:
		ref(source.ISCSI.SecretRef)
	case source.StorageOS != nil:
		if r := source.StorageOS.SecretRef; r != nil {
			add(r.Namespace, r.Name)
		}
	case source.CSI != nil:
		exact(source.CSI.NodePublishSecretRef)
		exact(source.CSI.NodeStageSecretRef)
		exact(source.CSI.NodeExpandSecretRef)
	}
	return secrets
}
