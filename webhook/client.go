// Package webhook calls the services by which others extend the server: it
// knows where they are, whom to trust, and that they may be slow, dead or
// mistaken.
package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/egress"
	"github.com/apikeel/kelson/metrics/servercert"
	"github.com/apikeel/kelson/trace"
)

const (
	// MaxAnswer bounds what is read of an answer.
	MaxAnswer = 8 << 20
	// maxTransports bounds how many services connections are kept to.
	maxTransports = 200
	// maxErrorText bounds what is told of an answer that says no.
	maxErrorText = 2048
)

// ErrTooLarge is that a service has answered with more than is read.
var ErrTooLarge = fmt.Errorf("the answer is larger than %d bytes", MaxAnswer)

// Endpoint is where a webhook is: at a URL, or a service of the cluster.
type Endpoint struct {
	URL     string
	Service *Service
	// CABundle is whom to trust, as PEM; the system's own if it is empty.
	CABundle []byte
}

// Service is a service of the cluster.
type Service struct {
	Namespace, Name string
	Path            string
	Port            int32 // 443 if it is 0
}

// Resolver finds the address, host and port, at which a service answers.
type Resolver func(ctx context.Context, namespace, name string, port int32) (string, error)

// Client calls webhooks. It keeps connections to those it has called. It is safe
// for concurrent use.
type Client struct {
	// Resolve finds services; without it they have names that a DNS knows.
	Resolve Resolver
	// UserAgent is who the client says it is.
	UserAgent string
	// TellTimeout tells services how long they have, in the query.
	TellTimeout bool
	// Credentials are shown to services; without them nobody knows the client.
	Credentials *Credentials
	// Dial is how services of the cluster are reached, and DialURL how others are;
	// nil is directly.
	Dial, DialURL egress.Dial
	// Self is how the server reaches itself, which it does in place of the service
	// kubernetes; nil has it call that as others do.
	Self http.RoundTripper
	// Certificates looks at those of services; nil does not.
	Certificates *servercert.Counter
	// Tracer traces what is asked for nobody's request; nil does not.
	Tracer *trace.Tracer
	// Called is told of every request that was sent; nil is not.
	Called func(Call)

	mu         sync.Mutex
	transports map[string]dialed
}

// Call is a request that was sent, and what came of it.
type Call struct {
	Host   string
	Status int // 0 if there was no answer
	Took   time.Duration
	// Sent and Received are bytes; what is received is not known of all answers.
	Sent, Received int64
}

// dialed is a transport as it is used, and as it is closed.
type dialed struct {
	http.RoundTripper
	close func()
}

// self is where every cluster has the service kubernetes.
const self = "kubernetes.default.svc:" + httpsPort

// Post sends JSON and returns the answer, which is the body of a response that
// says success; that of another is an error that tells what it says. It takes as
// long as the context lets it. Redirects are refused.
func (c *Client) Post(ctx context.Context, to *Endpoint, body []byte) ([]byte, error) {
	u, key, err := to.url()
	if err != nil {
		return nil, err
	}
	transport, err := c.transport(to, u, key)
	if err != nil {
		return nil, err
	}
	if u.Path == "" {
		u.Path = "/"
	}
	if deadline, ok := ctx.Deadline(); ok && c.TellTimeout {
		u.RawQuery = "timeout=" + wholeSeconds(time.Until(deadline)).String()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, */*")
	if c.UserAgent != "" {
		req.Header.Set("User-Agent", c.UserAgent)
	}
	client := http.Client{Transport: c.Certificates.Wrap(transport), CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	span := c.Tracer.Outgoing(ctx, req)
	began := time.Now()
	resp, err := client.Do(req)
	span.Answered(resp, err)
	if c.Called != nil {
		call := Call{Host: u.Host, Took: time.Since(began), Sent: int64(len(body)), Received: -1}
		if err == nil {
			call.Status, call.Received = resp.StatusCode, resp.ContentLength
		}
		c.Called(call)
	}
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode < http.StatusOK || resp.StatusCode > http.StatusPartialContent {
		return nil, refusal(resp)
	}
	if resp.ContentLength > MaxAnswer {
		return nil, ErrTooLarge
	}
	answer, err := io.ReadAll(io.LimitReader(resp.Body, MaxAnswer+1))
	if err == nil {
		// A service that sees its time end may end its answer early.
		err = ctx.Err()
	}
	switch {
	case err != nil:
		return nil, err
	case len(answer) > MaxAnswer:
		return nil, ErrTooLarge
	case len(answer) == 0:
		return nil, fmt.Errorf("0-length response with status code: %d and content type: %s", resp.StatusCode, resp.Header.Get("Content-Type"))
	}
	return answer, nil
}

// Close closes connections that are not in use.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.transports {
		t.close()
	}
	c.transports = nil
}

func wholeSeconds(d time.Duration) time.Duration {
	return max(0, d+time.Second-1).Truncate(time.Second)
}

// refusal is the error of a response that does not say success.
func refusal(resp *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorText))
	var status metav1.Status
	if json.Unmarshal(text, &status) == nil && status.Kind == "Status" && status.Status == metav1.StatusFailure {
		return &apierrors.StatusError{ErrStatus: status}
	}
	message := "unknown"
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/") {
		message = strings.TrimSpace(string(text))
	}
	return apierrors.NewGenericServerResponse(resp.StatusCode, http.MethodPost, schema.GroupResource{}, "", message, 0, true)
}

// url returns where to send requests, and what connections can be shared by. The
// path is a clean one: many a configuration has a slash too many.
func (e *Endpoint) url() (u *url.URL, key string, err error) {
	if s := e.Service; s != nil {
		host := net.JoinHostPort(s.Name+"."+s.Namespace+".svc", strconv.Itoa(int(s.port())))
		return &url.URL{Scheme: "https", Host: host, Path: path.Join("/", s.Path)}, "service\x00" + host + "\x00" + string(e.CABundle), nil
	}
	if e.URL == "" {
		return nil, "", errors.New("webhook configuration must have either service or URL")
	}
	if u, err = url.Parse(e.URL); err != nil {
		return nil, "", errors.New(fmt.Sprint("Unparsable URL: ", err))
	}
	u.Path, u.RawPath = path.Join("/", u.Path), ""
	return u, "url\x00" + u.Scheme + "://" + u.Host + "\x00" + string(e.CABundle), nil
}

func (s *Service) port() int32 {
	if s.Port == 0 {
		return 443
	}
	return s.Port
}

// way is how an endpoint is reached, nil if that is directly.
func (c *Client) way(to *Endpoint) egress.Dial {
	if to.Service != nil {
		return c.Dial
	}
	return c.DialURL
}

// transport returns the one to a host. Connections are HTTP/1.1, so that many
// requests are spread over the processes behind one address.
func (c *Client) transport(to *Endpoint, u *url.URL, key string) (http.RoundTripper, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t, ok := c.transports[key]; ok {
		return t.RoundTripper, nil
	}
	target := u.Host
	if u.Port() == "" {
		target = net.JoinHostPort(u.Hostname(), httpsPort)
	}
	if target == self && c.Self != nil {
		return c.Self, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	if len(to.CABundle) > 0 {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(to.CABundle) {
			return nil, errors.New("unable to load root certificates: unable to parse bytes as PEM block")
		}
	}
	dial := (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	if chosen := c.way(to); chosen != nil {
		dial = chosen
	}
	t := &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: config, DialContext: dial,
		TLSHandshakeTimeout: 10 * time.Second, MaxIdleConnsPerHost: 25, IdleConnTimeout: 90 * time.Second,
		MaxResponseHeaderBytes: 1 << 20, DisableCompression: true,
	}
	if s := to.Service; s != nil {
		config.ServerName = u.Hostname()
		t.Proxy = nil
		if c.Resolve != nil {
			t.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
				address, err := c.Resolve(ctx, s.Namespace, s.Name, s.port())
				if err != nil {
					return nil, err
				}
				return dial(ctx, network, address)
			}
		}
	}
	if c.transports == nil || len(c.transports) >= maxTransports {
		// Requests under way keep theirs; the rest is made again when it is needed.
		for _, old := range c.transports {
			old.close()
		}
		c.transports = map[string]dialed{}
	}
	known, err := c.Credentials.wrap(target, t)
	if err != nil {
		return nil, err
	}
	c.transports[key] = dialed{known, t.CloseIdleConnections}
	return known, nil
}
