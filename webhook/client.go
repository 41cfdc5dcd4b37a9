// Package webhook calls the webhooks that extend the server. Start at Client and
// Endpoint. It never follows redirects, and bounds the size of answers; time is bounded
// by the context.
package webhook

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/egress"
	"github.com/apikeel/kelson/metrics/servercert"
	"github.com/apikeel/kelson/trace"
)

const (
	// MaxAnswer is the largest answer in bytes.
	MaxAnswer = 8 << 20
	// maxTransports is the largest number of webhooks to which connections are kept.
	maxTransports = 200
	// pingAfter is how long a connection with HTTP/2 may be silent before it is probed,
	// pingWithin how long the answer to the probe may take.
	pingAfter, pingWithin = 30 * time.Second, 15 * time.Second
	// smallAnswer is how many bytes of an answer are read without holding memory. If its length is not
	// known, ordinaryAnswer are held first, and as much as it may have when there is more.
	smallAnswer, ordinaryAnswer = 64 << 10, 1 << 20
	// answerTime is how long an answer may take that holds memory.
	answerTime = 5 * time.Second
	// maxErrorText is how many bytes of an error response are used in the error.
	maxErrorText = 2048
)

// ErrTooLarge: an answer has more than MaxAnswer bytes.
var ErrTooLarge = fmt.Errorf("the answer is larger than %d bytes", MaxAnswer)

// Endpoint is the address of a webhook: a URL, or a service of the cluster.
type Endpoint struct {
	URL     string
	Service *Service
	// CABundle has the CAs of the webhook in PEM; empty trusts those of the system.
	CABundle []byte
}

// Service identifies a service of the cluster.
type Service struct {
	Namespace, Name string
	Path            string
	Port            int32 // 0 is 443
}

// Resolver returns the host:port of a service.
type Resolver func(ctx context.Context, namespace, name string, port int32) (string, error)

// Client calls webhooks and keeps connections to them. It is safe for concurrent use.
type Client struct {
	// Resolve resolves services; nil uses their DNS names. It is called for every request,
	// so that none uses a connection to an address that a service no longer has.
	Resolve Resolver
	// ResolveOnDial calls Resolve for every connection instead: the gate
	// WebhookRoundTripLoadBalancing is off.
	ResolveOnDial bool
	// UserAgent is the User-Agent header.
	UserAgent string
	// TellTimeout adds the timeout to the query.
	TellTimeout bool
	// Credentials authenticate the client to webhooks; nil sends none.
	Credentials *Credentials
	// Dial connects to services of the cluster, DialURL to other addresses; nil dials
	// directly.
	Dial, DialURL egress.Dial
	// Self is used instead of a connection to the service default/kubernetes, which is
	// this server; nil connects as usual.
	Self http.RoundTripper
	// Certificates counts deprecated certificates of webhooks; nil does not.
	Certificates *servercert.Counter
	// Tracer traces calls that are not part of a client's request; nil does not.
	Tracer *trace.Tracer
	// Called is called after every request that was sent; nil is not.
	Called func(Call)
	// Hold waits until so many bytes of answers may be held; nil has no bound but MaxAnswer for each.
	Hold func(ctx context.Context, bytes int64) (release func(), err error)

	mu         sync.Mutex
	transports map[string]cachedTransport
}

// Call describes a request that was sent.
type Call struct {
	Host   string
	Status int // HTTP status; 0 if there was no answer
	Took   time.Duration
	// Sent and Received are sizes of the bodies in bytes; Received is negative if
	// unknown.
	Sent, Received int64
}

// cachedTransport is a cached transport with its close function.
type cachedTransport struct {
	http.RoundTripper
	close func()
}

// selfAddress is the address of the service default/kubernetes.
const selfAddress = "kubernetes.default.svc:" + httpsPort

// Refusal is the error of Post for an answer for which hold has refused memory.
type Refusal struct{ error }

// Unwrap returns the error of hold.
func (r *Refusal) Unwrap() error { return r.error }

// Holding returns a hold for Post that takes factor times the bytes of an answer of Client.Hold, and
// a function that gives them back.
func (c *Client) Holding(ctx context.Context, factor int64) (hold func(bytes int64) error, release func()) {
	giveBack := func() {}
	release = func() {
		giveBack()
		giveBack = func() {}
	}
	return func(bytes int64) error {
		if c.Hold == nil {
			return nil
		}
		release()
		held, err := c.Hold(ctx, factor*bytes)
		if err == nil {
			giveBack = held
		}
		return err
	}, release
}

// Post sends JSON and returns the body of a successful response. Any other response is
// an error with its text. Redirects are refused. ctx limits the time. Before more than a little of
// the answer is read, hold is called with how many bytes it may have, and again if that is too few; nil
// holds nothing. A webhook whose time is over when hold has waited is not to blame: that is a Refusal.
func (c *Client) Post(ctx context.Context, to *Endpoint, body []byte, hold func(bytes int64) error) ([]byte, error) {
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
	asked := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
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
		return nil, responseError(resp)
	}
	answer, waited, err := readAnswer(resp, hold, cancel)
	if err == nil || errors.Is(err, context.Canceled) {
		// A webhook that notices the timeout may send an incomplete answer.
		err = cmp.Or(asked.Err(), err)
	}
	// A webhook may also have given up meanwhile.
	if refused := (*Refusal)(nil); err != nil && (waited > time.Second || waited > 10*time.Millisecond && asked.Err() != nil) && !errors.As(err, &refused) {
		return nil, &Refusal{fmt.Errorf("the answer of a webhook came too late: %w", budget.ErrBusy)}
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

// errSlow: a large answer came too slowly.
var errSlow = fmt.Errorf("the answer did not come within %v", answerTime)

// readAnswer reads an answer of at most MaxAnswer bytes, and one byte more if there are more. waited
// is for how long hold has waited; cancel ends the request.
func readAnswer(resp *http.Response, hold func(bytes int64) error, cancel func()) (answer []byte, waited time.Duration, err error) {
	if resp.ContentLength > MaxAnswer {
		return nil, 0, ErrTooLarge
	}
	if answer, err = io.ReadAll(io.LimitReader(resp.Body, smallAnswer)); err != nil || len(answer) < smallAnswer {
		return answer, 0, err
	}
	stages := []int64{ordinaryAnswer, MaxAnswer}
	if resp.ContentLength >= 0 {
		stages = []int64{resp.ContentLength}
	}
	var slow atomic.Bool
	for i, size := range stages {
		if hold != nil {
			began := time.Now()
			if err := hold(size); err != nil {
				return nil, 0, &Refusal{err}
			}
			waited += time.Since(began)
		}
		if i == len(stages)-1 {
			size++ // to see its end
		}
		var timer *time.Timer // of this read: the next hold may wait for longer
		if hold != nil {
			timer = time.AfterFunc(answerTime, func() {
				slow.Store(true)
				cancel()
			})
		}
		part, err := io.ReadAll(io.LimitReader(resp.Body, size-int64(len(answer))))
		if timer != nil {
			timer.Stop()
		}
		if answer = append(answer, part...); err != nil {
			if slow.Load() {
				err = errSlow
			}
			return answer, waited, err
		}
		if int64(len(answer)) < size {
			break
		}
	}
	return answer, waited, nil
}

// Close closes idle connections.
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

// responseError returns the error for a response that is not successful.
func responseError(resp *http.Response) error {
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

// url returns the URL, and the key of the connection cache. The path is cleaned: many
// configurations have a duplicate slash.
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

// dialer returns the dialer for an endpoint, nil for the default.
func (c *Client) dialer(to *Endpoint) egress.Dial {
	if to.Service != nil {
		return c.Dial
	}
	return c.DialURL
}

// transport returns the transport to a webhook, cached by key. It uses HTTP/1.1, so
// that requests are spread over the backends behind one address, and HTTP/2 to URLs of
// this machine, which have one backend.
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
	if target == selfAddress && c.Self != nil {
		return c.Self, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if len(to.CABundle) > 0 {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(to.CABundle) {
			return nil, errors.New("unable to load root certificates: unable to parse bytes as PEM block")
		}
	}
	dial := (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	if chosen := c.dialer(to); chosen != nil {
		dial = chosen
	}
	t := &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: config, DialContext: dial,
		TLSHandshakeTimeout: 10 * time.Second, MaxIdleConnsPerHost: 25, IdleConnTimeout: 90 * time.Second,
		MaxResponseHeaderBytes: 1 << 20, DisableCompression: true,
	}
	if to.Service == nil && isLoopback(u.Hostname()) {
		t.ForceAttemptHTTP2 = true
		t.HTTP2 = &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingWithin}
	} else {
		config.NextProtos = []string{"http/1.1"}
	}
	var base http.RoundTripper = t
	if s := to.Service; s != nil {
		config.ServerName = u.Hostname()
		t.Proxy = nil
		resolve := func(ctx context.Context) (string, error) { return c.Resolve(ctx, s.Namespace, s.Name, s.port()) }
		switch {
		case c.Resolve == nil:
		case c.ResolveOnDial:
			t.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
				address, err := resolve(ctx)
				if err != nil {
					return nil, err
				}
				return dial(ctx, network, address)
			}
		default:
			base = resolvingTransport{t, resolve}
		}
	}
	if c.transports == nil || len(c.transports) >= maxTransports {
		// Requests in flight keep their transport; the others are created again when
		// needed.
		for _, old := range c.transports {
			old.close()
		}
		c.transports = map[string]cachedTransport{}
	}
	known, err := c.Credentials.wrap(target, t, base)
	if err != nil {
		return nil, err
	}
	c.transports[key] = cachedTransport{known, t.CloseIdleConnections}
	return known, nil
}

// resolvingTransport sends each request to the address that a service has then. Connections
// are kept by address.
type resolvingTransport struct {
	next    *http.Transport
	resolve func(ctx context.Context) (address string, err error)
}

// RoundTrip implements http.RoundTripper.
func (r resolvingTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	address, err := r.resolve(req.Context())
	if err != nil {
		return nil, err
	}
	resolved := req.Clone(req.Context()) // with the Host header of the service
	resolved.URL.Host = address
	return r.next.RoundTrip(resolved)
}

// isLoopback reports whether the host of a URL is this machine.
func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && ip.IsLoopback()
}
