package pki

import (
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"time"
)

// Sign issues a certificate by a template for somebody's public key, and returns it in
// PEM. It does not outlive the CA.
func (a *Authority) Sign(template *x509.Certificate, key any) ([]byte, error) {
	if !time.Now().Before(a.cert.NotAfter) {
		return nil, fmt.Errorf("the signer has expired: NotAfter=%v", a.cert.NotAfter)
	}
	cert := *template
	if cert.NotAfter.After(a.cert.NotAfter) {
		cert.NotAfter = a.cert.NotAfter
	}
	der, err := x509.CreateCertificate(rand.Reader, &cert, a.cert, key, a.key)
	if err != nil {
		return nil, err
	}
	return encodeCert(der), nil
}
