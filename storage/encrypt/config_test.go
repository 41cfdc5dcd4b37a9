package encrypt

import (
	"crypto/cipher"
	"log/slog"
	"strings"
	"testing"
)

func withBlockOf(secret []byte) (block cipher.Block, err error) {
	_, err = withBlock(secret, func(b cipher.Block) (transformer, error) { block = b; return nil, nil })
	return block, err
}

func TestConfigErrors(t *testing.T) {
	const kms = "  - kms: {apiVersion: v2, name: k, endpoint: 'unix:///s'}\n"
	for _, c := range []struct{ name, file, want string }{
		{"empty", "", `error while parsing file: error while loading file: encryption provider configuration file "f" is empty`},
		{"no resources", "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\n", "resources: Required value: at least one resources is required"},
		{"other kind", "apiVersion: v1\nkind: Pod\n", `no kind "Pod" is registered for version "v1"`},
		{"unknown", file("secrets", plain) + "more: 1\n", `strict decoding error: unknown field "more"`},
		{"twice", file("secrets, secrets", plain), "the same resource cannot be specified multiple times"},
		{"overlap", file("secrets, '*.'", plain), "using overlapping resources such as 'secrets' and '*.'"},
		{"capital", file("Secrets", plain), `resources[0].resources[0]: Invalid value: "Secrets": resource name should not contain capital letters`},
		{"star", file("'*'", plain), "use '*.' to encrypt all the resources from core API group or *.* to encrypt all resources"},
		{"events", file("events.events.k8s.io", plain), "Use 'events' instead in the config file"},
		{"extensions", file("ingresses.extensions", plain), "'extensions' group has been removed"},
		{"across", file("'secrets.*'", plain), "encrypting the same resource across groups is not supported"},
		{"no API", file("apiserveripinfo", plain), "resources which do not have REST API/s cannot be encrypted"},
		{"no provider", file("secrets", "  - {}\n"), "provider does not contain any of the expected providers"},
		{"two providers", file("secrets", "  - {identity: {}, aescbc: {keys: [{name: a, secret: "+secret(1)+"}]}}\n"), "more than one provider specified in a single element"},
		{"no keys", file("secrets", "  - aescbc: {keys: []}\n"), "resources[0].providers[0].aescbc.keys: Required value: at least one keys is required"},
		{"no name", file("secrets", "  - aescbc: {keys: [{secret: "+secret(1)+"}]}\n"), "aescbc.keys[0].name: Required value: name is a mandatory field for a key"},
		{"not base64", file("secrets", "  - aescbc: {keys: [{name: a, secret: '?'}]}\n"), `Invalid value: "REDACTED": secrets must be base64 encoded`},
		{"length", file("secrets", "  - secretbox: {keys: [{name: a, secret: YQ==}]}\n"), "secret is not of the expected length, got 1, expected one of [32]"},
		{"masked", file("'*.*'", plain) + "- resources: [secrets]\n  providers:\n" + plain, `resource "secrets" is masked by earlier rule "*.*"`},
		{"masked in group", file("'*.'", plain) + "- resources: [secrets]\n  providers:\n" + plain, `resource "secrets" is masked by earlier rule "*."`},
		{"scheme", file("secrets", "  - kms: {apiVersion: v2, name: k, endpoint: 'tcp://s'}\n"), `unsupported scheme "tcp" for KMS provider, only unix is supported`},
		{"colon", file("secrets", "  - kms: {apiVersion: v2, name: 'k:', endpoint: 'unix:///s'}\n"), "invalid KMS provider name k:, must not contain ':'"},
		{"same name", file("secrets", kms, kms), "duplicate KMS provider name k, names must be unique"},
		{"cache", file("secrets", "  - kms: {apiVersion: v2, name: k, endpoint: 'unix:///s', cachesize: 1}\n"), "cachesize is not supported in v2"},
		{"v1", file("secrets", "  - kms: {name: k, endpoint: 'unix:///s'}\n"), "KMSv1 is deprecated"},
	} {
		t.Run(c.name, func(t *testing.T) {
			parsed, err := parse("f", []byte(c.file))
			if err == nil {
				_, err = parsed.build(nil, false, slog.New(slog.DiscardHandler))
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

func FuzzEnvelope(f *testing.F) {
	s := source{keyID: "1", ciphertext: []byte("c"), annotations: map[string][]byte{"a.example.com": []byte("x")}, kind: sourceSeed}
	f.Add(s.envelope([]byte("data")))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, data, err := openEnvelope(b)
		if err != nil {
			return
		}
		again, same, err := openEnvelope(s.envelope(data))
		if err != nil || string(same) != string(data) || again.id() != s.id() {
			t.Errorf("%v becomes %v, %v", s, again, err)
		}
	})
}
