package builtin_test

import (
	"crypto/ed25519"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"slices"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	apiregistrationinstall "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiregistrationv1beta1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1beta1"

	"github.com/apikeel/kelson/aggregator"
	"github.com/apikeel/kelson/builtin"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/wire"
)

// moved are groups that kinds were in before they had one of their own.
var moved = map[string][]string{
	"apps": {"extensions"}, "networking.k8s.io": {"extensions"}, "": {"events.k8s.io"},
}

// TestStoredObjectsOfAllVersionsCanBeRead stores an empty object of each version that the
// types of the API have, as older releases of Kubernetes have stored them, and reads it.
func TestStoredObjectsOfAllVersionsCanBeRead(t *testing.T) {
	types := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, apiregistrationinstall.AddToScheme, apiregistrationv1beta1.AddToScheme} {
		if err := add(types); err != nil {
			t.Fatal(err)
		}
	}
	read := 0
	for _, group := range append(builtin.Groups(builtin.Config{}), aggregator.Definitions()) {
		catalog, err := resource.NewCatalog(group)
		if err != nil {
			t.Fatal(err)
		}
		for _, def := range catalog.Definitions() {
			if def.Virtual() || def.CreateOn != "" {
				continue
			}
			for kind := range types.AllKnownTypes() {
				if kind.Kind != def.Kind || kind.Version == runtime.APIVersionInternal || kind.Group != def.Group && !slices.Contains(moved[def.Group], kind.Group) {
					continue
				}
				if kind.Group == "extensions" && def.Group == "networking.k8s.io" && def.Kind != "Ingress" && def.Kind != "NetworkPolicy" {
					continue
				}
				obj, err := types.New(kind)
				if err != nil {
					t.Fatal(err)
				}
				obj.(resource.Object).SetName("a")
				obj.GetObjectKind().SetGroupVersionKind(kind)
				version := resource.Definition{Group: kind.Group, Kind: kind.Kind, Versions: []resource.Version{{Name: kind.Version}}, Hub: kind.Version}
				for _, version.StoreJSON = range []bool{true, false} {
					stored, err := wire.EncodeStored(&version, obj.(resource.Object))
					if err != nil {
						t.Fatalf("%v: %v", kind, err)
					}
					got, err := wire.DecodeStored(def, stored)
					if err != nil || got.GetName() != "a" {
						t.Errorf("%v: got %v, %v, want the object that is stored", kind, got, err)
					}
					read++
				}
			}
		}
	}
	if read < 200 {
		t.Errorf("got %d objects that were read, want all", read)
	}
}

// TestOldVersionsHaveTheirOwnDefaults reads objects of versions that are served no more, where
// these differ from the hub.
func TestOldVersionsHaveTheirOwnDefaults(t *testing.T) {
	const flow, rbac, admission = "flowcontrol.apiserver.k8s.io", "rbac.authorization.k8s.io", "admissionregistration.k8s.io"
	for _, c := range []struct {
		group, resource, stored string
		want                    string // JSON in v1, without kind, apiVersion, and fields of no interest here
	}{
		{admission, "mutatingwebhookconfigurations",
			`{"kind":"MutatingWebhookConfiguration","apiVersion":"admissionregistration.k8s.io/v1beta1","webhooks":[{"name":"w","clientConfig":{"service":{"name":"s","namespace":"n"}},"rules":[{"operations":["*"]}]}]}`,
			`{"webhooks":[{"name":"w","clientConfig":{"service":{"namespace":"n","name":"s","port":443}},"rules":[{"operations":["*"],"scope":"*"}],"failurePolicy":"Ignore","matchPolicy":"Exact","namespaceSelector":{},"objectSelector":{},"sideEffects":"Unknown","timeoutSeconds":30,"admissionReviewVersions":["v1beta1"],"reinvocationPolicy":"Never"}]}`},
		{admission, "validatingwebhookconfigurations",
			`{"kind":"ValidatingWebhookConfiguration","apiVersion":"admissionregistration.k8s.io/v1beta1","webhooks":[{"name":"w","clientConfig":{"url":"u"},"failurePolicy":"Fail","timeoutSeconds":3,"admissionReviewVersions":["v1"]}]}`,
			`{"webhooks":[{"name":"w","clientConfig":{"url":"u"},"failurePolicy":"Fail","matchPolicy":"Exact","namespaceSelector":{},"objectSelector":{},"sideEffects":"Unknown","timeoutSeconds":3,"admissionReviewVersions":["v1"]}]}`},
		{admission, "validatingadmissionpolicybindings",
			`{"kind":"ValidatingAdmissionPolicyBinding","apiVersion":"admissionregistration.k8s.io/v1alpha1","spec":{"policyName":"p","paramRef":{"name":"n"}}}`,
			`{"spec":{"policyName":"p","paramRef":{"name":"n","parameterNotFoundAction":"Deny"}}}`},
		{rbac, "clusterrolebindings",
			`{"kind":"ClusterRoleBinding","apiVersion":"rbac.authorization.k8s.io/v1alpha1","subjects":[{"kind":"User","name":"*"},{"kind":"User","name":"u"},{"kind":"ServiceAccount","apiVersion":"v1","name":"a","namespace":"n"},{"kind":"Other","apiVersion":"g/v1","name":"o"}],"roleRef":{"kind":"ClusterRole","name":"r"}}`,
			`{"subjects":[{"kind":"Group","apiGroup":"rbac.authorization.k8s.io","name":"system:authenticated"},{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"u"},{"kind":"ServiceAccount","name":"a","namespace":"n"},{"kind":"Other","apiGroup":"g","name":"o"}],"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"r"}}`},
		{rbac, "rolebindings",
			`{"kind":"RoleBinding","apiVersion":"rbac.authorization.k8s.io/v1beta1","subjects":[{"kind":"Group","name":"g"}],"roleRef":{"kind":"Role","name":"r"}}`,
			`{"subjects":[{"kind":"Group","apiGroup":"rbac.authorization.k8s.io","name":"g"}],"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"r"}}`},
		{flow, "prioritylevelconfigurations",
			`{"kind":"PriorityLevelConfiguration","apiVersion":"flowcontrol.apiserver.k8s.io/v1beta2","spec":{"type":"Limited","limited":{"assuredConcurrencyShares":7,"limitResponse":{"type":"Reject"}}}}`,
			`{"spec":{"type":"Limited","limited":{"nominalConcurrencyShares":7,"limitResponse":{"type":"Reject"},"lendablePercent":0}},"status":{}}`},
		{flow, "prioritylevelconfigurations",
			`{"kind":"PriorityLevelConfiguration","apiVersion":"flowcontrol.apiserver.k8s.io/v1beta3","spec":{"type":"Limited","limited":{"limitResponse":{"type":"Reject"}}}}`,
			`{"spec":{"type":"Limited","limited":{"nominalConcurrencyShares":30,"limitResponse":{"type":"Reject"},"lendablePercent":0}},"status":{}}`},
		{flow, "prioritylevelconfigurations",
			`{"kind":"PriorityLevelConfiguration","apiVersion":"flowcontrol.apiserver.k8s.io/v1beta3","metadata":{"annotations":{"a":"b","flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares":""}},"spec":{"type":"Limited","limited":{"limitResponse":{"type":"Reject"}}}}`,
			`{"metadata":{"annotations":{"a":"b"}},"spec":{"type":"Limited","limited":{"nominalConcurrencyShares":0,"limitResponse":{"type":"Reject"},"lendablePercent":0}},"status":{}}`},
		{flow, "flowschemas",
			`{"kind":"FlowSchema","apiVersion":"flowcontrol.apiserver.k8s.io/v1beta1","spec":{"priorityLevelConfiguration":{"name":"p"}}}`,
			`{"spec":{"priorityLevelConfiguration":{"name":"p"},"matchingPrecedence":1000},"status":{}}`},
		{"certificates.k8s.io", "certificatesigningrequests",
			`{"kind":"CertificateSigningRequest","apiVersion":"certificates.k8s.io/v1beta1","spec":{"request":"eA=="},"status":{"conditions":[{"type":"Approved"}]}}`,
			`{"spec":{"request":"eA==","signerName":"kubernetes.io/legacy-unknown","usages":["digital signature","key encipherment"]},"status":{"conditions":[{"type":"Approved","status":"True","lastUpdateTime":null,"lastTransitionTime":null}]}}`},
		{"", "events",
			`{"kind":"Event","apiVersion":"events.k8s.io/v1beta1","note":"n","regarding":{"name":"o"},"deprecatedCount":2,"eventTime":null}`,
			`{"involvedObject":{"name":"o"},"message":"n","source":{},"firstTimestamp":null,"lastTimestamp":null,"count":2,"eventTime":null,"reportingComponent":"","reportingInstance":""}`},
		{"apiregistration.k8s.io", "apiservices",
			`{"kind":"APIService","apiVersion":"apiregistration.k8s.io/v1beta1","spec":{"service":{"name":"s","namespace":"n"},"group":"g","version":"v1","groupPriorityMinimum":1,"versionPriority":2}}`,
			`{"spec":{"service":{"namespace":"n","name":"s","port":443},"group":"g","version":"v1","groupPriorityMinimum":1,"versionPriority":2},"status":{}}`},
	} {
		catalog, err := resource.NewCatalog(append(builtin.Groups(builtin.Config{}), aggregator.Definitions())...)
		if err != nil {
			t.Fatal(err)
		}
		def, ok := catalog.Definition(c.group, c.resource)
		if !ok {
			t.Fatalf("%s is not defined", c.resource)
		}
		obj, err := wire.DecodeStored(def, []byte(c.stored))
		if err != nil {
			t.Errorf("%s: %v", c.stored, err)
			continue
		}
		want := def.HubVersion().New()
		if err := json.Unmarshal([]byte(c.want), want); err != nil {
			t.Fatal(err)
		}
		if !equality.Semantic.DeepEqual(obj, want) {
			got, _ := json.Marshal(obj)
			t.Errorf("%s:\n got %s\nwant %s", c.stored, got, c.want)
		}
	}
}

// TestOldRequestsHaveASigner reads requests for certificates that name no signer.
func TestOldRequestsHaveASigner(t *testing.T) {
	catalog, err := resource.NewCatalog(builtin.Groups(builtin.Config{})...)
	if err != nil {
		t.Fatal(err)
	}
	def, _ := catalog.Definition("certificates.k8s.io", "certificatesigningrequests")
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	node := pkix.Name{Organization: []string{"system:nodes"}, CommonName: "system:node:a"}
	for _, c := range []struct {
		request x509.CertificateRequest
		usages  string
		want    string
	}{
		{x509.CertificateRequest{Subject: node}, `["digital signature","client auth"]`, certificatesv1.KubeAPIServerClientKubeletSignerName},
		{x509.CertificateRequest{Subject: node}, `["client auth","key encipherment","digital signature"]`, certificatesv1.KubeAPIServerClientKubeletSignerName},
		{x509.CertificateRequest{Subject: node, DNSNames: []string{"a"}}, `["digital signature","server auth"]`, certificatesv1.KubeletServingSignerName},
		{x509.CertificateRequest{Subject: node, DNSNames: []string{"a"}}, `["digital signature","client auth"]`, "kubernetes.io/legacy-unknown"},
		{x509.CertificateRequest{Subject: node}, `["digital signature","client auth","any"]`, "kubernetes.io/legacy-unknown"},
		{x509.CertificateRequest{Subject: node, EmailAddresses: []string{"a"}}, `["digital signature","client auth"]`, "kubernetes.io/legacy-unknown"},
		{x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:a"}}, `["digital signature","client auth"]`, "kubernetes.io/legacy-unknown"},
	} {
		der, err := x509.CreateCertificateRequest(nil, &c.request, key)
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
		if err != nil {
			t.Fatal(err)
		}
		obj, err := wire.DecodeStored(def, fmt.Appendf(nil, `{"kind":"CertificateSigningRequest","apiVersion":"certificates.k8s.io/v1beta1","spec":{"request":%s,"usages":%s}}`, text, c.usages))
		if err != nil {
			t.Fatal(err)
		}
		if got := obj.(*certificatesv1.CertificateSigningRequest).Spec.SignerName; got != c.want {
			t.Errorf("%v with usages %s: got signer %s, want %s", c.request.Subject, c.usages, got, c.want)
		}
	}
}
