package node

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// source is a Source for tests.
type source struct {
	pending atomic.Pointer[[]resource.Change]
	reset   bool
	err     error
}

func (s *source) Current() bool { return s.pending.Load() == nil }

func (s *source) Wait(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func (s *source) Pull(_ context.Context, apply func(bool, []resource.Change)) error {
	if s.err != nil {
		return s.err
	}
	apply(s.reset, *s.pending.Load())
	s.pending.Store(nil)
	return nil
}

func (s *source) tell(deleted bool, objs ...resource.Object) {
	var changes []resource.Change
	for _, o := range objs {
		changes = append(changes, resource.Change{Object: o, Deleted: deleted})
	}
	s.pending.Store(&changes)
}

func in(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

func local(name string) *corev1.LocalObjectReference { return &corev1.LocalObjectReference{Name: name} }

func secretRef(namespace, name string) *corev1.SecretReference {
	return &corev1.SecretReference{Namespace: namespace, Name: name}
}

// aPod refers to an object of every kind in every way. The names say how.
func aPod(name, node string) *corev1.Pod {
	envs := func(p string) corev1.Container {
		return corev1.Container{
			EnvFrom: []corev1.EnvFromSource{
				{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: *local(p + "-envfrom")}},
				{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: *local(p + "-envfrom")}},
			},
			Env: []corev1.EnvVar{
				{Name: "plain", Value: "x"},
				{ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: *local(p + "-env")}}},
				{ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: *local(p + "-env")}}},
			},
		}
	}
	volume := func(name string, source corev1.VolumeSource) corev1.Volume {
		return corev1.Volume{Name: name, VolumeSource: source}
	}
	return &corev1.Pod{
		ObjectMeta: in("ns", name),
		Spec: corev1.PodSpec{
			NodeName: node, ServiceAccountName: "sa",
			ImagePullSecrets:    []corev1.LocalObjectReference{*local("pull"), {}},
			InitContainers:      []corev1.Container{envs("init")},
			Containers:          []corev1.Container{envs("main")},
			EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon(envs("debug"))}},
			Volumes: []corev1.Volume{
				volume("a", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "volume"}}),
				volume("b", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: *local("volume")}}),
				volume("c", corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
					{Secret: &corev1.SecretProjection{LocalObjectReference: *local("projected")}},
					{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: *local("projected")}},
				}}}),
				volume("d", corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "pvc"}}),
				volume("scratch", corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}),
				volume("e", corev1.VolumeSource{AzureFile: &corev1.AzureFileVolumeSource{SecretName: "azure"}}),
				volume("f", corev1.VolumeSource{CephFS: &corev1.CephFSVolumeSource{SecretRef: local("ceph")}}),
				volume("g", corev1.VolumeSource{Cinder: &corev1.CinderVolumeSource{SecretRef: local("cinder")}}),
				volume("h", corev1.VolumeSource{FlexVolume: &corev1.FlexVolumeSource{SecretRef: local("flex")}}),
				volume("i", corev1.VolumeSource{RBD: &corev1.RBDVolumeSource{SecretRef: local("rbd")}}),
				volume("j", corev1.VolumeSource{ScaleIO: &corev1.ScaleIOVolumeSource{SecretRef: local("scaleio")}}),
				volume("k", corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{SecretRef: local("iscsi")}}),
				volume("l", corev1.VolumeSource{StorageOS: &corev1.StorageOSVolumeSource{SecretRef: local("storageos")}}),
				volume("m", corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{NodePublishSecretRef: local("csi")}}),
				volume("n", corev1.VolumeSource{CephFS: &corev1.CephFSVolumeSource{}}),
			},
			ResourceClaims: []corev1.PodResourceClaim{
				{Name: "x", ResourceClaimName: new("claim")},
				{Name: "y", ResourceClaimTemplateName: new("template")},
				{Name: "z", ResourceClaimTemplateName: new("template")},
			},
		},
		Status: corev1.PodStatus{
			ResourceClaimStatuses:       []corev1.PodResourceClaimStatus{{Name: "y", ResourceClaimName: new("generated")}, {Name: "z"}},
			ExtendedResourceClaimStatus: &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "extended"},
		},
	}
}

func aVolume(name, claim string, source corev1.PersistentVolumeSource) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{ObjectMeta: in("", name), Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: source}}
	if claim != "" {
		pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: claim}
	}
	return pv
}

// world is a cluster with a pod on n1.
func world() []resource.Object {
	mirror := aPod("mirror", "n3")
	mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	return []resource.Object{
		aPod("p", "n1"), aPod("unscheduled", ""), mirror,
		aVolume("pv", "pvc", corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
			NodePublishSecretRef: secretRef("vault", "publish"), NodeStageSecretRef: secretRef("vault", "stage"), NodeExpandSecretRef: secretRef("vault", "expand"),
			ControllerPublishSecretRef: secretRef("vault", "controller"), ControllerExpandSecretRef: secretRef("vault", "controller2"),
		}}),
		aVolume("pv-azure", "pvc", corev1.PersistentVolumeSource{AzureFile: &corev1.AzureFilePersistentVolumeSource{SecretName: "pv-azure", SecretNamespace: new("vault")}}),
		aVolume("pv-azure2", "pvc", corev1.PersistentVolumeSource{AzureFile: &corev1.AzureFilePersistentVolumeSource{SecretName: "pv-azure2"}}),
		aVolume("pv-ceph", "pvc", corev1.PersistentVolumeSource{CephFS: &corev1.CephFSPersistentVolumeSource{SecretRef: secretRef("", "pv-ceph")}}),
		aVolume("pv-cinder", "pvc", corev1.PersistentVolumeSource{Cinder: &corev1.CinderPersistentVolumeSource{SecretRef: secretRef("vault", "pv-cinder")}}),
		aVolume("pv-flex", "pvc", corev1.PersistentVolumeSource{FlexVolume: &corev1.FlexPersistentVolumeSource{SecretRef: secretRef("vault", "pv-flex")}}),
		aVolume("pv-rbd", "pvc", corev1.PersistentVolumeSource{RBD: &corev1.RBDPersistentVolumeSource{SecretRef: secretRef("", "pv-rbd")}}),
		aVolume("pv-scaleio", "pvc", corev1.PersistentVolumeSource{ScaleIO: &corev1.ScaleIOPersistentVolumeSource{SecretRef: secretRef("", "pv-scaleio")}}),
		aVolume("pv-iscsi", "pvc", corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{SecretRef: secretRef("", "pv-iscsi")}}),
		aVolume("pv-storageos", "pvc", corev1.PersistentVolumeSource{StorageOS: &corev1.StorageOSPersistentVolumeSource{SecretRef: &corev1.ObjectReference{Namespace: "vault", Name: "pv-storageos"}}}),
		aVolume("pv-other", "other", corev1.PersistentVolumeSource{CephFS: &corev1.CephFSPersistentVolumeSource{SecretRef: secretRef("", "pv-other")}}),
		aVolume("pv-free", "", corev1.PersistentVolumeSource{}),
		&storagev1.VolumeAttachment{ObjectMeta: in("", "va"), Spec: storagev1.VolumeAttachmentSpec{NodeName: "n1"}},
		&resourcev1.ResourceSlice{ObjectMeta: in("", "slice"), Spec: resourcev1.ResourceSliceSpec{NodeName: new("n1")}},
		&resourcev1.ResourceSlice{ObjectMeta: in("", "slice-of-all")},
		&certificatesv1.PodCertificateRequest{ObjectMeta: in("ns", "pcr"), Spec: certificatesv1.PodCertificateRequestSpec{NodeName: "n1"}},
		&certificatesv1beta1.PodCertificateRequest{ObjectMeta: in("ns", "stored"), Spec: certificatesv1beta1.PodCertificateRequestSpec{NodeName: "n1"}},
	}
}

// ask makes attributes from "verb group/resource[/subresource] [namespace]/[name] [selector]".
func ask(node, question string) *authz.Attributes {
	words := strings.Split(question, " ")
	a := &authz.Attributes{User: &request.User{Name: "system:node:" + node, Groups: []string{authz.Nodes}}, Verb: words[0], IsResource: true}
	parts := strings.SplitN(words[1], "/", 3)
	a.Group, a.Resource = strings.TrimPrefix(parts[0], "core"), parts[1]
	if len(parts) > 2 {
		a.Subresource = parts[2]
	}
	if len(words) > 2 {
		a.Namespace, a.Name, _ = strings.Cut(words[2], "/")
	}
	if len(words) > 3 {
		selector, err := fields.ParseSelector(words[3])
		if err != nil {
			panic(err)
		}
		a.Fields = selector.Requirements()
	}
	return a
}

func TestAuthorize(t *testing.T) {
	src := &source{}
	a := New(src, Defaults())
	src.tell(false, world()...)
	const unrelated = "no relationship found between node 'n1' and this object"
	cases := []struct{ what, want string }{
		{"get core/secrets ns/nope", unrelated},
		{"get core/secrets ns2/volume", unrelated},
		{"get core/secrets ns/controller", unrelated},
		{"get core/secrets vault/controller", unrelated},
		{"get core/secrets vault/controller2", unrelated},
		{"get core/secrets ns/pv-azure", unrelated},
		{"get core/secrets ns/pv-other", unrelated},
		{"get core/secrets vault/pv-ceph", unrelated},
		{"list core/secrets ns/volume", "yes"},
		{"watch core/secrets ns/volume", "yes"},
		{"list core/secrets ns/", "No Object name found"},
		{"list core/secrets /", "can only read namespaced object of this type"},
		{"create core/secrets ns/volume", "can only read resources of this type"},
		{"delete core/secrets ns/volume", "can only read resources of this type"},
		{"get core/secrets/status ns/volume", "cannot read subresource"},
		{"get core/configmaps ns/pull", unrelated},
		{"update core/configmaps ns/volume", "can only read resources of this type"},

		{"get core/persistentvolumeclaims ns/pvc", "yes"},
		{"get core/persistentvolumeclaims ns/p-scratch", "yes"},
		{"get core/persistentvolumeclaims ns/other", unrelated},
		{"list core/persistentvolumeclaims ns/pvc", "can only get individual resources of this type"},
		{"get core/persistentvolumeclaims/foo ns/pvc", "cannot get subresource"},
		{"patch core/persistentvolumeclaims/status ns/pvc", "yes"},
		{"update core/persistentvolumeclaims/status ns/other", unrelated},
		{"get core/persistentvolumeclaims/status ns/pvc", "can only get/update/patch this type"},
		{"get core/persistentvolumes /pv", "yes"},
		{"get core/persistentvolumes /pv-other", unrelated},
		{"get core/persistentvolumes /pv-free", unrelated},
		{"get core/persistentvolumes ns/pv", unrelated},
		{"watch core/persistentvolumes /pv", "can only get individual resources of this type"},

		{"get resource.k8s.io/resourceclaims ns/claim", "yes"},
		{"get resource.k8s.io/resourceclaims ns/generated", "yes"},
		{"get resource.k8s.io/resourceclaims ns/extended", "yes"},
		{"get resource.k8s.io/resourceclaims ns/template", unrelated},
		{"update resource.k8s.io/resourceclaims ns/claim", "can only get individual resources of this type"},
		{"get storage.k8s.io/volumeattachments /va", "yes"},
		{"get storage.k8s.io/volumeattachments /other", unrelated},

		{"get core/serviceaccounts ns/sa", "yes"},
		{"get core/serviceaccounts ns/default", unrelated},
		{"create core/serviceaccounts/token ns/sa", "yes"},
		{"create core/serviceaccounts/token ns/default", unrelated},
		{"create core/serviceaccounts/token ns2/sa", unrelated},
		{"create core/serviceaccounts/token ns/", "can only create tokens for individual service accounts"},
		{"list core/serviceaccounts ns/", "can only create tokens for individual service accounts"},
		{"create core/serviceaccounts ns/sa", "can only create token subresource of serviceaccount"},

		{"get core/nodes /n1", "yes"}, {"list core/nodes /n1", "yes"}, {"watch core/nodes /n1", "yes"},
		{"get core/nodes /n2", "node 'n1' cannot read 'n2', only its own Node object"},
		{"get core/nodes /n11", "node 'n1' cannot read 'n11', only its own Node object"},
		{"list core/nodes /", "node 'n1' cannot read all nodes, only its own Node object"},
		{"create core/nodes /", "yes"}, {"update core/nodes /n2", "yes"}, {"patch core/nodes/status /n1", "yes"},
		{"delete core/nodes /n1", ""}, {"get core/nodes/status /n1", ""}, {"get core/nodes/proxy /n1", ""}, {"create core/nodes/proxy /n1", ""},

		{"get core/pods ns/p", "yes"},
		{"get core/pods ns/mirror", unrelated},
		{"get core/pods ns/unscheduled", unrelated},
		{"list core/pods ns/", "can only list/watch pods with spec.nodeName field selector"},
		{"list core/pods / spec.nodeName=n1", "yes"},
		{"watch core/pods / spec.nodeName=n1,status.phase=Running", "yes"},
		{"list core/pods / spec.nodeName=n11", "can only list/watch pods with spec.nodeName field selector"},
		{"list core/pods / spec.nodeName!=n1", "can only list/watch pods with spec.nodeName field selector"},
		{"list core/pods / metadata.name=n1", "can only list/watch pods with spec.nodeName field selector"},
		{"list core/pods ns/p", "yes"}, {"list core/pods ns/unscheduled", unrelated},
		{"create core/pods ns/", "yes"}, {"delete core/pods ns/any", "yes"}, {"update core/pods ns/p", ""}, {"deletecollection core/pods ns/", ""},
		{"patch core/pods/status ns/p", "yes"}, {"get core/pods/status ns/p", ""},
		{"create core/pods/eviction ns/p", "yes"}, {"create core/pods/exec ns/p", ""}, {"get core/pods/log ns/p", ""},

		{"get resource.k8s.io/resourceslices /slice", "yes"}, {"delete resource.k8s.io/resourceslices /slice", "yes"},
		{"update resource.k8s.io/resourceslices /slice-of-all", unrelated},
		{"create resource.k8s.io/resourceslices /", "yes"},
		{"list resource.k8s.io/resourceslices / spec.nodeName=n1", "yes"},
		{"deletecollection resource.k8s.io/resourceslices / spec.nodeName=n1", "yes"},
		{"list resource.k8s.io/resourceslices / spec.nodeName=n2", "can only list/watch/deletecollection resourceslices with nodeName field selector"},
		{"get resource.k8s.io/resourceslices/status /slice", "cannot authorize ResourceSlice subresources"},
		{"approve resource.k8s.io/resourceslices /slice", "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, delete, deletecollection"},

		{"get storage.k8s.io/csinodes /n1", "yes"}, {"create storage.k8s.io/csinodes /", "yes"},
		{"get storage.k8s.io/csinodes /n2", "can only access CSINode with the same name as the requesting node"},
		{"list storage.k8s.io/csinodes /n1", "can only get, create, update, patch, or delete a CSINode"},
		{"get storage.k8s.io/csinodes/status /n1", "CSINode status access requires CSIVolumeHealth feature"},
		{"get storage.k8s.io/csinodes/foo /n1", "cannot authorize CSINode subresources"},
		{"update coordination.k8s.io/leases kube-node-lease/n1", "yes"}, {"create coordination.k8s.io/leases kube-node-lease/", "yes"},
		{"get coordination.k8s.io/leases kube-node-lease/n2", "can only access node lease with the same name as the requesting node"},
		{"get coordination.k8s.io/leases kube-system/n1", `can only access leases in the "kube-node-lease" system namespace`},
		{"watch coordination.k8s.io/leases kube-node-lease/n1", "can only get, create, update, patch, or delete a node lease"},

		{"get certificates.k8s.io/podcertificaterequests ns/pcr", "yes"}, {"get certificates.k8s.io/podcertificaterequests ns/stored", "yes"}, {"create certificates.k8s.io/podcertificaterequests ns/", "yes"},
		{"get certificates.k8s.io/podcertificaterequests ns/other", unrelated},
		{"list certificates.k8s.io/podcertificaterequests / spec.nodeName=n1", "yes"},
		{"watch certificates.k8s.io/podcertificaterequests /", "can only list/watch podcertificaterequests with nodeName field selector"},
		{"get certificates.k8s.io/podcertificaterequests/status ns/pcr", "nodes may not access the status subresource of PodCertificateRequests"},
		{"delete certificates.k8s.io/podcertificaterequests ns/pcr", "nodes may not delete podcertificaterequests"},

		{"list core/services /", "yes"}, {"create core/services ns/", ""}, {"create core/events ns/", "yes"}, {"create events.k8s.io/events ns/", "yes"},
		{"create authentication.k8s.io/tokenreviews /", "yes"}, {"get node.k8s.io/runtimeclasses /x", "yes"}, {"get apps/deployments ns/d", ""},
		// The names of resources are those of a group.
		{"get apps/secrets ns/volume", ""},
	}
	for _, s := range []string{"pull", "init-env", "init-envfrom", "main-env", "main-envfrom", "debug-env", "debug-envfrom", "volume", "projected",
		"azure", "ceph", "cinder", "flex", "rbd", "scaleio", "iscsi", "storageos", "csi", "pv-azure2", "pv-ceph", "pv-rbd", "pv-scaleio", "pv-iscsi"} {
		cases = append(cases, struct{ what, want string }{"get core/secrets ns/" + s, "yes"})
	}
	for _, s := range []string{"publish", "stage", "expand", "pv-azure", "pv-cinder", "pv-flex", "pv-storageos"} {
		cases = append(cases, struct{ what, want string }{"get core/secrets vault/" + s, "yes"})
	}
	for _, s := range []string{"init-env", "init-envfrom", "main-env", "main-envfrom", "debug-env", "debug-envfrom", "volume", "projected"} {
		cases = append(cases, struct{ what, want string }{"get core/configmaps ns/" + s, "yes"})
	}
	for _, c := range cases {
		decision, reason, err := a.Authorize(t.Context(), ask("n1", c.what))
		if decision == authz.Allow {
			reason += "yes"
		}
		if reason != c.want || err != nil {
			t.Errorf("%s: got %q, want %q (%v)", c.what, reason, c.want, err)
		}
		// What n1 gets through its pod another node does not get, and a mirror
		// pod is worth nothing.
		for _, other := range []string{"n2", "n3", "n", "n11"} {
			if c.want != "yes" || !a.depends(c.what) {
				break
			}
			if decision, _, _ := a.Authorize(t.Context(), ask(other, c.what)); decision != authz.NoOpinion {
				t.Errorf("%s: %s too", c.what, other)
			}
		}
	}
}

// depends reports whether a question is one about a relation.
func (a *Authorizer) depends(what string) bool {
	at := ask("n1", what)
	for r, judge := range a.resourceRules {
		if r.Group == at.Group && r.Resource == at.Resource {
			return judge(&nodeRequest{at, "n1", a.features}).object != nil
		}
	}
	return false
}

// TestRulesOfFeatures has what nodes may do only with a feature, with and without it.
func TestRulesOfFeatures(t *testing.T) {
	off := "CSINode status access requires CSIVolumeHealth feature"
	for _, c := range []struct {
		on                  Features
		what, with, without string
	}{
		{Features{StorageHealth: true}, "patch storage.k8s.io/csinodes/status /n1", "yes", off},
		{Features{StorageHealth: true}, "delete storage.k8s.io/csinodes/status /n1", "can only get, update, or patch CSINode status", off},
		{Features{StorageHealth: true}, "patch storage.k8s.io/csinodes/status /n2", "can only access CSINode with the same name as the requesting node", off},
		{Features{TrustBundles: true}, "list certificates.k8s.io/clustertrustbundles /", "yes", ""},
		{Features{PodCertificates: true}, "create certificates.k8s.io/podcertificaterequests ns/", "yes", ""},
		{Features{PodCertificates: true}, "get core/serviceaccounts ns/sa", "yes", "not allowed to get service accounts"},
		{Features{CredentialProviders: true}, "get core/serviceaccounts ns/sa", "yes", "not allowed to get service accounts"},
		{Features{Devices: true}, "get resource.k8s.io/resourceclaims ns/claim", "yes", "yes"}, // by the relation of the pod
	} {
		for features, want := range map[Features]string{c.on: c.with, {}: c.without} {
			src := &source{}
			a := New(src, features)
			src.tell(false, world()...)
			decision, reason, err := a.Authorize(t.Context(), ask("n1", c.what))
			if decision == authz.Allow {
				reason = "yes"
			}
			if err != nil || reason != want {
				t.Errorf("%+v: %s: got %q, %v, want %q", features, c.what, reason, err, want)
			}
		}
	}
}

// TestRulesOfDevices: the rules about devices, which the cluster role of nodes has too, belong to a feature.
func TestRulesOfDevices(t *testing.T) {
	of := func(f Features) (n int) {
		for _, r := range Rules(f) {
			if r.APIGroups[0] == "resource.k8s.io" {
				n++
			}
		}
		return n
	}
	if with, without := of(Defaults()), of(Features{}); with != 2 || without != 0 {
		t.Errorf("%d rules with the feature and %d without, want 2 and 0", with, without)
	}
}

func TestIdentity(t *testing.T) {
	a := New(&source{}, Defaults())
	for _, c := range []struct {
		name   string
		groups []string
		reason string
		allow  bool
	}{
		{"system:node:n1", []string{"x", authz.Nodes}, "", true},
		{"system:node:n1", []string{authz.Masters}, "", false},
		{"bob", []string{authz.Nodes}, "", false},
		{"system:node:", []string{authz.Nodes}, `unknown node for user "system:node:"`, false},
		{"system:nodes:n1", []string{authz.Nodes}, "", false},
	} {
		at := ask("", "list core/services /")
		at.User = &request.User{Name: c.name, Groups: c.groups}
		decision, reason, err := a.Authorize(t.Context(), at)
		if (decision == authz.Allow) != c.allow || reason != c.reason || err != nil {
			t.Errorf("%s %v: %v %q %v", c.name, c.groups, decision, reason, err)
		}
		_, _, incomplete, err := a.RulesFor(t.Context(), at.User, "ns")
		if isNode := c.name != "bob" && c.groups[len(c.groups)-1] == authz.Nodes && strings.HasPrefix(c.name, authz.NodePrefix); incomplete != isNode || (err != nil) != isNode {
			t.Errorf("%s: rules: %v %v", c.name, incomplete, err)
		}
	}
	if decision, _, _ := a.Authorize(t.Context(), &authz.Attributes{}); decision != authz.NoOpinion {
		t.Error("nobody was allowed something")
	}
}

func TestChanges(t *testing.T) {
	src := &source{}
	a := New(src, Defaults())
	check := func(node, what string, want bool) {
		t.Helper()
		if got, reason, err := a.Authorize(t.Context(), ask(node, what)); (got == authz.Allow) != want || err != nil {
			t.Errorf("%s: %s: %v %q %v", node, what, got, reason, err)
		}
	}
	src.tell(false, world()...)
	check("n1", "get core/secrets ns/volume", true)
	src.tell(false, aPod("p2", "n2"))
	check("n2", "get core/secrets ns/volume", true)
	check("n2", "get core/secrets vault/publish", true)
	src.tell(true, aPod("p", "n1"))
	check("n1", "get core/secrets ns/volume", false)
	check("n1", "get core/secrets vault/publish", false)
	check("n2", "get core/secrets ns/volume", true)
	src.tell(false, aVolume("pv", "", corev1.PersistentVolumeSource{}))
	check("n2", "get core/persistentvolumes /pv", false)
	check("n2", "get core/secrets vault/publish", false)
	thin := &corev1.Pod{ObjectMeta: in("ns", "p2"), Spec: corev1.PodSpec{NodeName: "n2"}}
	src.tell(false, thin)
	check("n2", "get core/secrets ns/volume", false)
	check("n2", "get core/pods ns/p2", true)
	src.tell(true, world()...)
	check("n1", "get storage.k8s.io/volumeattachments /va", false)
	src.tell(true, thin)
	check("n2", "get core/pods ns/p2", false)
	if n := len(a.graph.anchors) + len(a.graph.counts) + len(a.graph.volumes) + len(a.graph.secrets); n != 0 {
		t.Errorf("%d things were not forgotten", n)
	}

	src.reset = true
	src.tell(false, aPod("p", "n9"))
	check("n9", "get core/secrets ns/volume", true)
	src.tell(false)
	check("n9", "get core/secrets ns/volume", false)

	src.err = errors.New("closed")
	src.tell(false)
	if got, _, err := a.Authorize(t.Context(), ask("n9", "get core/secrets ns/volume")); got != authz.NoOpinion || !errors.Is(err, src.err) {
		t.Error(got, err)
	}
}

func BenchmarkAuthorize(b *testing.B) {
	src := &source{}
	a := New(src, Defaults())
	objs := world()
	for i := range 5000 {
		p := aPod("p", "n"+string(rune('a'+i%26)))
		p.Name += strings.Repeat("x", i%40) + string(rune('a'+i%26))
		objs = append(objs, p)
	}
	src.tell(false, objs...)
	at := ask("n1", "get core/secrets ns/volume")
	if _, _, err := a.Authorize(b.Context(), at); err != nil { // takes the pods in
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if d, _, _ := a.Authorize(b.Context(), at); d != authz.Allow {
			b.Fatal("no")
		}
	}
}
