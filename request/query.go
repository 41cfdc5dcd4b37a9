package request

import (
	"cmp"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// Query is the query of a request, as everybody in the server reads it: what the authorizer has
// seen must be what the handler does. The zero value has no parameters. The values for a key
// are those that url.ParseQuery finds (FuzzQuery holds them equal); a slice takes fewer
// allocations than its map, and one of them serves all stages.
type Query struct{ pairs []parameter }

type parameter struct{ key, value string }

// MaxParameters is the largest number of parameters of a query, as in url.ParseQuery, which
// returns none of them if there are more.
const MaxParameters = 10_000

// ErrTooManyParameters is the error for a query with more than MaxParameters.
var ErrTooManyParameters = errors.New("the query has more than 10000 parameters")

// usualParameters is for how many parameters there is room without a second allocation.
const usualParameters = 8

// ParseQuery parses the text of a query. A parameter that has a semicolon or an invalid escape
// is skipped. With an error the query is empty.
func ParseQuery(text string) (q Query, err error) {
	if text == "" {
		return q, nil
	}
	n := strings.Count(text, "&") + 1
	if n > MaxParameters {
		return q, ErrTooManyParameters
	}
	q.pairs = make([]parameter, 0, min(n, usualParameters))
	for text != "" {
		var pair string
		pair, text, _ = strings.Cut(text, "&")
		if pair == "" || strings.Contains(pair, ";") {
			continue
		}
		key, value, _ := strings.Cut(pair, "=")
		if key, err = url.QueryUnescape(key); err != nil {
			continue
		}
		if value, err = url.QueryUnescape(value); err == nil {
			q.pairs = append(q.pairs, parameter{key, value})
		}
	}
	return q, nil
}

// Param returns the first value of a parameter in the text of a query. What is in the server reads
// Request.Query instead, which is parsed once.
func Param(query, key string) (value string, ok bool) {
	q, _ := ParseQuery(query)
	return q.Lookup(key)
}

// QueryOf returns the query of the request that r belongs to. A handler without a pipeline in
// front of it gets that of the URL, which is empty if it cannot be parsed.
func QueryOf(r *http.Request) Query {
	if req := Of(r.Context()); req != nil {
		return req.Query
	}
	q, _ := ParseQuery(r.URL.RawQuery)
	return q
}

// IsEmpty reports whether there are no parameters.
func (q Query) IsEmpty() bool { return len(q.pairs) == 0 }

// Get returns the first value for a key, or "".
func (q Query) Get(key string) string {
	value, _ := q.Lookup(key)
	return value
}

// Has reports whether there is a value for a key.
func (q Query) Has(key string) bool {
	_, ok := q.Lookup(key)
	return ok
}

// Lookup returns the first value for a key, and whether there is one.
func (q Query) Lookup(key string) (value string, ok bool) {
	for i := range q.pairs {
		if q.pairs[i].key == key {
			return q.pairs[i].value, true
		}
	}
	return "", false
}

// Bool reads a parameter as Kubernetes does: there, and not false or 0.
func (q Query) Bool(key string) bool {
	value, ok := q.Lookup(key)
	if !ok || value == "0" {
		return false
	}
	return strings.ToLower(value) != "false" // EqualFold would take "fal\u017fe" for it
}

// All returns all values for a key, in their order; nil if there are none.
func (q Query) All(key string) (values []string) {
	for i := range q.pairs {
		if q.pairs[i].key == key {
			values = append(values, q.pairs[i].value)
		}
	}
	return values
}

// Values returns all parameters.
func (q Query) Values() url.Values {
	values := make(url.Values, len(q.pairs))
	for i := range q.pairs {
		values.Add(q.pairs[i].key, q.pairs[i].value)
	}
	return values
}

// Encode returns the text of the query for another server, sorted by key: that server reads
// what was authorized here, however it treats what is skipped here.
func (q Query) Encode() string {
	if q.IsEmpty() {
		return ""
	}
	sorted := slices.Clone(q.pairs)
	slices.SortStableFunc(sorted, func(a, b parameter) int { return cmp.Compare(a.key, b.key) })
	var b strings.Builder
	for i := range sorted {
		if i > 0 {
			b.WriteByte('&')
		}
		b.WriteString(url.QueryEscape(sorted[i].key))
		b.WriteByte('=')
		b.WriteString(url.QueryEscape(sorted[i].value))
	}
	return b.String()
}
