package controller

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestUselessAt(t *testing.T) {
	made := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	decided := made.Add(time.Minute)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	certificate := func(life time.Duration) []byte {
		template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: made, NotAfter: made.Add(life)}
		der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	}
	for name, c := range map[string]struct {
		condition   certificatesv1.RequestConditionType
		certificate []byte
		want        time.Time
	}{
		"pending":               {want: made.Add(24 * time.Hour)},
		"denied":                {condition: certificatesv1.CertificateDenied, want: decided.Add(time.Hour)},
		"failed":                {condition: certificatesv1.CertificateFailed, want: decided.Add(time.Hour)},
		"approved":              {condition: certificatesv1.CertificateApproved, want: decided.Add(24 * time.Hour)},
		"issued":                {condition: certificatesv1.CertificateApproved, certificate: certificate(24 * time.Hour), want: decided.Add(time.Hour)},
		"issued for a moment":   {condition: certificatesv1.CertificateApproved, certificate: certificate(10 * time.Minute), want: made.Add(10 * time.Minute)},
		"issued and unreadable": {condition: certificatesv1.CertificateApproved, certificate: []byte("?"), want: decided.Add(time.Hour)},
		"something else":        {condition: "Other"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(made)}}
			if c.condition != "" {
				r.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
					Type: c.condition, Status: corev1.ConditionTrue, LastUpdateTime: metav1.NewTime(decided),
				}}
			}
			r.Status.Certificate = c.certificate
			if got := expiresAt(r); !got.Equal(c.want) {
				t.Errorf("useless at %v, want %v", got, c.want)
			}
		})
	}
}

func TestUnusedTokens(t *testing.T) {
	now := time.Date(2026, 6, 15, 12, 0, 0, 0, time.UTC)
	old := metav1.NewTime(now.AddDate(-2, 0, 0))
	secret := func(kind corev1.SecretType, made metav1.Time, used string) *corev1.Secret {
		s := &corev1.Secret{Type: kind, ObjectMeta: metav1.ObjectMeta{CreationTimestamp: made}}
		if used != "" {
			s.Labels = map[string]string{lastUsedLabel: used}
		}
		return s
	}
	for name, c := range map[string]struct {
		secret *corev1.Secret
		want   bool
	}{
		"never used":     {secret(corev1.SecretTypeServiceAccountToken, old, ""), true},
		"used long ago":  {secret(corev1.SecretTypeServiceAccountToken, old, "2025-06-14"), true},
		"used a year":    {secret(corev1.SecretTypeServiceAccountToken, old, "2025-06-15"), false},
		"used lately":    {secret(corev1.SecretTypeServiceAccountToken, old, "2026-06-01"), false},
		"unreadable":     {secret(corev1.SecretTypeServiceAccountToken, old, "yesterday"), false},
		"made lately":    {secret(corev1.SecretTypeServiceAccountToken, metav1.NewTime(now.AddDate(0, -1, 0)), ""), false},
		"something else": {secret(corev1.SecretTypeOpaque, old, ""), false},
	} {
		if got := isUnused(c.secret, now); got != c.want {
			t.Errorf("%s: unused is %v", name, got)
		}
	}
}
