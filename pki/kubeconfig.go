package pki

import (
	"bytes"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// Kubeconfig returns a kubeconfig for the administrator of the server at an address
// such as https://127.0.0.1:6443. trusted are the certificates, or their CAs, that the
// server presents instead of its own; the first is the default one. If that is not
// valid for the address, the kubeconfig sets tls-server-name.
func (a *Authority) Kubeconfig(server string, trusted ...[]byte) ([]byte, error) {
	admin, err := a.adminCertificate()
	if err != nil {
		return nil, err
	}
	key, err := x509.MarshalPKCS8PrivateKey(admin.PrivateKey)
	if err != nil {
		return nil, err
	}
	encode := base64.StdEncoding.EncodeToString
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters:
- name: kelson
  cluster:
    server: %q
    certificate-authority-data: %s%s
users:
- name: %[4]s
  user:
    client-certificate-data: %[5]s
    client-key-data: %[6]s
contexts:
- name: kelson
  context:
    cluster: kelson
    user: %[4]s
current-context: kelson
`, server, encode(bytes.Join(append([][]byte{a.pem}, trusted...), []byte("\n"))), serverName(server, trusted), AdminUser,
		encode(encodeCert(admin.Certificate[0])),
		encode(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))), nil
}

// serverName returns the line tls-server-name, if the presented certificate is not
// valid for the address.
func serverName(server string, shown [][]byte) string {
	address, err := url.Parse(server)
	if err != nil || len(shown) == 0 {
		return ""
	}
	block, _ := pem.Decode(shown[0])
	if block == nil {
		return ""
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil || cert.VerifyHostname(address.Hostname()) == nil {
		return ""
	}
	name := ""
	switch {
	case len(cert.DNSNames) > 0:
		name = strings.Replace(cert.DNSNames[0], "*", "kelson", 1)
	case len(cert.IPAddresses) > 0:
		name = cert.IPAddresses[0].String()
	default:
		return ""
	}
	return fmt.Sprintf("\n    tls-server-name: %q", name)
}

// WriteKubeconfig writes the kubeconfig to a file that only its owner can read. The
// file is replaced atomically; its folder is created if it does not exist.
func (a *Authority) WriteKubeconfig(path, server string, trusted ...[]byte) error {
	content, err := a.Kubeconfig(server, trusted...)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("folder for the kubeconfig: %w", err)
	}
	return writeFile(path, content, 0o600)
}
