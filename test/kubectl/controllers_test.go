package kubectl

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"
)

// owned is the manifest of an object with an owner.
func owned(apiVersion, kind, name, owner, rest string) string {
	return fmt.Sprintf(`
apiVersion: %s
kind: %s
metadata:
  name: %s
  labels: {app: tree}
  ownerReferences: [%s]
%s`, apiVersion, kind, name, owner, rest)
}

// TestTree deletes a Deployment with the ReplicaSet and the pods that its
// controllers would have made, in every way that there is.
func TestTree(t *testing.T) {
	s := start(t)
	reference := func(apiVersion, kind, name string) string {
		uid := s.run(fmt.Sprintf("get %s %s -o jsonpath={.metadata.uid}", kind, name))
		return fmt.Sprintf(`{apiVersion: %s, kind: %s, name: %s, uid: %s, controller: true, blockOwnerDeletion: true}`, apiVersion, kind, name, strings.TrimSpace(uid))
	}
	const template = `
  selector: {matchLabels: {app: tree}}
  template:
    metadata: {labels: {app: tree}}
    spec: {containers: [{name: c, image: i}]}`
	build := func(name string) {
		s.file("tree.yaml", owned("apps/v1", "Deployment", name, "", "spec:"+template))
		s.run("create -f @tree.yaml", "created")
		s.file("tree.yaml", owned("apps/v1", "ReplicaSet", name+"-rs", reference("apps/v1", "Deployment", name), "spec:"+template))
		s.run("create -f @tree.yaml", "created")
		for i := range 2 {
			s.file("tree.yaml", owned("v1", "Pod", fmt.Sprintf("%s-%d", name, i), reference("apps/v1", "ReplicaSet", name+"-rs"), "spec: {containers: [{name: c, image: i}]}"))
			s.run("create -f @tree.yaml", "created")
		}
	}
	for _, cascade := range []string{"foreground", "background"} {
		build(cascade)
		s.run("delete deployment "+cascade+" --cascade="+cascade+" --timeout=30s", "deleted")
		s.run(fmt.Sprintf("wait --for=delete rs/%s-rs pod/%s-0 pod/%s-1 --timeout=30s", cascade, cascade, cascade))
	}
	build("orphan")
	s.run("delete deployment orphan --cascade=orphan --timeout=30s", "deleted")
	s.fails("get deployment orphan", "NotFound")
	s.run("get rs orphan-rs -o jsonpath={.metadata.name}{.metadata.ownerReferences}", "orphan-rs")
	s.run("get pods -o name", "pod/orphan-0", "pod/orphan-1")
	s.run("delete rs orphan-rs --timeout=30s", "deleted")
	s.run("wait --for=delete pod/orphan-0 pod/orphan-1 --timeout=30s")
}

// TestNamespaces has what every namespace has, and ends one with its content.
func TestNamespaces(t *testing.T) {
	s := start(t)
	s.run("create namespace lab", "created")
	s.run("wait --for=create sa/default -n lab --timeout=30s")
	s.run("get sa -n lab", "default")
	s.run("wait --for=create configmap/kube-root-ca.crt -n lab --timeout=30s")
	s.run("create secret generic s -n lab", "created")
	s.run("create deployment web --image=i -n lab", "created")
	s.run("delete namespace lab --timeout=30s", "deleted")
	s.fails("get namespace lab", "NotFound")
	s.run("create namespace lab", "created")
	s.run("get deployments,secrets -n lab")
}

// TestCertificates asks for certificates, of which one is approved and one not.
func TestCertificates(t *testing.T) {
	s := start(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane", Organization: []string{"dev"}}}, key)
	if err != nil {
		t.Fatal(err)
	}
	request := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
	for _, name := range []string{"yes", "no"} {
		s.file("csr.yaml", fmt.Sprintf(`
apiVersion: certificates.k8s.io/v1
kind: CertificateSigningRequest
metadata: {name: "%s"}
spec: {request: %s, signerName: kubernetes.io/kube-apiserver-client, usages: [client auth]}
`, name, request))
		s.run("create -f @csr.yaml", "created")
	}
	s.run("get csr", "Pending")
	s.run("certificate approve yes", "approved")
	s.run("certificate deny no", "denied")
	s.run("wait --for=jsonpath={.status.certificate} csr/yes --timeout=30s", "condition met")
	s.run("get csr yes", "Approved,Issued")
	s.run("get csr no", "Denied")
	text, err := base64.StdEncoding.DecodeString(strings.TrimSpace(s.run("get csr yes -o jsonpath={.status.certificate}")))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		t.Fatalf("no certificate: %s", text)
	}
	if issued, err := x509.ParseCertificate(block.Bytes); err != nil || issued.Subject.CommonName != "jane" {
		t.Errorf("certificate of %v, %v", issued.Subject, err)
	}
}
