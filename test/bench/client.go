package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/apikeel/kelson/test/bench/servers"
)

// Media types.
const (
	asJSON     = "application/json"
	asProtobuf = "application/vnd.kubernetes.protobuf"
	asTable    = "application/json;as=Table;v=v1;g=meta.k8s.io"
	mergePatch = "application/merge-patch+json"
	jsonPatch  = "application/json-patch+json"
	applyPatch = "application/apply-patch+yaml"
)

// client sends requests that are ready as bytes over a fixed number of HTTP/2
// connections. It is less than client-go on purpose: what is measured is the server.
type client struct {
	server *servers.Server
	conns  []*http.Transport
}

func newClient(v *servers.Server, conns int) *client {
	c := &client{server: v}
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	for range conns {
		c.conns = append(c.conns, &http.Transport{TLSClientConfig: v.TLS.Clone(), Protocols: protocols, DisableCompression: true})
	}
	return c
}

func (c *client) close() {
	for _, t := range c.conns {
		t.CloseIdleConnections()
	}
}

// request is one call; what is empty is GET, or JSON.
type request struct {
	method, path string // path with its query
	contentType  string
	accept       string
	body         string
}

// open sends a request over a connection and leaves the answer to the caller. Any
// status but success is an error.
func (c *client) open(ctx context.Context, conn int, r request) (*http.Response, error) {
	var body io.Reader
	if r.body != "" {
		body = strings.NewReader(r.body)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, c.server.URL+r.path, body)
	if err != nil {
		return nil, err
	}
	set := func(key, value, otherwise string) {
		if value == "" {
			value = otherwise
		}
		req.Header[key] = []string{value}
	}
	set("Accept", r.accept, asJSON)
	set("User-Agent", "", "bench")
	if r.body != "" {
		set("Content-Type", r.contentType, asJSON)
	}
	if c.server.Token != "" {
		set("Authorization", "", "Bearer "+c.server.Token)
	}
	resp, err := c.conns[conn%len(c.conns)].RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 != 2 {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 500))
		resp.Body.Close()
		return nil, &statusError{req.Method + " " + r.path, resp.StatusCode, string(bytes.TrimSpace(text))}
	}
	return resp, nil
}

// send makes a call, throws the answer away and returns its length.
func (c *client) send(ctx context.Context, conn int, r request) (int64, error) {
	resp, err := c.open(ctx, conn, r)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	return io.Copy(io.Discard, resp.Body)
}

// fetch makes a call and returns the answer.
func (c *client) fetch(ctx context.Context, conn int, r request) ([]byte, error) {
	resp, err := c.open(ctx, conn, r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(resp.Body)
}

// statusError is an answer that is not a success.
type statusError struct {
	call string
	code int
	text string
}

func (e *statusError) Error() string { return fmt.Sprintf("%s: %d: %s", e.call, e.code, e.text) }

// resourceVersion returns the first resourceVersion in JSON, that of the object or the list.
func resourceVersion(text []byte) string {
	_, rest, _ := bytes.Cut(text, []byte(`"resourceVersion":"`))
	value, _, _ := bytes.Cut(rest, []byte(`"`))
	return string(value)
}

// isStatus reports whether an error is an answer with a code.
func isStatus(err error, code int) bool {
	var status *statusError
	return errors.As(err, &status) && status.code == code
}

// isThere is nil for an error that says that what was to be created exists.
func isThere(err error) error {
	if isStatus(err, http.StatusConflict) && strings.Contains(err.Error(), "AlreadyExists") {
		return nil
	}
	return err
}
