package aggregator

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/apikeel/kelson/egress"
	"github.com/apikeel/kelson/internal/protect"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// This file watches the availability of one remote API server.

// Intervals and timeouts of the availability checks.
const (
	checkPeriod  = 30 * time.Second // between two checks of an available backend
	checkTimeout = 5 * time.Second
	checkTries   = 5
	// retryDelay is the delay after the first failure; it doubles up to maxRetryDelay.
	retryDelay    = 100 * time.Millisecond
	maxRetryDelay = 5 * time.Second
	// minCheckAge is the age of the last check from which on a failed request triggers
	// another.
	minCheckAge = time.Second
	// idleDelay is the pause between looks for remote APIServices while there are none,
	// so that services and endpoints need not be followed.
	idleDelay = time.Second
)

// backend is the server of a remote APIService. It belongs to one spec: when the spec
// changes, another backend replaces it.
type backend struct {
	server  *Server
	name    string
	uid     types.UID
	spec    apiregistration.APIServiceSpec
	gv      schema.GroupVersion
	watched bool // the goroutine runs; guarded by Server.mu

	transport *http.Transport
	pool      connPool
	broken    error // why there is no transport: the CA bundle is not valid
	// available is the stored Available condition.
	available atomic.Bool
	// written is the condition that this backend wrote last.
	written   atomic.Pointer[apiregistration.APIServiceCondition]
	target    atomic.Pointer[[]*url.URL]       // resolved addresses; nil when they must be resolved again
	documents atomic.Pointer[backendDocuments] // nil until something was fetched

	checked        atomic.Int64  // time of the last check, in Unix nanoseconds
	checkScheduled atomic.Bool   // a check is scheduled by checkSoon
	answers        atomic.Bool   // the last check got a response, of whatever status
	kick           chan struct{} // capacity 1: check now
	stopped        chan struct{}
}

// dial returns the function that connects to services.
func (s *Server) dial() egress.Dial {
	if s.Dial != nil {
		return s.Dial
	}
	return (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
}

func (s *Server) newBackend(service *apiregistration.APIService) *backend {
	b := &backend{
		server: s, name: service.Name, uid: service.UID, spec: *service.Spec.DeepCopy(),
		gv:   schema.GroupVersion{Group: service.Spec.Group, Version: service.Spec.Version},
		kick: make(chan struct{}, 1), stopped: make(chan struct{}),
	}
	ref := b.spec.Service
	config := &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: ref.Name + "." + ref.Namespace + ".svc",
		InsecureSkipVerify: b.spec.InsecureSkipTLSVerify, // insecureSkipTLSVerify of the APIService
	}
	if len(b.spec.CABundle) > 0 {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(b.spec.CABundle) {
			b.broken = errors.New("unable to load root certificates: unable to parse bytes as PEM block")
		}
	}
	if s.Certificate != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return s.Certificate() }
	}
	b.transport = &http.Transport{
		DialContext:         s.dial(),
		TLSClientConfig:     config,
		TLSHandshakeTimeout: 10 * time.Second,
		ForceAttemptHTTP2:   true,
		// Pings detect a dead connection that was not closed.
		HTTP2:               &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
		MaxIdleConnsPerHost: 25,
		IdleConnTimeout:     90 * time.Second,
		DisableCompression:  true, // bodies are forwarded unchanged

		MaxResponseHeaderBytes: maxAnswerHeader,
	}
	b.pool.transport = b.transport
	return b
}

// observe updates the backend with the stored APIService. If its condition is not the one
// that was written last, the backend is checked again.
func (b *backend) observe(service *apiregistration.APIService) {
	now := condition(&service.Status)
	b.available.Store(now != nil && now.Status == apiregistration.ConditionTrue)
	if said := b.written.Load(); said != nil && (now == nil || now.Status != said.Status || now.Reason != said.Reason) {
		b.checkNow()
	}
}

func (b *backend) checkNow() {
	select {
	case b.kick <- struct{}{}:
	default:
	}
}

// checkSoon triggers a check because a request failed: now, or when the last check is
// minDoubt old.
func (b *backend) checkSoon() {
	wait := minCheckAge - time.Since(time.Unix(0, b.checked.Load()))
	if wait <= 0 {
		b.checkNow()
	} else if b.checkScheduled.CompareAndSwap(false, true) {
		time.AfterFunc(wait, func() {
			b.checkScheduled.Store(false)
			b.checkNow()
		})
	}
}

// concerns reports whether a changed Service or EndpointSlice may change the address of
// the backend.
func (b *backend) concerns(c resource.Change) bool {
	name := c.Object.GetName()
	if slice, ok := c.Object.(*discoveryv1.EndpointSlice); ok {
		name = slice.Labels[discoveryv1.LabelServiceName]
	}
	return name == b.spec.Service.Name && c.Object.GetNamespace() == b.spec.Service.Namespace
}

// forgetAddress drops the resolved addresses and triggers a check.
func (b *backend) forgetAddress() {
	b.target.Store(nil)
	b.checkNow()
}

func (b *backend) stop() {
	close(b.stopped)
	b.closeIdle()
	b.pool.close()
}

// closeIdle closes idle connections.
func (b *backend) closeIdle() {
	b.transport.CloseIdleConnections()
	b.pool.prune(0)
}

// run checks the backend until it is stopped.
func (b *backend) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-b.stopped:
			cancel()
		case <-ctx.Done():
		}
	}()
	for delay := retryDelay; ctx.Err() == nil; {
		c := b.check(ctx)
		if ctx.Err() != nil {
			return
		}
		b.checked.Store(time.Now().UnixNano())
		if c.Status == apiregistration.ConditionTrue {
			delay = checkPeriod
			b.fetchFirst(ctx) // before the condition: discovery must have the version when it is available
		} else {
			b.dropDocuments()
			if b.answers.Load() {
				// As kube-apiserver has it, discovery is that of the backend also while
				// that fails the check.
				b.fetchFirst(ctx)
			}
		}
		b.written.Store(&c)
		if err := b.server.setCondition(ctx, b.name, c); err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
			b.server.Logger.Warn("the condition of an APIService could not be written", "name", b.name, "error", err)
			delay = min(delay, time.Second)
		}
		if c.Status == apiregistration.ConditionTrue {
			b.fetchDocuments(ctx)
		}
		pause(ctx, b.kick, delay)
		b.pool.prune(connIdle)
		if c.Status == apiregistration.ConditionTrue {
			delay = retryDelay
		} else {
			delay = min(2*delay, maxRetryDelay)
		}
	}
}

// pause waits for d, or until kick or ctx.
func pause(ctx context.Context, kick <-chan struct{}, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-kick:
	case <-t.C:
	}
}

// check finds out whether the backend can serve requests.
func (b *backend) check(ctx context.Context) apiregistration.APIServiceCondition {
	no := func(status apiregistration.ConditionStatus, reason, format string, args ...any) apiregistration.APIServiceCondition {
		return apiregistration.APIServiceCondition{
			Type: apiregistration.Available, Status: status, Reason: reason, Message: fmt.Sprintf(format, args...),
		}
	}
	if reason, message := b.checkService(ctx); reason != "" {
		status := apiregistration.ConditionFalse
		if reason == "ServiceAccessError" || reason == "EndpointsAccessError" {
			status = apiregistration.ConditionUnknown
		}
		return no(status, reason, "%s", message)
	}
	results := make(chan error, checkTries)
	tries := func(n int) {
		for range n {
			go func() { results <- protect.Call(func() error { return b.probe(ctx) }) }()
		}
	}
	tries(1)
	err := <-results
	// A single failure does not make an available backend unavailable, unless it was a
	// timeout: check again.
	late := errors.Is(err, context.DeadlineExceeded)
	if said := b.written.Load(); err != nil && !late && ctx.Err() == nil && (said == nil || said.Status == apiregistration.ConditionTrue) {
		tries(checkTries - 1)
		for range checkTries - 1 {
			if err = <-results; err == nil {
				break
			}
		}
	}
	if err != nil {
		b.closeIdle()
		return no(apiregistration.ConditionFalse, "FailedDiscoveryCheck", "%v", err)
	}
	return no(apiregistration.ConditionTrue, "Passed", "all checks passed")
}

// checkService checks the Service and its endpoints. It returns the reason why there is
// no address.
func (b *backend) checkService(ctx context.Context) (reason, message string) {
	ref := b.spec.Service
	if b.server.Resolve != nil {
		return "", "" // Resolve may know services that are not API objects
	}
	service, err := b.service(ctx)
	switch {
	case apierrors.IsNotFound(err):
		return "ServiceNotFound", fmt.Sprintf("service/%s in %q is not present", ref.Name, ref.Namespace)
	case err != nil:
		return "ServiceAccessError", fmt.Sprintf("service/%s in %q cannot be checked due to: %v", ref.Name, ref.Namespace, err)
	case service.Spec.Type != corev1.ServiceTypeClusterIP:
		return "", ""
	}
	port := findPort(service, servicePort(ref))
	if port == nil {
		return "ServicePortError", fmt.Sprintf("service/%s in %q is not listening on port %d", ref.Name, ref.Namespace, servicePort(ref))
	}
	slices, err := b.endpoints(ctx)
	switch {
	case err != nil:
		return "EndpointsAccessError", fmt.Sprintf("service/%s in %q cannot be checked due to: %v", ref.Name, ref.Namespace, err)
	case len(slices) == 0:
		return "EndpointsNotFound", fmt.Sprintf("cannot find endpointslices for service/%s in %q", ref.Name, ref.Namespace)
	case len(readyHosts(slices, port.Name)) == 0:
		return "MissingEndpoints", fmt.Sprintf("endpointslices for service/%s in %q have no addresses with port name %q", ref.Name, ref.Namespace, port.Name)
	}
	return "", ""
}

// probe requests the discovery of the group and version, which every API server has.
func (b *backend) probe(ctx context.Context) error {
	path := "/apis/" + b.gv.String()
	if b.gv.Group == "" {
		path = "/api/" + b.gv.Version
	}
	if b.broken != nil {
		return b.broken
	}
	b.answers.Store(false)
	target, err := b.resolve(ctx)
	if err != nil {
		return err
	}
	address := *target
	address.Path = path
	resp, err := b.get(ctx, &address, nil)
	b.answers.Store(err == nil)
	if err != nil {
		return fmt.Errorf("failing or missing response from %v: %w", &address, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode < http.StatusOK || resp.StatusCode >= http.StatusMultipleChoices {
		return fmt.Errorf("failing or missing response from %v: bad status from %v: %d", &address, &address, resp.StatusCode)
	}
	return nil
}

// get sends a request of the server itself, with checkTimeout. Redirects are not
// followed.
func (b *backend) get(ctx context.Context, address *url.URL, header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address.String(), nil)
	if err != nil {
		return nil, err
	}
	for name, values := range header {
		req.Header[name] = values
	}
	(&request.User{Name: "system:kube-aggregator", Groups: []string{request.Masters}}).SetHeaders(req.Header)
	return (&http.Client{
		Transport: b.transport, Timeout: checkTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}).Do(req)
}
