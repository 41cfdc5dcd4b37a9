package request

import (
	"net/http"
	"testing"
)

// TestUsersThatHeadersChangeAreNotPassedOn: what a header cannot carry as it is would be
// another user, perhaps an administrator, at the other end.
func TestUsersThatHeadersChangeAreNotPassedOn(t *testing.T) {
	for name, test := range map[string]struct {
		user User
		want bool
	}{
		"ordinary":                 {User{Name: "jane", UID: "7", Groups: []string{"a b", "ü"}, Extra: map[string][]string{"example.com/Scope": {"x", ""}}}, true},
		"no uid, no groups":        {User{Name: "jane"}, true},
		"no name":                  {User{}, false},
		"blank before a name":      {User{Name: " admin"}, false},
		"blank before a group":     {User{Name: "jane", Groups: []string{"a", " system:masters"}}, false},
		"tab after a group":        {User{Name: "jane", Groups: []string{"system:masters\t"}}, false},
		"line break in a group":    {User{Name: "jane", Groups: []string{"a\nb"}}, false},
		"carriage return in a uid": {User{Name: "jane", UID: "7\r\nX-Remote-Group: system:masters"}, false},
		"NUL in an extra value":    {User{Name: "jane", Extra: map[string][]string{"k": {"a\x00"}}}, false},
		"blank after extra":        {User{Name: "jane", Extra: map[string][]string{"k": {"a "}}}, false},
	} {
		h := http.Header{"X-Remote-Group": {"system:masters"}, "X-Remote-Extra-K": {"old"}, "X-Other": {"kept"}}
		if got := test.user.SetHeaders(h); got != test.want {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
		if test.want && (h.Get("X-Remote-Group") == "system:masters" || h.Get("X-Remote-Extra-K") != "" || h.Get("X-Other") != "kept") {
			t.Errorf("%s: got %v, want nothing of another user", name, h)
		}
	}
}
