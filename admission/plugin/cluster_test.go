package plugin

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

func TestVolumes(t *testing.T) {
	const classes = "storageclasses.storage.k8s.io"
	storage := func(name string, age time.Duration, marked bool) *storagev1.StorageClass {
		c := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0).Add(-age))}, AllowVolumeExpansion: new(marked)}
		if marked {
			c.Annotations = map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}
		}
		return c
	}
	objects := store(classes, storage("old", time.Hour, true), classes, storage("new", 0, true), classes, storage("unmarked", -time.Hour, false))
	claim := func(class *string, size string, phase corev1.PersistentVolumeClaimPhase) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: meta("c"), Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: class, Resources: corev1.VolumeResourceRequirements{Requests: amount("storage", size)},
		}, Status: corev1.PersistentVolumeClaimStatus{Phase: phase}}
	}
	const claims = "persistentvolumeclaims"
	for _, c := range []struct {
		plugin, name string
		write        write
		err          string
		check        func(resource.Object) bool
	}{
		{"DefaultStorageClass", "newest", write{op: admission.Create, resource: claims, obj: claim(nil, "1", "")}, "",
			func(o resource.Object) bool { return *o.(*corev1.PersistentVolumeClaim).Spec.StorageClassName == "new" }},
		{"DefaultStorageClass", "none wanted", write{op: admission.Create, resource: claims, obj: claim(new(""), "1", "")}, "",
			func(o resource.Object) bool { return *o.(*corev1.PersistentVolumeClaim).Spec.StorageClassName == "" }},
		{"StorageObjectInUseProtection", "claim", write{op: admission.Create, resource: claims, obj: claim(nil, "1", "")}, "",
			func(o resource.Object) bool { return o.GetFinalizers()[0] == "kubernetes.io/pvc-protection" }},
		{"StorageObjectInUseProtection", "volume", write{op: admission.Create, resource: "persistentvolumes", obj: &corev1.PersistentVolume{}}, "",
			func(o resource.Object) bool { return o.GetFinalizers()[0] == "kubernetes.io/pv-protection" }},
		{"StorageObjectInUseProtection", "attributes", write{op: admission.Create, resource: "volumeattributesclasses.storage.k8s.io", obj: &storagev1.VolumeAttributesClass{}}, "",
			func(o resource.Object) bool { return o.GetFinalizers()[0] == "kubernetes.io/vac-protection" }},
		{"PersistentVolumeClaimResize", "shrinks", write{op: admission.Update, resource: claims, obj: claim(new("new"), "1", ""), old: claim(new("new"), "2", "")}, "", nil},
		{"PersistentVolumeClaimResize", "not bound", write{op: admission.Update, resource: claims, obj: claim(new("new"), "3", ""), old: claim(new("new"), "2", corev1.ClaimPending)},
			"Only bound persistent volume claims can be expanded", nil},
		{"PersistentVolumeClaimResize", "grows", write{op: admission.Update, resource: claims, obj: claim(new("new"), "3", ""), old: claim(new("new"), "2", corev1.ClaimBound)}, "", nil},
		{"PersistentVolumeClaimResize", "cannot grow", write{op: admission.Update, resource: claims, obj: claim(new("unmarked"), "3", ""), old: claim(new("unmarked"), "2", corev1.ClaimBound)},
			"only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize", nil},
	} {
		t.Run(c.plugin+"/"+c.name, func(t *testing.T) {
			_, err := try(t, only(t, c.plugin, Config{}, Deps{Objects: objects}), c.write)
			refuses(t, err, c.err)
			if c.check != nil && !c.check(c.write.obj) {
				t.Errorf("the object is %+v", c.write.obj)
			}
		})
	}
}

func TestNetwork(t *testing.T) {
	ingressClass := &networkingv1.IngressClass{ObjectMeta: metav1.ObjectMeta{Name: "i", Annotations: map[string]string{networkingv1.AnnotationIsDefaultIngressClass: "true"}}}
	service := func(ips ...string) *corev1.Service {
		return &corev1.Service{ObjectMeta: meta("s"), Spec: corev1.ServiceSpec{ExternalIPs: ips}}
	}
	old := &networkingv1.Ingress{ObjectMeta: meta("x")}
	old.Annotations = map[string]string{ingressClassNote: "other"}
	for _, c := range []struct {
		plugin, name string
		write        write
		err          string
		class        string
	}{
		{"DefaultIngressClass", "none", write{op: admission.Create, resource: "ingresses.networking.k8s.io", obj: &networkingv1.Ingress{ObjectMeta: meta("x")}}, "", "i"},
		{"DefaultIngressClass", "annotation", write{op: admission.Create, resource: "ingresses.networking.k8s.io", obj: old}, "", ""},
		{"DenyServiceExternalIPs", "none", write{op: admission.Create, resource: "services", obj: service()}, "", ""},
		{"DenyServiceExternalIPs", "new", write{op: admission.Create, resource: "services", obj: service("1.2.3.4")}, "Use of external IPs is denied by admission control", ""},
		{"DenyServiceExternalIPs", "kept", write{op: admission.Update, resource: "services", obj: service("1.2.3.4"), old: service("1.2.3.4", "1.1.1.1")}, "", ""},
		{"DenyServiceExternalIPs", "added", write{op: admission.Update, resource: "services", obj: service("1.2.3.4"), old: service("1.1.1.1")}, "denied", ""},
	} {
		t.Run(c.plugin+"/"+c.name, func(t *testing.T) {
			_, err := try(t, only(t, c.plugin, Config{}, Deps{Objects: store("ingressclasses.networking.k8s.io", ingressClass)}), c.write)
			refuses(t, err, c.err)
			if i, ok := c.write.obj.(*networkingv1.Ingress); ok {
				got := ""
				if i.Spec.IngressClassName != nil {
					got = *i.Spec.IngressClassName
				}
				if got != c.class {
					t.Errorf("the class is %q", got)
				}
			}
		})
	}
}

// allowing allows what it lists: the verb, the resource and the name.
func allowing(list ...string) Authorize {
	return func(_ context.Context, _ *request.User, what request.Info) (bool, string, error) {
		name := what.Resource
		if what.Subresource != "" {
			name += "/" + what.Subresource
		}
		for _, l := range list {
			if l == what.Verb+" "+name+" "+what.Name {
				return true, "", nil
			}
		}
		return false, "no rule", nil
	}
}

// certificateRequest makes a request for a certificate.
func certificateRequest(t *testing.T, name string, organizations ...string) []byte {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: name, Organization: organizations}}, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func TestCertificates(t *testing.T) {
	csr := func(signer string, request []byte, certificate string) *certificatesv1.CertificateSigningRequest {
		return &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "r"},
			Spec: certificatesv1.CertificateSigningRequestSpec{SignerName: signer, Request: request}, Status: certificatesv1.CertificateSigningRequestStatus{Certificate: []byte(certificate)}}
	}
	bundle := func(signer string, finalizers ...string) *certificatesv1beta1.ClusterTrustBundle {
		return &certificatesv1beta1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: "b", Finalizers: finalizers}, Spec: certificatesv1beta1.ClusterTrustBundleSpec{SignerName: signer}}
	}
	const requests, bundles = "certificatesigningrequests.certificates.k8s.io", "clustertrustbundles.certificates.k8s.io"
	client := certificatesv1.KubeAPIServerClientSignerName
	for _, c := range []struct {
		plugin, name string
		may          Authorize
		write        write
		err          string
	}{
		{"CertificateApproval", "may", allowing("approve signers a.b/c"), write{op: admission.Update, resource: requests + "/approval", obj: csr("a.b/c", nil, ""), old: csr("a.b/c", nil, "")}, ""},
		{"CertificateApproval", "may all", allowing("approve signers a.b/*"), write{op: admission.Update, resource: requests + "/approval", obj: csr("a.b/c", nil, ""), old: csr("a.b/c", nil, "")}, ""},
		{"CertificateApproval", "may not", allowing(), write{op: admission.Update, resource: requests + "/approval", obj: csr("a.b/c", nil, ""), old: csr("a.b/c", nil, "")},
			`certificatesigningrequests.certificates.k8s.io "r" is forbidden: user not permitted to approve requests with signerName "a.b/c"`},
		{"CertificateSigning", "may not", allowing(), write{op: admission.Update, resource: requests + "/status", obj: csr("a.b/c", nil, "x"), old: csr("a.b/c", nil, "")},
			`user not permitted to sign requests with signerName "a.b/c"`},
		{"CertificateSigning", "unchanged", allowing(), write{op: admission.Update, resource: requests + "/status", obj: csr("a.b/c", nil, "x"), old: csr("a.b/c", nil, "x")}, ""},
		{"CertificateSigning", "may", allowing("sign signers a.b/c"), write{op: admission.Update, resource: requests + "/status", obj: csr("a.b/c", nil, "x"), old: csr("a.b/c", nil, "")}, ""},
		{"ClusterTrustBundleAttest", "no signer", allowing(), write{op: admission.Create, resource: bundles, obj: bundle("")}, ""},
		{"ClusterTrustBundleAttest", "may not", allowing(), write{op: admission.Create, resource: bundles, obj: bundle("a.b/c")}, `user not permitted to attest for signerName "a.b/c"`},
		{"ClusterTrustBundleAttest", "may", allowing("attest signers a.b/c"), write{op: admission.Create, resource: bundles, obj: bundle("a.b/c")}, ""},
		{"ClusterTrustBundleAttest", "collector", allowing(), write{op: admission.Update, resource: bundles, obj: bundle("a.b/c"), old: bundle("a.b/c", "f")}, ""},
		{"CertificateSubjectRestriction", "masters", nil, write{op: admission.Create, resource: requests, obj: csr(client, certificateRequest(t, "x", "system:masters"), "")},
			"use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed"},
		{"CertificateSubjectRestriction", "others", nil, write{op: admission.Create, resource: requests, obj: csr(client, certificateRequest(t, "x", "y"), "")}, ""},
		{"CertificateSubjectRestriction", "another signer", nil, write{op: admission.Create, resource: requests, obj: csr("a.b/c", certificateRequest(t, "x", "system:masters"), "")}, ""},
		{"CertificateSubjectRestriction", "garbage", nil, write{op: admission.Create, resource: requests, obj: csr(client, []byte("x"), "")}, "failed to parse CSR"},
	} {
		t.Run(c.plugin+"/"+c.name, func(t *testing.T) {
			_, err := try(t, only(t, c.plugin, Config{}, Deps{Objects: stored{}, Authorize: c.may}), c.write)
			refuses(t, err, c.err)
		})
	}
}

func TestOwnerReferences(t *testing.T) {
	owned := func(blocks bool) *corev1.ConfigMap {
		m := &corev1.ConfigMap{ObjectMeta: meta("m")}
		m.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "1", BlockOwnerDeletion: &blocks}}
		return m
	}
	unknown := owned(true)
	unknown.OwnerReferences[0].Kind = "Bogus"
	free := &corev1.ConfigMap{ObjectMeta: meta("m")}
	kinds := func(kind schema.GroupVersionKind) []*resource.Served {
		if kind.Kind != "Pod" {
			return nil
		}
		return []*resource.Served{{Definition: &resource.Definition{Resource: "pods", Namespaced: true}, GroupVersion: kind.GroupVersion(), Version: &resource.Version{Name: "v1"}}}
	}
	for _, c := range []struct {
		name  string
		may   Authorize
		write write
		err   string
	}{
		{"none", allowing(), write{op: admission.Create, resource: "configmaps", obj: free}, ""},
		{"create", allowing(), write{op: admission.Create, resource: "configmaps", obj: owned(false)}, ""},
		{"update", allowing(), write{op: admission.Update, resource: "configmaps", obj: owned(false), old: free}, "cannot set an ownerRef on a resource you can't delete: no rule, <nil>"},
		{"update, may delete", allowing("delete configmaps m"), write{op: admission.Update, resource: "configmaps", obj: owned(false), old: free}, ""},
		{"unchanged", allowing(), write{op: admission.Update, resource: "configmaps", obj: owned(true), old: owned(true)}, ""},
		{"blocks", allowing(), write{op: admission.Create, resource: "configmaps", obj: owned(true)},
			"cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: no rule, <nil>"},
		{"blocks, may", allowing("update pods/finalizers p"), write{op: admission.Create, resource: "configmaps", obj: owned(true)}, ""},
		{"blocks, may all", allowing("update */finalizers *"), write{op: admission.Create, resource: "configmaps", obj: unknown}, ""},
		{"unknown kind", allowing(), write{op: admission.Create, resource: "configmaps", obj: unknown}, "cannot find RESTMapping for APIVersion v1 Kind Bogus"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := try(t, only(t, "OwnerReferencesPermissionEnforcement", Config{}, Deps{Objects: stored{}, Authorize: c.may, Kinds: kinds}), c.write)
			refuses(t, err, c.err)
		})
	}
}

func TestEventRateLimit(t *testing.T) {
	file := configFile(t, "EventRateLimit", "    apiVersion: eventratelimit.admission.k8s.io/v1alpha1\n    kind: Configuration\n    limits: [{type: Namespace, qps: 1, burst: 3}]\n")
	p := only(t, "EventRateLimit", Config{File: file}, Deps{Objects: stored{}})
	event := func(ns string) write {
		return write{op: admission.Create, resource: "events", kind: "Event", obj: &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "e"}}}
	}
	for i := range 4 {
		_, err := try(t, p, event("a"))
		want := ""
		if i == 3 {
			want = "limit reached on type Namespace for key a"
		}
		refuses(t, err, want)
	}
	_, err := try(t, p, event("b"))
	refuses(t, err, "")
	dry := event("a")
	dry.dryRun = true
	_, err = try(t, p, dry)
	refuses(t, err, "")
}
