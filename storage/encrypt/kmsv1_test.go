package encrypt

//lint:file-ignore SA1019 plugins of this protocol are in use, though it is deprecated

import (
	"bytes"
	"context"
	"crypto/aes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	kmsapi "k8s.io/kms/apis/v1beta1"

	"github.com/apikeel/kelson/storage"
)

// serviceV1 is a key management service of version 1 that adds a byte to everything.
type serviceV1 struct {
	kmsapi.UnimplementedKeyManagementServiceServer
	mu                 sync.Mutex
	version            string
	encrypts, decrypts int
	size               int // of the encrypted keys; zero is as they come
	broken             error
}

func (s *serviceV1) Version(context.Context, *kmsapi.VersionRequest) (*kmsapi.VersionResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &kmsapi.VersionResponse{Version: s.version}, nil
}

func (s *serviceV1) Encrypt(_ context.Context, r *kmsapi.EncryptRequest) (*kmsapi.EncryptResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.encrypts++
	sealed := append([]byte{1}, r.Plain...)
	if s.size > 0 {
		sealed = make([]byte, s.size)
	}
	return &kmsapi.EncryptResponse{Cipher: sealed}, s.broken
}

func (s *serviceV1) Decrypt(_ context.Context, r *kmsapi.DecryptRequest) (*kmsapi.DecryptResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.decrypts++
	if len(r.Cipher) == 0 {
		return nil, errors.New("nothing to decrypt")
	}
	return &kmsapi.DecryptResponse{Plain: r.Cipher[1:]}, s.broken
}

func (s *serviceV1) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *serviceV1) counts() (encrypts, decrypts int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.encrypts, s.decrypts
}

// serveKMSv1 starts a service and returns its provider in the file; more is YAML.
func serveKMSv1(t *testing.T, name, more string) (*serviceV1, string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "kms") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s, server := &serviceV1{version: "v1beta1"}, grpc.NewServer()
	kmsapi.RegisterKeyManagementServiceServer(server, s)
	var done sync.WaitGroup
	done.Go(func() { _ = server.Serve(l) })
	t.Cleanup(func() { server.Stop(); done.Wait() })
	return s, "  - kms: {name: " + name + ", endpoint: 'unix://" + socket + "'" + more + "}\n"
}

func openV1(t *testing.T, below storage.Backend, text string) *Backend {
	t.Helper()
	b, err := Open(below, Options{File: write(t, "", text), Resource: owner, KMSv1: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Release)
	return b
}

// TestKMSv1 writes and reads values, and counts the calls of the service.
func TestKMSv1(t *testing.T) {
	for _, c := range []struct {
		cache    string
		decrypts int // after the value was written and read by the same, and read twice by another backend
	}{{"", 1}, {", cachesize: 1", 1}, {", cachesize: -1", 3}} {
		s, provider := serveKMSv1(t, "k", c.cache)
		below := inMemory(t)
		b := openV1(t, below, file("secrets", provider, plain))
		if _, err := b.Create(t.Context(), key, []byte("value"), 0); err != nil {
			t.Fatal(err)
		}
		kv, err := below.Get(t.Context(), key)
		if want := "k8s:enc:kms:v1:k:\x00\x21\x01"; err != nil || !strings.HasPrefix(string(kv.Value), want) || bytes.Contains(kv.Value, []byte("value")) {
			t.Fatalf("stored: got %q, %v, want it to begin with %q", kv.Value, err, want)
		}
		other := openV1(t, below, file("secrets", provider))
		for _, b := range []*Backend{b, other, other} {
			if kv, err := b.Get(t.Context(), key); string(kv.Value) != "value" || kv.Stale || err != nil {
				t.Errorf("cache %q: got %q, stale %v, %v, want value", c.cache, kv.Value, kv.Stale, err)
			}
		}
		if encrypts, decrypts := s.counts(); encrypts != 1 || decrypts != c.decrypts {
			t.Errorf("cache %q: got %d encryptions and %d decryptions, want 1 and %d", c.cache, encrypts, decrypts, c.decrypts)
		}
	}
}

// TestKMSv1ReadsCBC reads what Kubernetes before 1.25 has written, which is stale.
func TestKMSv1ReadsCBC(t *testing.T) {
	_, provider := serveKMSv1(t, "k", "")
	below := inMemory(t)
	b := openV1(t, below, file("secrets", provider))
	secret := bytes.Repeat([]byte{7}, 32)
	block, err := aes.NewCipher(secret)
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := cbc{block}.seal(t.Context(), []byte("value"), key)
	if err != nil {
		t.Fatal(err)
	}
	head := append(binary.BigEndian.AppendUint16([]byte("k8s:enc:kms:v1:k:"), uint16(1+len(secret))), 1)
	if _, err := below.Create(t.Context(), key, append(append(head, secret...), sealed...), 0); err != nil {
		t.Fatal(err)
	}
	if kv, err := b.Get(t.Context(), key); string(kv.Value) != "value" || !kv.Stale || err != nil {
		t.Errorf("got %q, stale %v, %v, want value, which is stale", kv.Value, kv.Stale, err)
	}
}

// TestKMSv1Fails has values that are cut off, a service of another version, one that fails,
// and one whose keys are too long.
func TestKMSv1Fails(t *testing.T) {
	s, provider := serveKMSv1(t, "k", "")
	below := inMemory(t)
	b := openV1(t, below, file("secrets", provider))
	for i, text := range []string{"", "\x00", "\x00\x05abcd", "\xff\xff", "\x00\x00", "\x00\x21" + strings.Repeat("a", 33)} {
		at := fmt.Sprint(key, i)
		if _, err := below.Create(t.Context(), at, []byte("k8s:enc:kms:v1:k:"+text), 0); err != nil {
			t.Fatal(err)
		}
		if kv, err := b.Get(t.Context(), at); !errors.Is(err, ErrUnreadable) {
			t.Errorf("%q: got %q, %v, want that it cannot be read", text, kv.Value, err)
		}
	}
	for want, change := range map[string]func(){
		"KMS provider api version v0 is not supported, only v1beta1 is supported now": func() { s.version = "v0" },
		"key disabled": func() { s.broken = errors.New("key disabled") },
		"returned an encrypted key of 65536 bytes, at most 65535 can be stored": func() { s.size = 65536 },
	} {
		s.set(func() { s.version, s.broken, s.size = "v1beta1", nil, 0; change() })
		_, err := openV1(t, below, file("secrets", provider)).Create(t.Context(), key, []byte("value"), 0)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// TestHealthChecks has a check for all plugins, or one for each of KMS v1 without a reload.
func TestHealthChecks(t *testing.T) {
	s, first := serveKMSv1(t, "a", "")
	_, second := serveKMSv1(t, "b", "")
	_, third := serveKMS(t)
	for _, c := range []struct {
		file   string
		reload bool
		want   string
	}{
		{file("secrets", plain), false, ""},
		{file("secrets", plain), true, "kms-providers"},
		{file("secrets", third), false, "kms-providers"},
		{file("secrets", first, second), false, "kms-provider-0 kms-provider-1"},
		{file("secrets", first, third), false, "kms-provider-0 kms-provider-1"},
		{file("secrets", first, second), true, "kms-providers"},
	} {
		b, err := Open(inMemory(t), Options{File: write(t, "", c.file), Resource: owner, KMSv1: true, Reload: c.reload})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Release)
		var got []string
		for _, check := range b.HealthChecks() {
			got = append(got, check.Name)
			if err := check.Check(t.Context()); err != nil {
				t.Errorf("%s: got %v, want that it is healthy", check.Name, err)
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("got checks %q, want %q", got, c.want)
		}
	}
	b := openV1(t, inMemory(t), file("secrets", first, second))
	now := time.Now()
	for _, p := range b.current.Load().plugins {
		p.(*pluginV1).now = func() time.Time { return now }
	}
	s.set(func() { s.broken = errors.New("key disabled") })
	checks := b.HealthChecks()
	for _, want := range []string{"failed to perform encrypt section of the healthz check for KMS Provider a, error: rpc error", "rpc error: code = Unknown desc = key disabled"} {
		if err := checks[0].Check(t.Context()); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if err := checks[1].Check(t.Context()); err != nil {
		t.Errorf("the other service: got %v, want that it is healthy", err)
	}
	s.set(func() { s.broken = nil })
	if now = now.Add(unhealthyTTL); checks[0].Check(t.Context()) != nil {
		t.Error("got an error from a service that is healthy again, want none")
	}
}
