package controller_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

var signingRequests = certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests")

// request makes a certificate signing request.
func (c *cluster) request(name, signer string, subject pkix.Name, usages ...certificatesv1.KeyUsage) *certificatesv1.CertificateSigningRequest {
	c.Helper()
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(c)
	der := must(x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key))(c)
	hour := int32(3600)
	return must(c.CertificatesV1().CertificateSigningRequests().Create(c.Context(), &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: signer, Usages: usages, ExpirationSeconds: &hour,
		},
	}, metav1.CreateOptions{}))(c)
}

// decided waits until a request has a certificate, or has failed.
func (c *cluster) decided(name string) (r certificatesv1.CertificateSigningRequest) {
	c.Helper()
	c.until(signingRequests, "", func(objs map[string]*unstructured.Unstructured) bool {
		r = certificatesv1.CertificateSigningRequest{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(objs["/"+name].Object, &r); err != nil {
			c.Fatal(err)
		}
		return len(r.Status.Certificate) > 0 || len(r.Status.Conditions) > 1
	})
	return r
}

func (c *cluster) approve(r *certificatesv1.CertificateSigningRequest) {
	c.Helper()
	r.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test", Message: "by a test"}}
	must(c.CertificatesV1().CertificateSigningRequests().UpdateApproval(c.Context(), r.Name, r, metav1.UpdateOptions{}))(c)
}

func TestSigning(t *testing.T) {
	c := start(t)
	r := c.request("jane", certificatesv1.KubeAPIServerClientSignerName, pkix.Name{CommonName: "jane"}, certificatesv1.UsageClientAuth)
	c.approve(r)
	signed := c.decided("jane")
	block, _ := pem.Decode(signed.Status.Certificate)
	cert := must(x509.ParseCertificate(block.Bytes))(t)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(c.Config().CAData)
	if _, err := cert.Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Error(err)
	}
	if left := time.Until(cert.NotAfter); cert.Subject.CommonName != "jane" || left > time.Hour || left < 50*time.Minute {
		t.Errorf("%v for %v", cert.Subject, left)
	}
	c.approve(c.request("wrong", certificatesv1.KubeAPIServerClientSignerName, pkix.Name{CommonName: "joe"}, certificatesv1.UsageServerAuth))
	failed := c.decided("wrong")
	if last := failed.Status.Conditions[len(failed.Status.Conditions)-1]; last.Type != certificatesv1.CertificateFailed ||
		last.Reason != "SignerValidationFailure" || last.Message != "invalid usage for client certificate: server auth" {
		t.Errorf("%+v", last)
	}
}

func TestApproving(t *testing.T) {
	c := start(t)
	must(c.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "join"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:certificates.k8s.io:certificatesigningrequests:nodeclient"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "system:authenticated"}},
	}, metav1.CreateOptions{}))(t)
	c.request("node", certificatesv1.KubeAPIServerClientKubeletSignerName,
		pkix.Name{CommonName: "system:node:n", Organization: []string{"system:nodes"}}, certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth)
	r := c.decided("node")
	if r.Status.Conditions[0].Reason != "AutoApproved" || len(r.Status.Certificate) == 0 {
		t.Errorf("%+v", r.Status)
	}
}
