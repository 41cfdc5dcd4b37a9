package request

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"testing"
)

// checkQuery compares all that a Query tells with url.ParseQuery. key is one more to ask for.
func checkQuery(t *testing.T, text, key string) {
	t.Helper()
	want, _ := url.ParseQuery(text)
	got, err := ParseQuery(text)
	if (err != nil) != (strings.Count(text, "&") >= MaxParameters) || err != nil && !got.IsEmpty() {
		t.Fatalf("%d parameters: got %v, empty %t", strings.Count(text, "&")+1, err, got.IsEmpty())
	}
	if all := got.Values(); !reflect.DeepEqual(all, want) {
		t.Fatalf("%q: got values %q, want %q", text, all, want)
	}
	if encoded := got.Encode(); encoded != want.Encode() {
		t.Fatalf("%q: got %q encoded, want %q", text, encoded, want.Encode())
	}
	if got.IsEmpty() != (len(want) == 0) {
		t.Fatalf("%q: empty is %t, want %d keys", text, got.IsEmpty(), len(want))
	}
	keys := []string{key}
	for k := range want {
		if keys = append(keys, k); len(keys) > 20 {
			break
		}
	}
	for _, k := range keys {
		value, ok := got.Lookup(k)
		if ok != want.Has(k) || value != want.Get(k) || got.Has(k) != ok || got.Get(k) != value || !reflect.DeepEqual(got.All(k), want[k]) {
			t.Fatalf("%q: got %q, %t, %q for %q, want %q", text, value, ok, got.All(k), k, want[k])
		}
		yes := false
		if v := want[k]; len(v) > 0 {
			switch strings.ToLower(v[0]) {
			case "false", "0":
			default:
				yes = true
			}
		}
		if got.Bool(k) != yes {
			t.Fatalf("%q: got %t for %q, want %t", text, got.Bool(k), k, yes)
		}
	}
}

// queries are texts that readers of queries have disagreed about.
func queries() []string {
	return []string{
		"", "&", "=", "&&=&", "a", "a=", "=a", "a=1&a=2&b=3&a=", "a=b=c", "a=1;b=2&c=3", ";&a=1", "%61=1&a=2", "a=%zz&a=2", "%zz=1&a=2", "a=%", "a+b=c+d&a%20b=e",
		"fieldSelector=spec.nodeName%3Dn1" + strings.Repeat("&", MaxParameters-1), "fieldSelector=spec.nodeName%3Dn1" + strings.Repeat("&", MaxParameters),
		strings.Repeat("a=1&", MaxParameters-1), strings.Repeat("a=1&", MaxParameters), "watch=1&limit=5&watch=0", "watch=fal\u017fe", "w%61tch=False", "a=\x00&\xff=\xfe", "a?b=c#d",
	}
}

func TestQueryIsThatOfTheStandardLibrary(t *testing.T) {
	for _, text := range queries() {
		checkQuery(t, text, "a")
	}
}

// FuzzQuery compares with the standard library. A part of the text is repeated, so that long
// queries are tried too.
func FuzzQuery(f *testing.F) {
	for _, text := range queries() {
		f.Add(text, "a", uint16(0))
	}
	f.Add("a=%zz&b;=1&", "a", uint16(4_999))
	f.Add("&", "limit", uint16(10_000))
	f.Fuzz(func(t *testing.T, text, key string, times uint16) {
		if n := int(times) % (MaxParameters + 10); len(text)*n < 1<<18 {
			text += strings.Repeat(text, n)
		}
		checkQuery(t, text, key)
	})
}

// TestQueryIsReadOnce: handlers get the query that was authorized, whatever became of the URL.
func TestQueryIsReadOnce(t *testing.T) {
	r := httptest.NewRequest(http.MethodGet, "/api/v1/pods?limit=1", nil)
	if got := QueryOf(r).Get("limit"); got != "1" {
		t.Errorf("without a pipeline: got limit %q, want 1", got)
	}
	info, err := Parse(r)
	if err != nil {
		t.Fatal(err)
	}
	r = r.WithContext(With(context.Background(), &Request{Info: info}))
	r.URL.RawQuery = "limit=2"
	if got := QueryOf(r).Get("limit"); got != "1" {
		t.Errorf("after the URL was changed: got limit %q, want 1", got)
	}
}

// TestTooManyParametersAreNoQuery: none of them is read, and the error says so.
func TestTooManyParametersAreNoQuery(t *testing.T) {
	r := httptest.NewRequest(http.MethodGet, "/api/v1/pods?watch=1&fieldSelector=metadata.name%3Dp"+strings.Repeat("&", MaxParameters), nil)
	info, err := Parse(r)
	if !errors.Is(err, ErrTooManyParameters) || describe(info) != "list /v1 - pods" || !info.Query.IsEmpty() {
		t.Errorf("got %v, %q; want %v, a list of all pods without a query", err, describe(info), ErrTooManyParameters)
	}
}

func BenchmarkQuery(b *testing.B) {
	for name, text := range map[string]string{
		"none":    "",
		"one":     "timeout=10s",
		"watch":   "allowWatchBookmarks=true&resourceVersion=12&timeoutSeconds=300&watch=true",
		"escapes": "fieldManager=kubectl&fieldSelector=spec.nodeName%3Dn1%2Cstatus.phase%21%3DFailed&labelSelector=a%3Db",
		"most":    strings.Repeat("a=1&", MaxParameters-1),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = ParseQuery(text)
			}
		})
	}
}
