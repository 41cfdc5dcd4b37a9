package authn

import (
	"slices"
	"strings"
	"testing"

	"github.com/apikeel/kelson/request"
)

func FuzzProtocolToken(f *testing.F) {
	f.Add("v4.channel.k8s.io," + webSocketPrefix + "Zm9v")
	f.Add(webSocketPrefix)
	f.Add(",,")
	f.Fuzz(func(t *testing.T, header string) {
		token, others, err := protocolToken([]string{header})
		if err == nil && token != "" && len(others) == 0 {
			t.Error("a token is accepted that leaves no protocol")
		}
		if slices.ContainsFunc(others, func(p string) bool { return strings.HasPrefix(p, webSocketPrefix) }) {
			t.Errorf("a token is passed on: %q", others)
		}
	})
}

func FuzzReadSecrets(f *testing.F) {
	f.Add([]byte("secret,jane,1,\"a,b\"\n"))
	f.Add([]byte("secret,jane\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		_ = readSecrets(data, func(n int, _ string, _ request.User) {
			if n < 1 {
				t.Errorf("record %d", n)
			}
		})
	})
}

func FuzzBootstrapToken(f *testing.F) {
	f.Add("abcdef.0123456789abcdef")
	f.Add("abcdef.0123456789abcdef.")
	f.Fuzz(func(t *testing.T, token string) {
		id, secret, ok := splitBootstrapToken(token)
		if ok && (id+"."+secret != token || len(token) != 23 || strings.ContainsAny(id, "./")) {
			t.Errorf("%q: %q and %q", token, id, secret)
		}
	})
}
