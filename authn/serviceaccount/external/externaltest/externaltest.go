// Package externaltest is an external signer of service account tokens for tests. Start
// at Start.
package externaltest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"
	api "k8s.io/externaljwt/apis/v1"
)

// Service signs with a key that can be rotated. The fields are read with every request,
// under Mu.
type Service struct {
	api.UnimplementedExternalJWTSignerServer
	// Socket is the path of its Unix socket.
	Socket string

	Mu sync.Mutex
	// Lifetime is the longest lifetime of tokens, Refresh the refresh hint of keys,
	// both in seconds.
	Lifetime, Refresh int64
	// Hidden excludes the keys from OIDC discovery.
	Hidden bool
	// Header is the header of tokens, with a format verb for the key ID.
	Header string
	// Fetched counts the fetches of the keys.
	Fetched int

	key     *ecdsa.PrivateKey
	id      string
	keys    []*api.Key
	changed *timestamppb.Timestamp
}

// Start runs a service until the test ends.
func Start(t testing.TB) *Service {
	t.Helper()
	dir, err := os.MkdirTemp("", "signer") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &Service{Socket: filepath.Join(dir, "socket"), Lifetime: 3600 * 24, Refresh: 3600, Header: `{"alg":"ES256","typ":"JWT","kid":%q}`}
	s.Rotate(t, "first")
	listener, err := net.Listen("unix", s.Socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	api.RegisterExternalJWTSignerServer(server, s)
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		server.Stop()
		running.Wait()
	})
	return s
}

// Rotate signs with a new key from now on.
func (s *Service) Rotate(t testing.TB, id string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.key, s.id, s.changed = key, id, timestamppb.Now()
	s.keys = append(s.keys, &api.Key{KeyId: id, Key: public})
}

// Sign implements api.ExternalJWTSignerServer.
func (s *Service) Sign(_ context.Context, r *api.SignJWTRequest) (*api.SignJWTResponse, error) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	header := base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, s.Header, s.id))
	sum := sha256.Sum256([]byte(header + "." + r.Claims))
	a, b, err := ecdsa.Sign(rand.Reader, s.key, sum[:])
	if err != nil {
		return nil, err
	}
	signature := make([]byte, 64)
	a.FillBytes(signature[:32])
	b.FillBytes(signature[32:])
	return &api.SignJWTResponse{Header: header, Signature: base64.RawURLEncoding.EncodeToString(signature)}, nil
}

// FetchKeys implements api.ExternalJWTSignerServer.
func (s *Service) FetchKeys(context.Context, *api.FetchKeysRequest) (*api.FetchKeysResponse, error) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.Fetched++
	answer := &api.FetchKeysResponse{DataTimestamp: s.changed, RefreshHintSeconds: s.Refresh}
	for _, key := range s.keys {
		answer.Keys = append(answer.Keys, &api.Key{KeyId: key.KeyId, Key: key.Key, ExcludeFromOidcDiscovery: s.Hidden})
	}
	return answer, nil
}

// Metadata implements api.ExternalJWTSignerServer.
func (s *Service) Metadata(context.Context, *api.MetadataRequest) (*api.MetadataResponse, error) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return &api.MetadataResponse{MaxTokenExpirationSeconds: s.Lifetime}, nil
}
