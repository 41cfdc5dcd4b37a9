package controller

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// How long CertificateSigningRequests are kept after approval or denial, and without one;
// and how long PodCertificateRequests are kept.
const (
	decidedFor    = time.Hour
	undecidedFor  = 24 * time.Hour
	podRequestFor = 15 * time.Minute
)

// RequestCleaner deletes old CertificateSigningRequests.
func RequestCleaner() Controller {
	return Controller{Name: "certificatesigningrequest-cleaner-controller", Alias: "csrcleaner", Account: "certificate-controller", Start: func(env *Env) Observer {
		var e *each
		e = onEach(env, 2, certificatesv1.GroupName, "certificatesigningrequests", func(ctx context.Context, key named) error {
			kind := env.Kind("certificates.k8s.io/v1", "CertificateSigningRequest")
			var r certificatesv1.CertificateSigningRequest
			if err := env.Get(ctx, kind, "", key.name, &r); err != nil {
				return ignoreNotFound(err)
			}
			return env.expire(ctx, e.queue, key, kind, expiresAt(&r), ifUnchanged(&r.ObjectMeta))
		})
		return e
	}}
}

// expiresAt returns when a request is to be deleted; the zero time is never.
func expiresAt(r *certificatesv1.CertificateSigningRequest) (at time.Time) {
	earlier := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	after := func(t metav1.Time, d time.Duration) {
		if !t.IsZero() {
			earlier(t.Add(d))
		}
	}
	if len(r.Status.Conditions) == 0 {
		after(r.CreationTimestamp, undecidedFor)
	}
	for _, c := range r.Status.Conditions {
		switch c.Type {
		case certificatesv1.CertificateDenied, certificatesv1.CertificateFailed:
			after(c.LastUpdateTime, decidedFor)
		case certificatesv1.CertificateApproved:
			if len(r.Status.Certificate) == 0 {
				after(c.LastUpdateTime, undecidedFor)
				continue
			}
			after(c.LastUpdateTime, decidedFor)
			if block, _ := pem.Decode(r.Status.Certificate); block != nil {
				if issued, err := x509.ParseCertificate(block.Bytes); err == nil {
					earlier(issued.NotAfter)
				}
			}
		}
	}
	return at
}

// PodRequestCleaner deletes PodCertificateRequests after podRequestFor.
func PodRequestCleaner() Controller {
	const name = "podcertificaterequest-cleaner-controller"
	return Controller{Name: name, Alias: name, Account: "podcertificaterequestcleaner", Start: func(env *Env) Observer {
		var e *each
		e = onEach(env, 2, certificatesv1.GroupName, "podcertificaterequests", func(ctx context.Context, key named) error {
			kind, ok := env.Feed.Served(certificatesv1.GroupName, "podcertificaterequests")
			if !ok {
				return nil
			}
			m, err := env.Metadata(ctx, kind, key.namespace, key.name)
			if err != nil {
				return ignoreNotFound(err)
			}
			return env.expire(ctx, e.queue, key, kind, m.CreationTimestamp.Add(podRequestFor), &metav1.DeleteOptions{
				Preconditions: &metav1.Preconditions{UID: &m.UID},
			})
		})
		return e
	}}
}
