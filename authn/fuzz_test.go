package authn

import (
	"bufio"
	"bytes"
	"net/http"
	"net/textproto"
	"reflect"
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

// FuzzUserInHeaders: a user that is told to another server in headers is the same there, or is
// not told.
func FuzzUserInHeaders(f *testing.F) {
	f.Add("jane", "7", "a b", "example.com/Scope", "x")
	f.Add("jane", "", " system:masters", "%41", "x\ny")
	f.Fuzz(func(t *testing.T, name, uid, group, key, value string) {
		u := request.User{Name: name, UID: uid, Groups: []string{group, "last"}, Extra: map[string][]string{key: {value}}}
		sent := http.Header{}
		if !u.SetHeaders(sent) {
			return
		}
		var wire bytes.Buffer
		if err := sent.Write(&wire); err != nil {
			t.Fatal(err)
		}
		wire.WriteString("\r\n")
		h, err := textproto.NewReader(bufio.NewReader(&wire)).ReadMIMEHeader()
		if err != nil {
			t.Fatalf("%+v cannot be read: %v", u, err)
		}
		got := http.Header(h)
		p := newProxy(nil, nil, RequestHeader{ExtraHeaderPrefixes: []string{"X-Remote-Extra-"}})
		if got.Get("X-Remote-User") != name || got.Get("X-Remote-Uid") != uid || !slices.Equal(got["X-Remote-Group"], u.Groups) {
			t.Errorf("got %v, want %+v", got, u)
		}
		if extra := p.extraOf(got); !reflect.DeepEqual(extra, u.Extra) {
			t.Errorf("got %q, want %q", extra, u.Extra)
		}
	})
}
