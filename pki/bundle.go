package pki

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"sync/atomic"

	"k8s.io/client-go/util/cert"

	"github.com/apikeel/kelson/filewatch"
)

// Bundle is a set of CAs from files, which are reloaded when they change.
type Bundle struct {
	base  []byte
	files *filewatch.Files
	pool  atomic.Pointer[x509.CertPool]
}

// OpenBundle reads CAs from files, and from base in PEM, which may be empty.
func OpenBundle(base []byte, paths ...string) (*Bundle, error) {
	files, err := filewatch.Read(paths...)
	if err != nil {
		return nil, err
	}
	b := &Bundle{base: base, files: files}
	return b, b.load(files.Contents())
}

func (b *Bundle) load(contents [][]byte) error {
	pool := x509.NewCertPool()
	for i, content := range append([][]byte{b.base}, contents...) {
		if i == 0 && len(content) == 0 {
			continue
		}
		if len(bytes.TrimSpace(content)) == 0 {
			return fmt.Errorf("missing content for CA bundle")
		}
		certs, err := cert.ParseCertsPEM(content)
		if err != nil {
			return fmt.Errorf("error loading CA bundle: %w", err)
		}
		for _, c := range certs {
			pool.AddCert(c)
		}
	}
	b.pool.Store(pool)
	return nil
}

// Pool returns the current CAs: the same pool until they change.
func (b *Bundle) Pool() *x509.CertPool { return b.pool.Load() }

// Watch reloads the files when they change, until ctx ends.
func (b *Bundle) Watch(ctx context.Context, logger *slog.Logger) { b.files.Watch(ctx, logger, b.load) }
