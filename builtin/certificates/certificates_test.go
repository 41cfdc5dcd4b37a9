package certificates

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/resource"
)

// wantDetails compares what errors say with texts that they should contain.
func wantDetails(t *testing.T, errs field.ErrorList, want ...string) {
	t.Helper()
	if len(errs) != len(want) {
		t.Fatalf("%v, want %q", errs, want)
	}
	for i, w := range want {
		if !strings.Contains(errs[i].Error(), w) {
			t.Errorf("%v, want %q", errs[i], w)
		}
	}
}

func TestBundleName(t *testing.T) {
	for _, test := range []struct {
		name, signer string
		ok           bool
	}{
		{"a", "", true}, {"a:b", "", false}, {"A", "", false},
		{"example.com:x:a", "example.com/x", true}, {"a", "example.com/x", false}, {"example.com:x:", "example.com/x", false},
	} {
		if problems := bundleNameProblems(test.name, test.signer, false); (len(problems) == 0) != test.ok {
			t.Errorf("%s of %q: %v", test.name, test.signer, problems)
		}
	}
}

func TestRequestChange(t *testing.T) {
	with := func(certificate string, types ...certificatesv1.RequestConditionType) *signingRequest {
		r := &signingRequest{Status: certificatesv1.CertificateSigningRequestStatus{Certificate: []byte(certificate)}}
		for _, t := range types {
			r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{Type: t, Status: corev1.ConditionTrue})
		}
		return r
	}
	const approved, failed = certificatesv1.CertificateApproved, certificatesv1.CertificateFailed
	for name, test := range map[string]struct {
		r, old         *signingRequest
		decides, signs bool
		want           []string
	}{
		"approve":            {r: with("", approved), old: with(""), decides: true},
		"approve elsewhere":  {r: with("", approved), old: with(""), signs: true, want: []string{`may not add a condition of type "Approved"`}},
		"take back":          {r: with(""), old: with("", approved), decides: true, want: []string{`may not remove a condition of type "Approved"`}},
		"fail":               {r: with("", failed), old: with(""), signs: true},
		"unfail":             {r: with(""), old: with("", failed), signs: true, want: []string{`may not remove a condition of type "Failed"`}},
		"sign":               {r: with("x"), old: with(""), signs: true},
		"sign elsewhere":     {r: with("x"), old: with(""), decides: true, want: []string{"may not set certificate content"}},
		"sign once more":     {r: with("y"), old: with("x"), signs: true, want: []string{"may not modify existing certificate content"}},
		"nothing, but twice": {r: with("x", approved, approved), old: with("x", approved, approved)},
	} {
		t.Run(name, func(t *testing.T) {
			wantDetails(t, validateRequestChange(test.r, test.old, test.decides, test.signs), test.want...)
		})
	}
}

func TestConditionTimes(t *testing.T) {
	before, now := metav1.Unix(100, 0), time.Unix(200, 0)
	old := &signingRequest{}
	old.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: "X", Status: corev1.ConditionTrue, LastTransitionTime: before}}
	conditions := []certificatesv1.CertificateSigningRequestCondition{
		{Type: "X", Status: corev1.ConditionTrue}, {Type: "X", Status: corev1.ConditionFalse}, {Type: "Y", LastTransitionTime: before, LastUpdateTime: before},
	}
	stampConditions(conditions, old, now)
	for i, want := range []struct{ transition, update int64 }{{100, 200}, {200, 200}, {100, 100}} {
		if c := conditions[i]; c.LastTransitionTime.Unix() != want.transition || c.LastUpdateTime.Unix() != want.update {
			t.Errorf("condition %d: %v", i, c)
		}
	}
}

// TestIssued judges certificates that end the request of a pod.
func TestIssued(t *testing.T) {
	key, other := newKey(t), newKey(t)
	stub, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().Truncate(time.Second)
	old := &podRequest{}
	old.Spec.StubPKCS10Request, old.Spec.MaxExpirationSeconds = stub, new(int32(2*3600))
	issue := func(key *ecdsa.PrivateKey, start time.Time, life time.Duration, change func(*x509.Certificate)) string {
		template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "x"}, NotBefore: start, NotAfter: start.Add(life)}
		change(template)
		der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: der})
		return b.String()
	}
	plain := func(*x509.Certificate) {}
	good := issue(key, now, time.Hour, plain)
	for name, test := range map[string]struct {
		chain   string
		start   time.Time
		life    time.Duration
		refresh time.Duration
		want    []string
	}{
		"right":           {chain: good + good},
		"nothing":         {want: []string{"at least one certificate"}},
		"another key":     {chain: issue(other, now, time.Hour, plain), want: []string{"requested public key"}},
		"names":           {chain: issue(key, now, time.Hour, func(c *x509.Certificate) { c.DNSNames = []string{"a..b"} }), want: []string{"should not contain '..'"}},
		"old":             {chain: issue(key, now.Add(-time.Hour), 2*time.Hour, plain), start: now.Add(-time.Hour), life: 2 * time.Hour, want: []string{"within 5 minutes"}},
		"another time":    {chain: good, start: now.Add(time.Second), want: []string{"NotBefore time encoded"}},
		"short":           {chain: issue(key, now, time.Minute, plain), life: time.Minute, want: []string{">= 1 hour"}},
		"long":            {chain: issue(key, now, 3*time.Hour, plain), life: 3 * time.Hour, want: []string{"spec.maxExpirationSeconds (7200)"}},
		"refreshed early": {chain: good, refresh: time.Minute, want: []string{"10 minutes after"}},
		"refreshed late":  {chain: good, refresh: 55 * time.Minute, want: []string{"10 minutes before"}},
		"garbage at end":  {chain: good + "-----BEGIN X-----\n-----END X-----\n", want: []string{"entirely of CERTFICATE"}},
	} {
		t.Run(name, func(t *testing.T) {
			if test.start.IsZero() {
				test.start = now
			}
			if test.life == 0 {
				test.life = time.Hour
			}
			if test.refresh == 0 {
				test.refresh = 30 * time.Minute
			}
			r := old.DeepCopy()
			r.Status.CertificateChain = test.chain
			r.Status.NotBefore, r.Status.NotAfter = new(metav1.NewTime(test.start)), new(metav1.NewTime(test.start.Add(test.life)))
			r.Status.BeginRefreshAt = new(metav1.NewTime(test.start.Add(test.refresh)))
			r.Status.Conditions = []metav1.Condition{{Type: issued, Status: metav1.ConditionTrue, Reason: "R", LastTransitionTime: metav1.NewTime(now)}}
			wantDetails(t, validatePodRequestStatus(r, old, now), test.want...)
			if len(test.want) == 0 {
				wantDetails(t, validatePodRequestStatus(old, r, now), "immutable after")
			}
		})
	}
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// TestIssuedDurationsAreNoted has each issued certificate noted once, if a duration was
// asked for, and whether it is of that duration.
func TestIssuedDurationsAreNoted(t *testing.T) {
	key := newKey(t)
	issue := func(life time.Duration) []byte {
		template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now(), NotAfter: time.Now().Add(life)}
		der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	}
	hour, day := issue(time.Hour), issue(24*time.Hour)
	for _, c := range []struct {
		name        string
		asked       *int32
		before, now []byte
		became      resource.Outcome
		want        string
	}{
		{"honored", new(int32(3600)), nil, hour, resource.Written, "s true"},
		{"not honored", new(int32(3600)), nil, day, resource.Written, "s false"},
		{"no certificate", new(int32(3600)), nil, []byte("x"), resource.Written, "s false"},
		{"nothing asked", nil, nil, hour, resource.Written, ""},
		{"nothing issued", new(int32(3600)), nil, nil, resource.Written, ""},
		{"issued before", new(int32(3600)), hour, hour, resource.Written, ""},
		{"not written", new(int32(3600)), nil, hour, resource.NotWritten, ""},
	} {
		got := ""
		d := SigningRequests(func(signer string, honored bool) { got += fmt.Sprint(signer, " ", honored) })
		old, r := &signingRequest{}, &signingRequest{}
		old.Spec.ExpirationSeconds, old.Spec.SignerName, old.Status.Certificate = c.asked, "s", c.before
		r.Status.Certificate = c.now
		end, err := d.Subresources[1].Part.Begin(t.Context(), r, old)
		if err != nil {
			t.Fatal(err)
		}
		if end(c.became); got != c.want {
			t.Errorf("%s: noted %q, want %q", c.name, got, c.want)
		}
	}
}
