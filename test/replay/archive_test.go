package replay

import (
	"strings"
	"testing"
)

// sample has everything that can stand in an archive.
const sample = `A comment.

-- sample/one/0/request --
POST /api/v1/namespaces/{{ns}}/configmaps
Content-Type: application/json
User-Agent: " "
@serial
@brief

{"b": 1.0, "a": "\u003c", "a": [], "c": {}}
-- sample/one/0/response --
201 Created
-- sample/one/1/request --
GET /api/v1/namespaces/{{ns}}/configmaps?watch=1
Authorization: ""
@watch
@ordered
@retry-until 200
@retry-match a: b
-- sample/one/1/response --
200 OK
@own
Audit-Id: <uid>
Content-Type: application/json
Warning: 299 - "one"
Warning: 299 - "two"

[
  {
    "object": {"data": {"first": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "second": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}},
    "type": "ADDED"
  }
]
-- sample/one/2/request --
PUT /api/v1/namespaces/{{ns}}/configmaps/a
Content-Type: application/json
@body-from 0

{"/data/a": null}
-- sample/one/2/response --
599
Content-Type: text/plain
@text

two lines

and one more

-- sample/with/slashes/0/request --
PUT /a
@base64

AAEC
-- sample/with/slashes/1/request --
PUT /b
@text

{"a": 1, "a":
-- sample/with/slashes/2/request --
PUT /c

"-- a --\nspace at the end \n\u0000"
`

// TestArchiveKeepsItsText makes sure that reading and writing an archive changes nothing,
// so that git shows no more than what has changed.
func TestArchiveKeepsItsText(t *testing.T) {
	a, err := parseArchive(sample)
	if err != nil {
		t.Fatal(err)
	}
	if got := a.Format(); got != sample {
		t.Errorf("got\n%s\nwant\n%s", got, sample)
	}
	if len(a.Recordings) != 2 || len(a.Recordings[0].Steps) != 3 || len(a.Recordings[1].Steps) != 3 {
		t.Fatalf("got %+v, want two recordings of three steps", a.Recordings)
	}
	one := a.Recordings[0]
	if !one.Serial || !one.Steps[0].Brief || !one.Steps[1].Watch || !one.Steps[1].Own || !one.Steps[1].Ordered ||
		one.Steps[1].RetryUntil != 200 || one.Steps[1].RetryMatch != "a: b" || one.Steps[2].BodyFrom == nil {
		t.Errorf("a directive is lost: %+v", one)
	}
	for _, c := range []struct{ got, want string }{
		{string(one.Steps[0].Body), `{"b":1.0,"a":"\u003c","a":[],"c":{}}`},
		{one.Steps[0].Headers["User-Agent"], " "},
		{string(one.Steps[2].ResponseBody), `"two lines\n\nand one more\n"`},
		{sent(t, &a.Recordings[1].Steps[0]), "\x00\x01\x02"},
		{sent(t, &a.Recordings[1].Steps[1]), `{"a": 1, "a":`},
		{sent(t, &a.Recordings[1].Steps[2]), "-- a --\nspace at the end \n\x00"},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
}

// sent returns the body of a request.
func sent(t *testing.T, s *Step) string {
	t.Helper()
	body, err := (&placeholders{}).body(s)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func TestArchiveErrorsNameTheLine(t *testing.T) {
	const request = "-- a/0/request --\nGET /\n"
	for _, c := range []struct{ text, want string }{
		{"-- a --\n", "1: a: the name of a section is"},
		{request + "-- a/2/request --\nGET /\n", "3: a/2/request: the steps of a recording stand together"},
		{request + request, "3: a/0/request: there are two recordings of this name"},
		{request + "-- a/1/response --\n200 OK\n", "3: a/1/response: a response stands after"},
		{request + "-- a/0/response --\nOK\n", `3: a/0/response: the first line begins with the status, not "OK"`},
		{"-- a/0/request --\nGET\n", `1: a/0/request: the first line is METHOD /PATH, not "GET"`},
		{"comment\n-- a/0/request --\nGET /\n@what\n", "2: a/0/request: @what is not known here"},
		{"-- a/0/request --\nGET /\nwhat\n", `1: a/0/request: "what" is neither a header nor a directive`},
		{"-- a/0/request --\nGET /\n\n{\n", "1: a/0/request: the body is not JSON"},
	} {
		_, err := parseArchive(c.text)
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%q: got %v, want %s", c.text, err, c.want)
		}
	}
}

// FuzzArchive checks that what can be read can be written, and is then the same.
func FuzzArchive(f *testing.F) {
	f.Add(sample)
	f.Fuzz(func(t *testing.T, text string) {
		a, err := parseArchive(text)
		if err != nil {
			return
		}
		once := a.Format()
		if a, err = parseArchive(once); err != nil {
			t.Fatalf("%v in\n%s", err, once)
		}
		if twice := a.Format(); twice != once {
			t.Errorf("got\n%s\nwant\n%s", twice, once)
		}
	})
}
