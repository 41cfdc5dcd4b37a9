package webhook

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/transport"

	"github.com/apikeel/kelson/internal/configfile"
)

// httpsPort is the port that user names in the kubeconfig may omit.
const httpsPort = "443"

// Credentials authenticate to webhooks. They come from a kubeconfig whose users are
// named after hosts.
type Credentials struct{ config *clientcmdapi.Config }

// LoadCredentials reads a kubeconfig.
func LoadCredentials(file string) (*Credentials, error) {
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: file}
	config, err := rules.Load()
	if err != nil {
		return nil, configfile.Unquoted(err)
	}
	return &Credentials{config}, nil
}

// For returns the user for a host:port, or nil: the user of that name; that of the
// nearest domain, "*.example.com:8443"; the same without the port if it is 443; "*";
// and last that of the current context.
func (c *Credentials) For(target string) *clientcmdapi.AuthInfo {
	if c == nil {
		return nil
	}
	names := []string{target}
	if host, port, err := net.SplitHostPort(target); err == nil && port == httpsPort {
		names = append(names, host)
	}
	for _, name := range names {
		if user, ok := c.config.AuthInfos[name]; ok {
			return user
		}
		for _, domain, more := strings.Cut(name, "."); more; _, domain, more = strings.Cut(domain, ".") {
			if user, ok := c.config.AuthInfos["*."+domain]; ok {
				return user
			}
		}
	}
	if user, ok := c.config.AuthInfos["*"]; ok {
		return user
	}
	if context, ok := c.config.Contexts[c.config.CurrentContext]; ok {
		return c.config.AuthInfos[context.AuthInfo]
	}
	return nil
}

// wrap makes base, which sends requests by a transport, send the credentials for a
// host:port. It may change the TLS configuration, so the transport must not have been
// used yet.
func (c *Credentials) wrap(target string, t *http.Transport, base http.RoundTripper) (http.RoundTripper, error) {
	user := c.For(target)
	if user == nil {
		return base, nil
	}
	if user.AuthProvider != nil {
		return nil, fmt.Errorf("auth provider not supported")
	}
	config := &rest.Config{
		BearerToken: user.Token, BearerTokenFile: user.TokenFile, Username: user.Username, Password: user.Password, ExecProvider: user.Exec,
		Impersonate: rest.ImpersonationConfig{UserName: user.Impersonate, UID: user.ImpersonateUID, Groups: user.ImpersonateGroups, Extra: user.ImpersonateUserExtra},
		TLSClientConfig: rest.TLSClientConfig{
			CertFile: user.ClientCertificate, CertData: user.ClientCertificateData, KeyFile: user.ClientKey, KeyData: user.ClientKeyData,
		},
	}
	if config.BearerToken == "" && config.BearerTokenFile != "" {
		text, err := os.ReadFile(config.BearerTokenFile)
		if err != nil {
			return nil, err
		}
		config.BearerToken = string(text)
	}
	wanted, err := config.TransportConfig()
	if err != nil {
		return nil, err
	}
	own, err := transport.TLSConfigFor(wanted)
	if err != nil {
		return nil, err
	}
	if own != nil {
		t.TLSClientConfig.Certificates, t.TLSClientConfig.GetClientCertificate = own.Certificates, own.GetClientCertificate
	}
	return transport.HTTPWrappersForConfig(wanted, base)
}
