package kelsontest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apikeel/kelson/request"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Rule selects requests. An empty field matches any. Requests of the server's own
// controllers never match.
type Rule struct {
	// Verb as in a role; several are separated by commas: "update,patch".
	Verb string
	// Resource as in a role, with its group: "pods", "pods/status", "deployments.apps".
	// "*" matches any, also on one side of the slash.
	Resource string
	// Namespace and Name of the object. A create may have no name yet.
	Namespace, Name string
	// User is the name of the authenticated user.
	User string
	// UserAgent is a prefix of the User-Agent header.
	UserAgent string
	// Match is called if everything else matches; request.From returns more about a
	// request.
	Match func(r *http.Request) bool
}

func (rule *Rule) matches(r *http.Request) bool {
	req := request.From(r.Context())
	is := func(want, got string) bool { return want == "" || want == got }
	return is(rule.Namespace, req.Namespace) && is(rule.Name, req.Name) && is(rule.User, req.User.Name) &&
		(rule.Verb == "" || slices.Contains(strings.Split(rule.Verb, ","), req.Verb)) &&
		(rule.Resource == "" || req.IsResource && rule.isAbout(&req.Info)) &&
		strings.HasPrefix(r.UserAgent(), rule.UserAgent) &&
		(rule.Match == nil || rule.Match(r))
}

func (rule *Rule) isAbout(info *request.Info) bool {
	is := func(want, got string) bool { return want == "*" || want == got }
	name, sub, _ := strings.Cut(rule.Resource, "/")
	resource, group, _ := strings.Cut(name, ".")
	if name == "*" {
		return rule.Resource == "*" || is(sub, info.Subresource)
	}
	return resource == info.Resource && group == info.Group && is(sub, info.Subresource)
}

// Action handles a request instead of the server. next serves it as usual.
type Action func(w http.ResponseWriter, r *http.Request, next http.Handler)

// Fail answers with an error and does nothing else. An API error is sent as it is,
// another one as an internal error.
func Fail(err error) Action {
	status := apierrors.NewInternalError(err).ErrStatus
	if known := apierrors.APIStatus(nil); errors.As(err, &known) {
		status = known.Status()
	}
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("Content-Type", "application/json")
		if d := status.Details; d != nil && d.RetryAfterSeconds > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int(d.RetryAfterSeconds)))
		}
		w.WriteHeader(int(status.Code))
		_ = json.NewEncoder(w).Encode(&status)
	}
}

// Drop breaks the connection off before the request is served, as if the request had
// not arrived.
func Drop() Action {
	return func(http.ResponseWriter, *http.Request, http.Handler) { panic(http.ErrAbortHandler) }
}

// LoseAnswer serves the request, and breaks the connection off instead of answering:
// the client cannot know that it was done.
func LoseAnswer() Action {
	return func(_ http.ResponseWriter, r *http.Request, next http.Handler) {
		next.ServeHTTP(nowhere{}, r)
		panic(http.ErrAbortHandler)
	}
}

// Delay waits before the request is served.
func Delay(d time.Duration) Action {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done():
		}
		next.ServeHTTP(w, r)
	}
}

// Hold waits until a channel is closed or receives, before the request is served. It is
// Delay without depending on time.
func Hold[T any](until <-chan T) Action {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		select {
		case <-until:
		case <-r.Context().Done():
		}
		next.ServeHTTP(w, r)
	}
}

// Nth applies an action to the n-th matching request, counted from 1, and to no other.
func Nth(n int, action Action) Action {
	return counted(func(count int) bool { return count == n }, action)
}

// First applies an action to the first n matching requests, and to no other.
func First(n int, action Action) Action {
	return counted(func(count int) bool { return count <= n }, action)
}

func counted(meant func(count int) bool, action Action) Action {
	var count atomic.Int64
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if meant(int(count.Add(1))) {
			action(w, r, next)
		} else {
			next.ServeHTTP(w, r)
		}
	}
}

// nowhere is a response writer that discards the response.
type nowhere struct{}

func (nowhere) Header() http.Header         { return http.Header{} }
func (nowhere) Write(b []byte) (int, error) { return len(b), nil }
func (nowhere) WriteHeader(int)             {}
func (nowhere) Flush()                      {}

// Fault is an action that is applied to matching requests.
type Fault struct {
	rule   Rule
	action Action
	faults *faults
	hits   atomic.Int64
}

// Hits returns the number of requests that matched so far.
func (f *Fault) Hits() int { return int(f.hits.Load()) }

// Remove removes the fault.
func (f *Fault) Remove() { f.faults.remove(f) }

// On applies an action to matching requests from now on. Of several faults the oldest
// comes first, and decides whether the others see the request.
func (s *Server) On(rule Rule, action Action) *Fault {
	f := &Fault{rule: rule, action: action, faults: &s.faults}
	s.faults.add(f)
	return f
}

// ClearFaults removes all faults.
func (s *Server) ClearFaults() {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.all = nil
}

// EndWatches ends the matching watches, as servers do from time to time, and returns
// their number. Clients start new ones.
func (s *Server) EndWatches(rule Rule) int {
	f := &s.faults
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for w := range f.watches {
		if rule.matches(w.request) {
			w.end()
			n++
		}
	}
	return n
}

// faults is the list of faults, recordings and open watches of a server.
type faults struct {
	mu         sync.Mutex
	all        []*Fault
	recordings []*Recording
	watches    map[*watch]struct{}
}

// watch is an open watch.
type watch struct {
	request *http.Request
	end     context.CancelFunc
}

func (f *faults) add(fault *Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(slices.Clip(f.all), fault)
}

func (f *faults) remove(fault *Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = slices.DeleteFunc(slices.Clone(f.all), func(other *Fault) bool { return other == fault })
}

// around is the middleware of the server.
func (f *faults) around(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		all, recordings := f.all, f.recordings
		f.mu.Unlock()
		h := next
		if request.From(r.Context()).Verb == request.Watch {
			h = f.following(h)
		}
		for _, fault := range slices.Backward(all) {
			if fault.rule.matches(r) {
				h = fault.before(h)
			}
		}
		for _, recording := range recordings {
			if recording.rule.matches(r) {
				h = recording.writing(h)
			}
		}
		h.ServeHTTP(w, r)
	})
}

func (f *Fault) before(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.hits.Add(1)
		f.action(w, r, next)
	})
}

// following registers a watch, so that EndWatches can end it.
func (f *faults) following(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, end := context.WithCancel(r.Context())
		defer end()
		one := &watch{r, end}
		f.mu.Lock()
		if f.watches == nil {
			f.watches = map[*watch]struct{}{}
		}
		f.watches[one] = struct{}{}
		f.mu.Unlock()
		defer func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			delete(f.watches, one)
		}()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// Request is a recorded request.
type Request struct {
	request.Info
	// Query is the raw query of the URL.
	Query string
	// User is the authenticated user, UserAgent the User-Agent header.
	User, UserAgent string
	// Body is the request body, as far as the server has read it.
	Body []byte
	// Status is the HTTP status; 0 if there is no response (yet).
	Status int
}

// String returns verb, resource and object: "update deployments.apps/status
// default/web", followed by the status if that is not successful.
func (r Request) String() string {
	what := r.Path
	if r.IsResource {
		what = r.Resource
		if r.Group != "" {
			what += "." + r.Group
		}
		if r.Subresource != "" {
			what += "/" + r.Subresource
		}
		if object := strings.Trim(r.Namespace+"/"+r.Name, "/"); object != "" {
			what += " " + object
		}
	}
	if r.Status >= http.StatusBadRequest {
		what += " → " + strconv.Itoa(r.Status)
	}
	return r.Verb + " " + what
}

// Recording collects the matching requests since it was started.
type Recording struct {
	rule   Rule
	faults *faults

	mu       sync.Mutex
	requests []*Request
}

// Record starts a recording.
func (s *Server) Record(rule Rule) *Recording {
	r := &Recording{rule: rule, faults: &s.faults}
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.recordings = append(slices.Clip(s.faults.recordings), r)
	return r
}

// Stop ends the recording. The recorded requests stay.
func (rec *Recording) Stop() {
	f := rec.faults
	f.mu.Lock()
	defer f.mu.Unlock()
	f.recordings = slices.DeleteFunc(slices.Clone(f.recordings), func(other *Recording) bool { return other == rec })
}

// Requests returns the recorded requests in the order of arrival.
func (rec *Recording) Requests() []Request {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	var all []Request
	for _, r := range rec.requests {
		all = append(all, *r)
	}
	return all
}

// Strings returns Requests as text, for comparing.
func (rec *Recording) Strings() []string {
	var all []string
	for _, r := range rec.Requests() {
		all = append(all, r.String())
	}
	return all
}

// Reset removes the recorded requests.
func (rec *Recording) Reset() {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.requests = nil
}

// writing records a request and serves it.
func (rec *Recording) writing(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		req := request.From(r.Context())
		one := &Request{Info: req.Info, Query: r.URL.RawQuery, User: req.User.Name, UserAgent: r.UserAgent()}
		rec.mu.Lock()
		rec.requests = append(rec.requests, one)
		rec.mu.Unlock()
		var body bytes.Buffer
		if r.Body != nil && r.Body != http.NoBody {
			r.Body = struct {
				io.Reader
				io.Closer
			}{io.TeeReader(r.Body, &body), r.Body}
		}
		see := func(status int) {
			rec.mu.Lock()
			defer rec.mu.Unlock()
			if one.Status == 0 {
				one.Status, one.Body = status, body.Bytes()
			}
		}
		writer := &seenWriter{w, see}
		if h, ok := w.(http.Hijacker); ok {
			next.ServeHTTP(struct {
				*seenWriter
				http.Hijacker
			}{writer, h}, r)
		} else {
			next.ServeHTTP(writer, r)
		}
		see(http.StatusOK) // the default status
	})
}

// seenWriter reports the status when the response begins.
type seenWriter struct {
	http.ResponseWriter
	see func(status int)
}

func (w *seenWriter) WriteHeader(status int) {
	if status >= http.StatusOK || status == http.StatusSwitchingProtocols {
		w.see(status)
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *seenWriter) Write(b []byte) (int, error) {
	w.see(http.StatusOK)
	return w.ResponseWriter.Write(b)
}

// Flush implements http.Flusher.
func (w *seenWriter) Flush() {
	w.see(http.StatusOK)
	_ = http.NewResponseController(w.ResponseWriter).Flush()
}

// Unwrap is for http.ResponseController.
func (w *seenWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
