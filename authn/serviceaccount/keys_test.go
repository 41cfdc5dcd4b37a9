package serviceaccount

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestKeys rotates through keys of every type.
func TestKeys(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]crypto.Signer{"RS256": rsaKey}
	for alg, curve := range map[string]elliptic.Curve{"ES256": elliptic.P256(), "ES384": elliptic.P384(), "ES512": elliptic.P521()} {
		if keys[alg], err = ecdsa.GenerateKey(curve, rand.Reader); err != nil {
			t.Fatal(err)
		}
	}
	w := newWorld(t)
	all := []any{w.key}
	for alg, key := range keys {
		issuer := mustIssuer(t, issuerName, key)
		token, _, err := issuer.Issue(w.account, nil, []string{"api"}, nil, time.Hour, 0)
		if err != nil {
			t.Fatal(err)
		}
		var header struct{ Alg, Kid string }
		data, _ := base64.RawURLEncoding.DecodeString(token[:strings.IndexByte(token, '.')])
		if err := json.Unmarshal(data, &header); err != nil || header.Alg != alg || header.Kid == "" {
			t.Errorf("%s: header %s, error %v", alg, data, err)
		}
		if got, err := w.verifier.Verify(t.Context(), token, nil); err == nil {
			t.Errorf("%s: token of a key that is not known: %+v", alg, got)
		}
		all = append(all, key.Public())
		w.verifier.SetKeys(mustKeys(t, all...))
		for _, token := range []string{token, w.token(t)} {
			if got, err := w.verifier.Verify(t.Context(), token, nil); got == nil || err != nil {
				t.Errorf("%s: got %v, error %v", alg, got, err)
			}
		}
	}
	w.verifier.SetKeys(mustKeys(t, rsaKey))
	if _, err := w.verifier.Verify(t.Context(), w.token(t), nil); err == nil {
		t.Error("a key that was removed is still accepted")
	}
	p224, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewKeys(p224); err == nil {
		t.Error("a curve that tokens cannot be signed with is accepted")
	}
}

func TestOpenKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sa.key")
	var wg sync.WaitGroup
	keys := make([]crypto.Signer, 4)
	for i := range keys {
		wg.Go(func() {
			var err error
			if keys[i], err = OpenKey(path); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, key := range keys {
		if !reflect.DeepEqual(key.Public(), keys[0].Public()) {
			t.Fatal("two who make a key at once do not agree on it")
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, error %v", info.Mode(), err)
	}
	entries, _ := os.ReadDir(filepath.Dir(path))
	if len(entries) != 1 {
		t.Errorf("%d files are left", len(entries))
	}
}

func TestDocuments(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ec, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	d, err := NewDocuments(issuerName, "", "192.0.2.10:26443", mustKeys(t, key))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"issuer":"https://kubernetes.default.svc.cluster.local","jwks_uri":"https://192.0.2.10:26443/openid/v1/jwks",` +
		`"response_types_supported":["id_token"],"subject_types_supported":["public"],"id_token_signing_alg_values_supported":["RS256"]}`
	if string(d.Configuration) != want {
		t.Errorf("configuration %s", d.Configuration)
	}
	public, err := publicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	want = fmt.Sprintf(`{"keys":[{"use":"sig","kty":"RSA","kid":%q,"alg":"RS256","n":%q,"e":"AQAB"}]}`,
		public.KeyID, base64.RawURLEncoding.EncodeToString(key.N.Bytes()))
	if string(d.Keys) != want {
		t.Errorf("keys %s, want %s", d.Keys, want)
	}
	if d, err = NewDocuments(issuerName, "https://keys", "", mustKeys(t, ec, key)); err != nil ||
		!strings.Contains(string(d.Configuration), `"jwks_uri":"https://keys"`) || !strings.Contains(string(d.Configuration), `["ES256","RS256"]`) {
		t.Errorf("configuration %s, error %v", d.Configuration, err)
	}
	for _, bad := range [][3]string{
		{"", "", "a"}, {"http://issuer", "", "a"}, {"https://issuer?q", "", "a"}, {"https://issuer#f", "", "a"},
		{"kubernetes", "", "a"}, {issuerName, "", ""}, {issuerName, "http://keys", "a"},
	} {
		if _, err := NewDocuments(bad[0], bad[1], bad[2], mustKeys(t, ec)); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
	for accept, codes := range map[string][2]int{ // of the configuration and of the keys
		"": {200, 200}, "*/*": {200, 200}, "text/html, */*;q=0.1": {200, 200}, "application/json": {200, 406},
		"application/jwk-set+json": {406, 200}, "application/*": {406, 406}, "text/html": {406, 406},
	} {
		for i, serve := range []http.HandlerFunc{d.ServeConfiguration, d.ServeKeys} {
			w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
			r.Header.Set("Accept", accept)
			if serve(w, r); w.Code != codes[i] {
				t.Errorf("accepting %q, document %d is answered with %d: %s", accept, i, w.Code, w.Body)
			}
		}
	}
}

func TestSplitUser(t *testing.T) {
	for user, want := range map[string]bool{
		"system:serviceaccount:ns:sa": true, "system:serviceaccount:ns": false, "system:serviceaccount:ns:": false,
		"system:serviceaccount:ns:a:b": false, "system:serviceaccount:N S:a": false, "jane": false,
	} {
		if _, _, ok := SplitUser(user); ok != want {
			t.Errorf("%q: %v", user, ok)
		}
	}
}

func FuzzVerify(f *testing.F) {
	key, err := NewKey()
	if err != nil {
		f.Fatal(err)
	}
	issuer, err := NewIssuer(issuerName, key)
	if err != nil {
		f.Fatal(err)
	}
	keys, err := NewKeys(key)
	if err != nil {
		f.Fatal(err)
	}
	account := &corev1.ServiceAccount{ObjectMeta: meta("ns", "sa")}
	good, _, err := issuer.Issue(account, nil, []string{"api"}, nil, time.Hour, 0)
	if err != nil {
		f.Fatal(err)
	}
	v := &Verifier{Issuers: []string{issuerName}, Audiences: []string{"api"}, Objects: &objects{byKey: map[string]metav1.Object{"serviceaccounts/ns/sa": account}}}
	v.SetKeys(keys)
	f.Add(good)
	f.Add("a.b.c")
	f.Add("..")
	f.Fuzz(func(t *testing.T, token string) {
		// The last character of a signature has bits that mean nothing.
		if got, _ := v.Verify(t.Context(), token, nil); got != nil && token[:len(token)-1] != good[:len(good)-1] {
			t.Errorf("%q is accepted", token)
		}
	})
}

func BenchmarkVerify(b *testing.B) {
	for name, key := range map[string]func() (crypto.Signer, error){
		"ES256": NewKey,
		"RS256": func() (crypto.Signer, error) { return rsa.GenerateKey(rand.Reader, 2048) },
	} {
		b.Run(name, func(b *testing.B) {
			key, err := key()
			if err != nil {
				b.Fatal(err)
			}
			issuer, err := NewIssuer(issuerName, key)
			if err != nil {
				b.Fatal(err)
			}
			keys, err := NewKeys(key)
			if err != nil {
				b.Fatal(err)
			}
			account := &corev1.ServiceAccount{ObjectMeta: meta("ns", "sa")}
			v := &Verifier{Issuers: []string{issuerName}, Audiences: []string{"api"}, Objects: &objects{byKey: map[string]metav1.Object{"serviceaccounts/ns/sa": account}}}
			v.SetKeys(keys)
			token, _, err := issuer.Issue(account, nil, []string{"api"}, nil, time.Hour, 0)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if got, err := v.Verify(b.Context(), token, nil); got == nil || err != nil {
					b.Fatal(got, err)
				}
			}
		})
	}
}

// TestParsePublicKeys: the file of a signing key is also one of a public key, whatever
// its form is.
func TestParsePublicKeys(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	sec1, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	for kind, der := range map[string][]byte{"PRIVATE KEY": pkcs8, "EC PRIVATE KEY": sec1, "PUBLIC KEY": public} {
		got, err := ParsePublicKeys(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
		if err != nil || len(got) != 1 || !key.PublicKey.Equal(got[0].(crypto.PublicKey)) {
			t.Errorf("%s: got %v and error %v, want the public key", kind, got, err)
		}
	}
	if _, err := ParsePublicKeys([]byte("nothing")); err == nil || err.Error() != "data does not contain any valid RSA or ECDSA public keys" {
		t.Errorf("got error %v, want kube-apiserver's", err)
	}
}
