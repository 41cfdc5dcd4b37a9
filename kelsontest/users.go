package kelsontest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/apikeel/kelson/authn"
	"github.com/apikeel/kelson/request"
	"github.com/google/uuid"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// User returns a configuration for clients of a user in groups, who has a client
// certificate. Roles say what the user may do; the group system:masters may do
// everything.
func (s *Server) User(name string, groups ...string) *rest.Config {
	cert, key, err := s.certificate(&x509.Certificate{
		Subject:     pkix.Name{CommonName: name, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		panic(err) // there is nothing that a caller could have done wrong
	}
	config := s.anonymous()
	config.CertData, config.KeyData = cert, key
	return s.handOut(config)
}

// Token returns a configuration for clients of a user in groups, who has a
// bearer token. ExpireTokens ends it.
func (s *Server) Token(name string, groups ...string) *rest.Config {
	config := s.anonymous()
	config.BearerToken = s.tokens.issue(request.User{Name: name, Groups: slices.Clone(groups)})
	return s.handOut(config)
}

// anonymous is a configuration that shows nothing.
func (s *Server) anonymous() *rest.Config {
	config := rest.AnonymousClientConfig(s.admin().config)
	config.QPS = -1
	return config
}

// handOut returns a copy of a configuration whose connections are closed with
// the server.
func (s *Server) handOut(config *rest.Config) *rest.Config {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.configs = append(s.configs, config)
	return rest.CopyConfig(config)
}

// ExpireTokens ends all bearer tokens that there are, those of service accounts
// too: who shows one is told 401. Tokens that are issued from now on are good,
// and for that the clock of the server moves on by a second.
func (s *Server) ExpireTokens() {
	s.clock.mu.Lock()
	until := s.clock.now()
	s.clock.mu.Unlock()
	s.tokens.expire(until)
	s.clock.Advance(time.Second)
}

// certificate issues a certificate as a template says, and returns it and its
// key as PEM.
func (s *Server) certificate(template *x509.Certificate) (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, nil, err
	}
	template.SerialNumber, template.KeyUsage = serial, x509.KeyUsageDigitalSignature
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	if cert, err = s.authority.Sign(template, private.Public()); err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	return cert, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), err
}

// KubeconfigFile writes a configuration that this server has handed out into a
// file for kubectl and other programs, and returns its path. The file goes with
// the server. Nil stands for Config.
func (s *Server) KubeconfigFile(config *rest.Config) (string, error) {
	content := s.admin().kubeconfig
	if config != nil {
		const name = "kelsontest"
		var err error
		if content, err = clientcmd.Write(clientcmdapi.Config{
			CurrentContext: name,
			Clusters:       map[string]*clientcmdapi.Cluster{name: {Server: config.Host, CertificateAuthorityData: config.CAData}},
			Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
			AuthInfos: map[string]*clientcmdapi.AuthInfo{name: {
				ClientCertificateData: config.CertData, ClientKeyData: config.KeyData, Token: config.BearerToken,
			}},
		}); err != nil {
			return "", err
		}
	}
	folder, err := s.temp()
	if err != nil {
		return "", err
	}
	path := filepath.Join(folder, "kubeconfig-"+uuid.NewString())
	return path, os.WriteFile(path, content, 0o600)
}

// tokens knows the bearer tokens that the server has handed out, and which others
// have ended.
type tokens struct {
	mu      sync.Mutex
	users   map[string]request.User // by token
	expired int64                   // tokens that were issued in this second or before have ended
}

func (t *tokens) issue(user request.User) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.users == nil {
		t.users = map[string]request.User{}
	}
	token := "kelsontest-" + uuid.NewString()
	t.users[token] = user
	return token
}

func (t *tokens) expire(until time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.users = nil
	t.expired = until.Unix()
}

// AuthenticateToken implements authn.Tokens.
func (t *tokens) AuthenticateToken(_ context.Context, token string, _ []string) (*authn.Identity, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	user, ok := t.users[token]
	if !ok {
		return nil, nil
	}
	user.Groups = append(slices.Clone(user.Groups), "system:authenticated")
	return &authn.Identity{User: user}, nil
}

var errExpired = errors.New("the token has expired")

// unexpired refuses tokens that have ended by ExpireTokens, and leaves the rest to
// others.
func (t *tokens) unexpired(next func(*http.Request) (request.User, bool, error)) func(*http.Request) (request.User, bool, error) {
	return func(r *http.Request) (request.User, bool, error) {
		t.mu.Lock()
		expired := t.expired
		t.mu.Unlock()
		if expired != 0 {
			token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
			if issued, ok := issuedAt(token); ok && issued <= expired {
				return request.User{}, false, errExpired
			}
		}
		return next(r)
	}
}

// issuedAt tells in which second a token was issued, if it says so.
func issuedAt(token string) (int64, bool) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return 0, false
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return 0, false
	}
	var claims struct {
		IssuedAt *float64 `json:"iat"`
	}
	if json.Unmarshal(payload, &claims) != nil || claims.IssuedAt == nil {
		return 0, false
	}
	return int64(*claims.IssuedAt), true
}
