package pki

import (
	"bytes"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
)

// Kubeconfig returns the configuration with which kubectl and others reach the
// server at an address such as https://127.0.0.1:6443, as its administrator. A
// server that shows certificates of somebody else's wants them, or who issued
// them, to be trusted too.
func (a *Authority) Kubeconfig(server string, trusted ...[]byte) ([]byte, error) {
	key, err := x509.MarshalPKCS8PrivateKey(a.admin.PrivateKey)
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
    certificate-authority-data: %s
users:
- name: %[3]s
  user:
    client-certificate-data: %[4]s
    client-key-data: %[5]s
contexts:
- name: kelson
  context:
    cluster: kelson
    user: %[3]s
current-context: kelson
`, server, encode(bytes.Join(append([][]byte{a.pem}, trusted...), []byte("\n"))), AdminUser,
		encode(encodeCert(a.admin.Certificate[0])),
		encode(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))), nil
}

// WriteKubeconfig writes the Kubeconfig to a file that only its owner can read.
// The file is replaced whole; its folder is made if need be.
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
