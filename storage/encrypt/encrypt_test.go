package encrypt

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	kmsapi "k8s.io/kms/apis/v2"

	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/memory"
	"github.com/apikeel/kelson/storage/storagetest"
	"github.com/apikeel/kelson/trace"
)

func secret(first byte) string {
	return base64.StdEncoding.EncodeToString(append([]byte{first}, make([]byte, 31)...))
}

// provider returns a provider of the file with keys that have their first byte
// as a name.
func provider(kind, names string) string {
	text := "  - " + kind + ":\n      keys:\n"
	for i := range names {
		text += fmt.Sprintf("      - {name: %q, secret: %s}\n", names[i:i+1], secret(names[i]))
	}
	return text
}

const plain = "  - identity: {}\n"

func file(resources string, providers ...string) string {
	return "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [" + resources + "]\n  providers:\n" + strings.Join(providers, "")
}

func write(t testing.TB, path, text string) string {
	t.Helper()
	if path == "" {
		path = filepath.Join(t.TempDir(), "encryption.yaml")
	}
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	return path
}

// owner takes the first word of a key as a resource of the core group.
func owner(key string) (group, resource string) {
	name, _, _ := strings.Cut(strings.TrimPrefix(key, storage.Root), "/")
	return "", name
}

func inMemory(t testing.TB) storage.Backend {
	t.Helper()
	b := memory.New(memory.Options{})
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func open(t testing.TB, below storage.Backend, text string) *Backend {
	t.Helper()
	b, err := Open(below, Options{File: write(t, "", text), Resource: owner})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Release)
	return b
}

// TestSuite judges the backend as any other.
func TestSuite(t *testing.T) {
	storagetest.Run(t, storagetest.Subject{Open: func(t testing.TB) storage.Backend {
		return open(t, inMemory(t), file("'*.*'", provider("aesgcm", "a")))
	}})
}

const key = storage.Root + "secrets/default/s"

// TestFormats checks what is stored, who can read it, and that it is told when
// it should be written anew.
func TestFormats(t *testing.T) {
	for _, c := range []struct{ name, file, prefix string }{
		{"plain", file("secrets", plain), "value"},
		{"cbc", file("secrets", provider("aescbc", "a"), plain), "k8s:enc:aescbc:v1:a:"},
		{"gcm", file("secrets", provider("aesgcm", "ba")), "k8s:enc:aesgcm:v1:b:"},
		{"box", file("secrets", provider("secretbox", "a")), "k8s:enc:secretbox:v1:a:"},
		{"other", file("configmaps", provider("secretbox", "a")), "value"},
		{"group", file("'*.'", provider("aesgcm", "a")), "k8s:enc:aesgcm:v1:a:"},
		{"all", file("'*.*'", provider("aesgcm", "a")), "k8s:enc:aesgcm:v1:a:"},
	} {
		t.Run(c.name, func(t *testing.T) {
			below := inMemory(t)
			if _, err := open(t, below, c.file).Create(t.Context(), key, []byte("value"), 0); err != nil {
				t.Fatal(err)
			}
			kv, err := below.Get(t.Context(), key)
			if err != nil || !bytes.HasPrefix(kv.Value, []byte(c.prefix)) {
				t.Errorf("stored is %q, %v, want %s…", kv.Value, err, c.prefix)
			}
			if kv, err = open(t, below, c.file).Get(t.Context(), key); string(kv.Value) != "value" || kv.Stale || err != nil {
				t.Errorf("read is %q, %v, stale %v", kv.Value, err, kv.Stale)
			}
			all := file("secrets", provider("aescbc", "ca"), provider("aesgcm", "cab"), provider("secretbox", "ca"), plain)
			if kv, err = open(t, below, all).Get(t.Context(), key); string(kv.Value) != "value" || !kv.Stale || err != nil {
				t.Errorf("read by others it is %q, %v, stale %v", kv.Value, err, kv.Stale)
			}
		})
	}
}

// TestValuesAreBoundToTheKeyInEtcd stores a value as kube-apiserver does with
// --etcd-prefix=/a/b, and reads it with that prefix and with another one.
func TestValuesAreBoundToTheKeyInEtcd(t *testing.T) {
	with := func(below storage.Backend, prefix string) *Backend {
		b, err := Open(below, Options{File: write(t, "", file("secrets", provider("aesgcm", "a"))), Resource: owner, Prefix: prefix})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Release)
		return b
	}
	below := inMemory(t)
	b := with(below, "/a/b")
	theirs, err := b.transformer(key).seal(t.Context(), []byte("value"), "/a/b/secrets/default/s")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := below.Create(t.Context(), key, theirs, 0); err != nil {
		t.Fatal(err)
	}
	for prefix, want := range map[string]string{"/a/b": "value", "a/b/": "value", "": "", "/a": ""} {
		if kv, err := with(below, prefix).Get(t.Context(), key); string(kv.Value) != want || (err == nil) != (want != "") {
			t.Errorf("with the prefix %q got %q, %v, want %q", prefix, kv.Value, err, want)
		}
	}
	kv, err := b.Get(t.Context(), key)
	if err == nil {
		_, err = b.Update(t.Context(), key, []byte("other"), kv.ModRevision, 0)
	}
	if err == nil {
		kv, err = below.Get(t.Context(), key)
	}
	if err != nil {
		t.Fatal(err)
	}
	if value, _, err := b.transformer(key).open(t.Context(), kv.Value, "/a/b/secrets/default/s"); string(value) != "other" {
		t.Errorf("what was written is for kube-apiserver %q, %v, want %q", value, err, "other")
	}
}

func TestUnreadable(t *testing.T) {
	for _, c := range []struct{ name, write, read, want string }{
		{"plain only", file("secrets", provider("aescbc", "a")), file("secrets", plain), "no matching prefix found"},
		{"not named", file("secrets", provider("aescbc", "a")), file("configmaps", plain), "identity transformer tried to read encrypted data"},
		{"no plain", file("secrets", plain), file("secrets", provider("aescbc", "a")), "no matching prefix found"},
		{"other key", file("secrets", provider("aescbc", "a")), file("secrets", provider("aescbc", "b")), "no matching key was found for the provided AES transformer"},
		{"other box", file("secrets", provider("secretbox", "a")), file("secrets", provider("secretbox", "b")), "no matching key was found for the provided Secretbox transformer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			below := inMemory(t)
			if _, err := open(t, below, c.write).Create(t.Context(), key, []byte("value"), 0); err != nil {
				t.Fatal(err)
			}
			b := open(t, below, c.read)
			if _, err := b.Get(t.Context(), key); !errors.Is(err, ErrUnreadable) || err.Error() != c.want {
				t.Errorf("get: %v, want %s", err, c.want)
			}
			page, err := b.List(t.Context(), storage.Root, storage.ListOptions{})
			if err != nil || len(page.Items) != 1 || page.Items[0].Err == nil || page.Items[0].Err.Error() != c.want {
				t.Errorf("list: %+v, %v, want %s", page, err, c.want)
			}
		})
	}
}

// TestMoved checks that a value is bound to its key.
func TestMoved(t *testing.T) {
	below := inMemory(t)
	b := open(t, below, file("secrets", provider("aesgcm", "a")))
	if _, err := b.Create(t.Context(), key, []byte("value"), 0); err != nil {
		t.Fatal(err)
	}
	kv, err := below.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := below.Create(t.Context(), key+"2", kv.Value, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Get(t.Context(), key+"2"); !errors.Is(err, ErrUnreadable) {
		t.Errorf("a copied value is read: %v", err)
	}
}

// TestCorrupt checks that no stored bytes end the process.
func TestCorrupt(t *testing.T) {
	s := &box{}
	block, err := withBlockOf(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	g, err := newGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	for _, tr := range []transformer{s, g, cbc{block}, derivedGCM{make([]byte, 32)}} {
		sealed, err := tr.seal(t.Context(), []byte("some value"), key)
		if err != nil {
			t.Fatal(err)
		}
		for n := range sealed {
			if value, _, err := tr.open(t.Context(), sealed[:n], key); err == nil && string(value) == "some value" {
				t.Errorf("%T opens what has %d bytes of %d", tr, n, len(sealed))
			}
		}
	}
}

// service is a key management service that adds a byte to everything.
type service struct {
	kmsapi.UnimplementedKeyManagementServiceServer
	mu       sync.Mutex
	keyID    string
	healthz  string
	decrypts int
	// seal and unseal replace what Encrypt and Decrypt answer; nil answers truly.
	seal, unseal func([]byte) ([]byte, error)
}

func (s *service) Status(context.Context, *kmsapi.StatusRequest) (*kmsapi.StatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &kmsapi.StatusResponse{Version: "v2", Healthz: s.healthz, KeyId: s.keyID}, nil
}

func (s *service) Encrypt(_ context.Context, r *kmsapi.EncryptRequest) (*kmsapi.EncryptResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sealed := append([]byte{1}, r.Plaintext...)
	if s.seal != nil {
		var err error
		if sealed, err = s.seal(sealed); err != nil {
			return nil, err
		}
	}
	return &kmsapi.EncryptResponse{
		Ciphertext: sealed, KeyId: s.keyID, Annotations: map[string][]byte{"a.example.com": []byte("1"), "b.example.com": nil},
	}, nil
}

func (s *service) Decrypt(_ context.Context, r *kmsapi.DecryptRequest) (*kmsapi.DecryptResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.decrypts++
	if string(r.Annotations["a.example.com"]) != "1" {
		return nil, errors.New("annotations are lost")
	}
	if s.unseal != nil {
		plain, err := s.unseal(r.Ciphertext[1:])
		return &kmsapi.DecryptResponse{Plaintext: plain}, err
	}
	return &kmsapi.DecryptResponse{Plaintext: r.Ciphertext[1:]}, nil
}

func (s *service) set(keyID, healthz string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keyID, s.healthz = keyID, healthz
}

func serveKMS(t *testing.T) (*service, string) {
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
	s, server := &service{keyID: "1", healthz: "ok"}, grpc.NewServer()
	kmsapi.RegisterKeyManagementServiceServer(server, s)
	var done sync.WaitGroup
	done.Go(func() { _ = server.Serve(l) })
	t.Cleanup(func() { server.Stop(); done.Wait() })
	return s, "  - kms: {apiVersion: v2, name: k, endpoint: 'unix://" + socket + "'}\n"
}

func TestKMS(t *testing.T) {
	s, provider := serveKMS(t)
	below := inMemory(t)
	b := open(t, below, file("secrets", provider))
	if _, err := b.Create(t.Context(), key, []byte("value"), 0); err != nil {
		t.Fatal(err)
	}
	kv, err := below.Get(t.Context(), key)
	if err != nil || !bytes.HasPrefix(kv.Value, []byte("k8s:enc:kms:v2:k:")) {
		t.Fatalf("stored is %q, %v", kv.Value, err)
	}
	read := func(b *Backend, stale bool) {
		t.Helper()
		if kv, err := b.Get(t.Context(), key); string(kv.Value) != "value" || kv.Stale != stale || err != nil {
			t.Errorf("read is %q, stale %v, %v", kv.Value, kv.Stale, err)
		}
	}
	read(b, false)
	if s.decrypts != 1 {
		t.Errorf("the service is asked %d times, want once, when the seed is new", s.decrypts)
	}
	other := open(t, below, file("secrets", provider))
	read(other, false)
	read(other, false)
	if s.decrypts != 3 {
		t.Errorf("the service is asked %d times, want once more for the new seed of the other one, and once for that of the first", s.decrypts)
	}

	// The key changes, and the clock goes on.
	p := b.current.Load().plugins[0].(*plugin)
	now := time.Now()
	p.now = func() time.Time { return now }
	s.set("2", "ok")
	now = now.Add(healthyTTL)
	if err := b.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	read(b, true)
	// The service is ill: values are written for a while, and read for ever.
	s.set("2", "ill")
	now = now.Add(healthyTTL)
	if err := b.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "kms-provider-0: kmsv2 Provider k is not healthy, error: got unexpected healthz status: ill") {
		t.Errorf("the check of an ill service: %v", err)
	}
	now = now.Add(seedLife + time.Second)
	if _, err := b.Create(t.Context(), key+"2", []byte("value"), 0); err == nil || !strings.Contains(err.Error(), "expired at") {
		t.Errorf("written with an old seed: %v", err)
	}
	read(b, true)
}

// TestNoService checks that a service may come later than the server.
func TestNoService(t *testing.T) {
	b := open(t, inMemory(t), file("secrets", "  - kms: {apiVersion: v2, name: k, endpoint: 'unix:///no/socket', timeout: 10ms}\n"))
	if _, err := b.Create(t.Context(), key, []byte("value"), 0); !errors.Is(err, errNoSeed) {
		t.Errorf("written without a seed: %v", err)
	}
	if b.Check(t.Context()) == nil {
		t.Error("a service that is not there is well")
	}
}

func TestReload(t *testing.T) {
	below := inMemory(t)
	path := write(t, "", file("secrets", provider("aescbc", "a")))
	b, err := Open(below, Options{File: path, Reload: true, Resource: owner, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	b.files.Interval = time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { b.Follow(ctx) })
	t.Cleanup(func() { cancel(); done.Wait(); b.Release() })
	if _, err := b.Create(ctx, key, []byte("value"), 0); err != nil {
		t.Fatal(err)
	}
	write(t, path, "what is this")
	write(t, path, file("secrets", provider("secretbox", "b"), provider("aescbc", "a")))
	for {
		kv, err := b.Get(ctx, key)
		if err != nil || string(kv.Value) != "value" {
			t.Fatalf("read is %q, %v", kv.Value, err)
		}
		if kv.Stale {
			break
		}
	}
}

// TestEnvelopesAreTraced wants the spans of a KMS plugin to have the events that they have in
// kube-apiserver.
func TestEnvelopesAreTraced(t *testing.T) {
	_, provider := serveKMS(t)
	b := open(t, inMemory(t), file("secrets", provider))
	var kept []trace.Data
	tracer := &trace.Tracer{Ratio: 1, Export: func(d trace.Data) { kept = append(kept, d) }}
	ctx := trace.With(t.Context(), tracer.Root(nil, false, "root", trace.Server, time.Now()))
	if _, err := b.Create(ctx, key, []byte("value"), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Get(ctx, key); err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{
		"TransformToStorage with envelopeTransformer":   {"About to encrypt data using DEK", "Data encryption succeeded", "About to encode encrypted object", "Encoded encrypted object"},
		"TransformFromStorage with envelopeTransformer": {"About to decode encrypted object", "Decoded encrypted object", "About to decrypt data using DEK", "Data decryption succeeded"},
	}
	for _, d := range kept {
		var events []string
		for _, e := range d.Events {
			events = append(events, e.Name)
		}
		if !slices.Equal(events, want[d.Name]) {
			t.Errorf("%s has the events %q, want %q", d.Name, events, want[d.Name])
		}
		delete(want, d.Name)
	}
	for name := range want {
		t.Errorf("there is no span %s", name)
	}
}
