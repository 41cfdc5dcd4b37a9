package connect

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apikeel/kelson/egress"
	"github.com/apikeel/kelson/filewatch"
)

// kubelets has the transports to kubelets. When the files with the client certificate or
// the CA have changed, they are replaced by others: connections that were made with the
// old certificate, or to a kubelet that the old CA vouched for, are not used again.
type kubelets struct {
	cfg            Config
	log            *slog.Logger
	dial, routable egress.Dial
	now            atomic.Pointer[kubeletTransports]

	mu         sync.Mutex       // guards the fields below; held while files are looked at
	pair, ca   *filewatch.Files // nil if there are none
	lastLooked time.Time
	client     *tls.Certificate
	roots      *x509.CertPool // nil does not verify
}

// kubeletTransports are the transports until a file changes. routable is for locations that
// are Routable, and apart from the others for the reason of Connector.routablePlain.
type kubeletTransports struct{ verified, unverified, routable *http.Transport }

// newKubelets reads the files for the first time.
func newKubelets(cfg Config, dial, routable egress.Dial) (*kubelets, error) {
	k := &kubelets{cfg: cfg, log: cfg.Logger, dial: dial, routable: routable, lastLooked: time.Now()}
	if k.log == nil {
		k.log = slog.New(slog.DiscardHandler)
	}
	var err error
	if cfg.KubeletCertificate != "" {
		if k.pair, err = filewatch.Read(cfg.KubeletCertificate, cfg.KubeletKey); err == nil {
			err = k.loadPair(k.pair.Contents())
		}
		if err != nil {
			return nil, fmt.Errorf("certificate for kubelets: %w", err)
		}
	}
	if cfg.KubeletCA != "" {
		if k.ca, err = filewatch.Read(cfg.KubeletCA); err == nil {
			err = k.loadCA(k.ca.Contents())
		}
		if err != nil {
			return nil, fmt.Errorf("authority of kubelets: %w", err)
		}
	}
	k.replace()
	return k, nil
}

func (k *kubelets) loadPair(contents [][]byte) error {
	pair, err := tls.X509KeyPair(contents[0], contents[1])
	if err == nil {
		k.client = &pair
	}
	return err
}

func (k *kubelets) loadCA(contents [][]byte) error {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(contents[0]) {
		return errors.New(k.cfg.KubeletCA + " has no certificate")
	}
	k.roots = roots
	return nil
}

// replace makes new transports. Requests in flight keep the old ones.
func (k *kubelets) replace() {
	unverified := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}
	if client := k.client; client != nil {
		// It is sent whatever authorities the kubelet names.
		unverified.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return client, nil }
	}
	verified := unverified.Clone()
	if k.roots != nil {
		verified.InsecureSkipVerify, verified.RootCAs = false, k.roots
	}
	old := k.now.Swap(&kubeletTransports{transport(k.dial, verified), transport(k.dial, unverified), transport(k.routable, verified)})
	if old != nil {
		for _, t := range []*http.Transport{old.verified, old.unverified, old.routable} {
			t.CloseIdleConnections()
		}
	}
}

// current returns the transports. It looks at the files at most once in a while, and not
// while another request does.
func (k *kubelets) current() *kubeletTransports {
	if (k.pair != nil || k.ca != nil) && k.mu.TryLock() {
		if now := time.Now(); now.Sub(k.lastLooked) >= filewatch.DefaultInterval {
			k.lastLooked = now
			changed := k.pair != nil && k.pair.Follow(k.log, k.loadPair)
			changed = k.ca != nil && k.ca.Follow(k.log, k.loadCA) || changed
			if changed {
				k.replace()
			}
		}
		k.mu.Unlock()
	}
	return k.now.Load()
}
