package plugin

import (
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/request"
)

func TestNodeRestriction(t *testing.T) {
	kubelet := request.User{Name: "system:node:n", Groups: []string{"system:nodes"}}
	node := func(change ...func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", Labels: map[string]string{"kubernetes.io/hostname": "n"}}}
		for _, f := range change {
			f(n)
		}
		return n
	}
	label := func(key string) func(*corev1.Node) { return func(n *corev1.Node) { n.Labels[key] = "x" } }
	onNode := func(name string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.NodeName, p.UID, p.Spec.ServiceAccountName = name, "pu", "default" }
	}
	mirror := func(p *corev1.Pod) {
		p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
		p.Spec.NodeName = "n"
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n", UID: "u", Controller: new(true)}}
	}
	secretVolume := func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}}}
	}
	usesToken := func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Projected: tokenSource()}}}
	}
	claim := func(size string, volume string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: meta("c"), Spec: corev1.PersistentVolumeClaimSpec{VolumeName: volume}, Status: corev1.PersistentVolumeClaimStatus{Capacity: amount("storage", size)}}
	}
	token := func(pod string, uid string, audiences ...string) *authenticationv1.TokenRequest {
		r := &authenticationv1.TokenRequest{ObjectMeta: meta("default"), Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}
		if pod != "" {
			r.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod}
			r.Spec.BoundObjectRef.UID = types.UID(uid)
		}
		return r
	}
	lease := func(ns, name string) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	}
	slice := func(node string) *resourcev1.ResourceSlice {
		return &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: resourcev1.ResourceSliceSpec{NodeName: &node}}
	}
	csr := func(name string) *certificatesv1.CertificateSigningRequest {
		return &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: certificatesv1.KubeletServingSignerName, Request: certificateRequest(t, name, "system:nodes")}}
	}
	podCertificate := func(node string) *certificatesv1beta1.PodCertificateRequest {
		return &certificatesv1beta1.PodCertificateRequest{ObjectMeta: meta("r"), Spec: certificatesv1beta1.PodCertificateRequestSpec{
			SignerName: "a.b/c", NodeName: "n", NodeUID: types.UID(node), PodName: "here", PodUID: "pu", ServiceAccountName: "default", ServiceAccountUID: "su"}}
	}
	csi := newPod(onNode("n"), func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "d"}}}}
	})
	claims := newPod(onNode("n"), func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{}}}}}
	})
	csi.Name, claims.Name = "csi", "claims"
	here, there := newPod(onNode("n"), usesToken), newPod(onNode("m"))
	here.Name, there.Name = "here", "there"
	objects := store("nodes", node(), "pods", here, "pods", there, "pods", csi, "pods", claims,
		"serviceaccounts", account(func(a *corev1.ServiceAccount) { a.UID = "su" }))
	for _, c := range []struct {
		name  string
		write write
		err   string
	}{
		{"nameless", write{op: admission.Create, resource: "pods", obj: newPod(), user: request.User{Name: "system:node:", Groups: []string{"system:nodes"}}}, `could not determine node from user "system:node:"`},
		{"somebody else", write{op: admission.Create, resource: "pods", obj: newPod(), user: request.User{Name: "system:node:n"}}, ""},
		{"pod", write{op: admission.Create, resource: "pods", obj: newPod()}, `pod does not have "kubernetes.io/config.mirror" annotation, node "n" can only create mirror pods`},
		{"mirror pod", write{op: admission.Create, resource: "pods", obj: newPod(mirror)}, ""},
		{"mirror pod with a secret", write{op: admission.Create, resource: "pods", obj: newPod(mirror, secretVolume)}, `node "n" can not create pods that reference secrets`},
		{"mirror pod with a claim", write{op: admission.Create, resource: "pods", obj: newPod(mirror, func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "c", ResourceClaimName: new("c")}}
		})}, `node "n" can not create pods that reference resourceclaims`},
		{"mirror pod with the template of a claim", write{op: admission.Create, resource: "pods", obj: newPod(mirror, func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "c", ResourceClaimTemplateName: new("c")}}
		})}, `node "n" can not create pods that reference resourceclaims`},
		{"mirror pod of another node", write{op: admission.Create, resource: "pods", obj: newPod(mirror, func(p *corev1.Pod) { p.Spec.NodeName = "m" })}, "with spec.nodeName set to itself"},
		{"mirror pod without an owner", write{op: admission.Create, resource: "pods", obj: newPod(mirror, func(p *corev1.Pod) { p.OwnerReferences = nil })}, "with an owner reference set to itself"},
		{"mirror pod with another uid", write{op: admission.Create, resource: "pods", obj: newPod(mirror, func(p *corev1.Pod) { p.OwnerReferences[0].UID = "w" })}, "node n UID mismatch: expected w got u"},
		{"delete pod", write{op: admission.Delete, resource: "pods", old: here}, ""},
		{"delete another's pod", write{op: admission.Delete, resource: "pods", old: there}, `node "n" can only delete pods with spec.nodeName set to itself`},
		{"update pod", write{op: admission.Update, resource: "pods", obj: here, old: here}, `unexpected operation "UPDATE", node "n" can only create and delete mirror pods`},
		{"exec", write{op: admission.Create, resource: "pods/binding", obj: here}, `unexpected pod subresource "binding", only 'status' and 'eviction' are allowed`},
		{"status", write{op: admission.Update, resource: "pods/status", obj: here, old: here}, ""},
		{"status of another's", write{op: admission.Update, resource: "pods/status", obj: there, old: there}, "can only update pod status for pods with spec.nodeName set to itself"},
		{"labels by status", write{op: admission.Update, resource: "pods/status", obj: newPod(onNode("n"), func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} }), old: here}, "cannot update labels through pod status"},
		{"eviction", write{op: admission.Create, resource: "pods/eviction", obj: &policyv1.Eviction{ObjectMeta: meta("here")}}, ""},
		{"eviction of another's", write{op: admission.Create, resource: "pods/eviction", obj: &policyv1.Eviction{ObjectMeta: meta("there")}}, "node n can only evict pods with spec.nodeName set to itself"},
		{"node", write{op: admission.Create, resource: "nodes", obj: node()}, ""},
		{"another node", write{op: admission.Create, resource: "nodes", obj: node(func(n *corev1.Node) { n.Name = "m" })}, `node "n" is not allowed to modify node "m"`},
		{"label", write{op: admission.Create, resource: "nodes", obj: node(label("node-restriction.kubernetes.io/x"), label("example.com/y"), label("kubelet.kubernetes.io/z"))},
			`node "n" is not allowed to set the following labels: node-restriction.kubernetes.io/x`},
		{"change label", write{op: admission.Update, resource: "nodes", obj: node(label("kubernetes.io/role")), old: node()}, "is not allowed to modify labels: kubernetes.io/role"},
		{"taint", write{op: admission.Update, resource: "nodes/status", obj: node(func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "a"}} }), old: node()}, `node "n" is not allowed to modify taints`},
		{"claim", write{op: admission.Update, resource: "persistentvolumeclaims", obj: claim("1", "v"), old: claim("1", "v")}, "may only update PVC status"},
		{"claim status", write{op: admission.Update, resource: "persistentvolumeclaims/status", obj: claim("2", "v"), old: claim("1", "v")}, ""},
		{"claim spec by status", write{op: admission.Update, resource: "persistentvolumeclaims/status", obj: claim("2", "w"), old: claim("1", "v")}, "is not allowed to update fields other than status.quantity and status.conditions"},
		{"token", write{op: admission.Create, resource: "serviceaccounts/token", obj: token("here", "pu")}, ""},
		{"token of nobody", write{op: admission.Create, resource: "serviceaccounts/token", obj: token("", "")}, "node requested token not bound to a pod"},
		{"token without uid", write{op: admission.Create, resource: "serviceaccounts/token", obj: token("here", "")}, "node requested token with a pod binding without a uid"},
		{"token of another's", write{op: admission.Create, resource: "serviceaccounts/token", obj: token("there", "pu")}, "node requested token bound to a pod scheduled on a different node"},
		{"token for an audience", write{op: admission.Create, resource: "serviceaccounts/token", obj: token("here", "pu", "x")}, `system:node:n is not authorized to request tokens for audience "x"`},
		{"token for an unknown driver", write{op: admission.Create, resource: "serviceaccounts/token", obj: token("csi", "pu", "x")}, `error validating audience "x": csidriver.storage.k8s.io "d" not found`},
		{"token for an unknown claim", write{op: admission.Create, resource: "serviceaccounts/token", obj: token("claims", "pu", "x")}, `error validating audience "x": persistentvolumeclaim "claims-v" not found`},
		{"lease", write{op: admission.Create, resource: "leases.coordination.k8s.io", obj: lease("kube-node-lease", "n")}, ""},
		{"another lease", write{op: admission.Create, resource: "leases.coordination.k8s.io", obj: lease("kube-node-lease", "m")}, "can only access node lease with the same name as the requesting node"},
		{"lease elsewhere", write{op: admission.Create, resource: "leases.coordination.k8s.io", obj: lease("ns", "n")}, `can only access leases in the "kube-node-lease" system namespace`},
		{"csi node", write{op: admission.Create, resource: "csinodes.storage.k8s.io", obj: &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "m"}}}, "can only access CSINode with the same name as the requesting node"},
		{"slice", write{op: admission.Create, resource: "resourceslices.resource.k8s.io", obj: slice("n")}, ""},
		{"another slice", write{op: admission.Delete, resource: "resourceslices.resource.k8s.io", old: slice("m")}, "can only delete ResourceSlice with the same NodeName as the requesting node"},
		{"request", write{op: admission.Create, resource: "certificatesigningrequests.certificates.k8s.io", obj: csr("system:node:n")}, ""},
		{"another request", write{op: admission.Create, resource: "certificatesigningrequests.certificates.k8s.io", obj: csr("system:node:m")}, "can only create a node CSR with CN=system:node:n"},
		{"pod certificate", write{op: admission.Create, resource: "podcertificaterequests.certificates.k8s.io", obj: podCertificate("u")},
			`pod "ns/here" does not mount a podCertificate projected volume for signer "a.b/c"`},
		{"pod certificate, other uid", write{op: admission.Create, resource: "podcertificaterequests.certificates.k8s.io", obj: podCertificate("w")}, `names node UID "w", inconsistent with the running node ("u")`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.write.user.Name == "" {
				c.write.user = kubelet
			}
			_, err := try(t, only(t, "NodeRestriction", Config{}, Deps{Objects: objects, Authorize: allowing()}), c.write)
			refuses(t, err, c.err)
		})
	}
	off := Deps{Objects: objects, Authorize: allowing(), Gates: func(name string) bool { return name != "ServiceAccountNodeAudienceRestriction" }}
	_, err := try(t, only(t, "NodeRestriction", Config{}, off), write{op: admission.Create, resource: "serviceaccounts/token", obj: token("csi", "pu", "x"), user: kubelet})
	refuses(t, err, "")

	csiNode := func(driver string) *storagev1.CSINode {
		return &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: driver}}}}
	}
	for _, c := range []struct {
		on     bool
		driver string
		err    string
	}{
		{false, "d", "CSIVolumeHealth feature gate is disabled"},
		{true, "d", ""},
		{true, "e", `node "n" is not allowed to modify CSINode spec via status`},
	} {
		deps := Deps{Objects: objects, Authorize: allowing(), Gates: func(name string) bool { return c.on && name == "CSIVolumeHealth" }}
		_, err := try(t, only(t, "NodeRestriction", Config{}, deps),
			write{op: admission.Update, resource: "csinodes.storage.k8s.io/status", obj: csiNode(c.driver), old: csiNode("d"), user: kubelet})
		refuses(t, err, c.err)
	}
}
