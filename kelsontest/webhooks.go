package kelsontest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// webhookHost is where webhooks are served.
const webhookHost = "127.0.0.1"

// Webhooks is where webhooks are to be served: the server finds them there.
// What controller-runtime needs is here,
//
//	hooks := server.Webhooks()
//	webhook.NewServer(webhook.Options{Host: hooks.Host, Port: hooks.Port, CertDir: hooks.CertDir})
//
// and Serve is for everything that is a http.Handler.
type Webhooks struct {
	Host string
	Port int
	// CertDir has a certificate for Host and its key: tls.crt and tls.key.
	CertDir string
	// CA is who issued the certificate, for a caBundle.
	CA []byte

	reserved *reservation
	mu       sync.Mutex
	server   *http.Server
	ended    chan struct{}
}

// Webhooks returns where webhooks are to be served. It is the same for every
// call.
func (s *Server) Webhooks() (*Webhooks, error) {
	folder, err := s.temp()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.webhooks != nil {
		return s.webhooks, nil
	}
	cert, key, err := s.certificate(&x509.Certificate{
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.ParseIP(webhookHost)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return nil, err
	}
	h := &Webhooks{Host: webhookHost, CertDir: filepath.Join(folder, "webhooks"), CA: s.authority.CertificatePEM()}
	if err := os.MkdirAll(h.CertDir, 0o700); err != nil {
		return nil, err
	}
	for name, content := range map[string][]byte{"tls.crt": cert, "tls.key": key} {
		if err := os.WriteFile(filepath.Join(h.CertDir, name), content, 0o600); err != nil {
			return nil, err
		}
	}
	if h.reserved, err = reserve(webhookHost); err != nil {
		return nil, err
	}
	h.Port = h.reserved.port
	s.webhooks = h
	return h, nil
}

// URL is where a path of the webhooks is.
func (h *Webhooks) URL(path string) string {
	return fmt.Sprintf("https://%s:%d/%s", h.Host, h.Port, strings.TrimPrefix(path, "/"))
}

// Serve serves webhooks until the server ends.
func (h *Webhooks) Serve(handler http.Handler) error {
	cert, err := tls.LoadX509KeyPair(filepath.Join(h.CertDir, "tls.crt"), filepath.Join(h.CertDir, "tls.key"))
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.server != nil {
		return errors.New("webhooks are being served already")
	}
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", net.JoinHostPort(h.Host, fmt.Sprint(h.Port)))
	if err != nil {
		return err
	}
	h.server = &http.Server{Handler: handler, TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}}}
	h.ended = make(chan struct{})
	go func() {
		defer close(h.ended)
		_ = h.server.ServeTLS(listener, "", "") // which ends when it is closed
	}()
	return nil
}

func (h *Webhooks) close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reserved.free()
	if h.server == nil {
		return nil
	}
	err := h.server.Close()
	<-h.ended
	return err
}

// localize makes a client configuration lead here: one that names a service does
// so by its path. One with a URL is somebody else's.
func (h *Webhooks) localize(client map[string]any) {
	service, ok := client["service"].(map[string]any)
	if !ok {
		return
	}
	path, _ := service["path"].(string)
	delete(client, "service")
	client["url"], client["caBundle"] = h.URL(path), encode(h.CA)
}

// localizeAll changes the webhooks of a configuration.
func (h *Webhooks) localizeAll(config *unstructured.Unstructured) error {
	hooks, _, err := unstructured.NestedSlice(config.Object, "webhooks")
	if err != nil {
		return err
	}
	for _, hook := range hooks {
		if hook, ok := hook.(map[string]any); ok {
			if client, ok := hook["clientConfig"].(map[string]any); ok {
				h.localize(client)
			}
		}
	}
	return unstructured.SetNestedSlice(config.Object, hooks, "webhooks")
}

// localizeConversion makes the conversion webhook of a custom resource definition
// lead here; make adds one to a definition without.
func (h *Webhooks) localizeConversion(crd *unstructured.Unstructured, make bool) error {
	conversion, _, err := unstructured.NestedMap(crd.Object, "spec", "conversion")
	if err != nil {
		return err
	}
	if conversion["strategy"] != "Webhook" && make {
		conversion = map[string]any{"strategy": "Webhook", "webhook": map[string]any{
			"conversionReviewVersions": []any{"v1", "v1beta1"},
			"clientConfig":             map[string]any{"service": map[string]any{"path": "/convert"}},
		}}
	}
	if conversion["strategy"] != "Webhook" {
		return nil
	}
	if client, ok, _ := unstructured.NestedMap(conversion, "webhook", "clientConfig"); ok {
		h.localize(client)
		if err := unstructured.SetNestedMap(conversion, client, "webhook", "clientConfig"); err != nil {
			return err
		}
	}
	return unstructured.SetNestedMap(crd.Object, conversion, "spec", "conversion")
}
