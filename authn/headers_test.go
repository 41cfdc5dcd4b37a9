package authn

import (
	"bufio"
	"bytes"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/apikeel/kelson/request"
)

// FuzzUserThroughHeaders passes a user on to another API server: that one reads the same user, or
// the user is refused here.
func FuzzUserThroughHeaders(f *testing.F) {
	f.Add("jane", "7", "a\x00system:masters", "example.com/Scope", "A%2fb", "x\x00y")
	f.Add("jane", "", " system:masters", "a_b", "a-b", "x")
	f.Add("ü", "7\r\nX-Remote-Group: admin", "", "%41", "A", "\t")
	f.Add("a:b", " ", "b", "", "\xff %", "\x7f")
	f.Fuzz(func(t *testing.T, name, uid, groups, key, other, values string) {
		user := request.User{Name: name, UID: uid, Groups: strings.Split(groups, "\x00"), Extra: map[string][]string{
			key: strings.Split(values, "\x00"), other: {"1"}, key + other: {"2"},
		}}
		h := http.Header{"X-Remote-Group": {"system:masters"}}
		if !user.SetHeaders(h) {
			return
		}
		var wire bytes.Buffer
		wire.WriteString("GET / HTTP/1.1\r\nHost: x\r\n")
		if err := h.Write(&wire); err != nil {
			t.Fatal(err)
		}
		wire.WriteString("\r\n")
		r, err := http.ReadRequest(bufio.NewReader(&wire))
		if err != nil {
			t.Fatalf("the headers %q cannot be read: %v", h, err)
		}
		p := newProxy(nil, nil, RequestHeader{
			UsernameHeaders: []string{"X-Remote-User"}, UIDHeaders: []string{"X-Remote-Uid"}, GroupHeaders: []string{"X-Remote-Group"},
			ExtraHeaderPrefixes: []string{"X-Remote-Extra-"},
		})
		got := p.userOf(r.Header)
		// A group without a name is none.
		want := user
		want.Groups = slices.DeleteFunc(slices.Clone(user.Groups), func(group string) bool { return group == "" })
		if got.Name != want.Name || got.UID != want.UID || !slices.Equal(got.Groups, want.Groups) || !maps.EqualFunc(got.Extra, want.Extra, slices.Equal) {
			t.Errorf("got %#v, want %#v, by %q", got, want, h)
		}
		// Nothing is left of it for a request that goes on.
		p.strip(r.Header)
		if left := (http.Header{}); !reflect.DeepEqual(r.Header, left) {
			t.Errorf("got %q after the headers were removed, want none", r.Header)
		}
	})
}
