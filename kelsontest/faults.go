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

// Rule says which requests are meant. An empty field means any. The requests of
// the server's own controllers are never meant.
type Rule struct {
	// Verb as in a role, several with commas between: "update,patch".
	Verb string
	// Resource as in a role, with its group: "pods", "pods/status",
	// "deployments.apps". "*" stands for any, also on one side of the slash.
	Resource string
	// Namespace and Name of the object. The name of a new one may be known to
	// nobody yet.
	Namespace, Name string
	// User who asks.
	User string
	// UserAgent is how the client calls itself, or the beginning of that.
	UserAgent string
	// Match decides about what is left; request.From tells more of a request.
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

// Action is what becomes of a request. Next answers it as usual.
type Action func(w http.ResponseWriter, r *http.Request, next http.Handler)

// Fail answers with an error, without doing what is asked. An error that the API
// knows is told as it is, another as an internal one.
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

// Drop breaks the request off, as if the connection was lost before the request
// arrived.
func Drop() Action {
	return func(http.ResponseWriter, *http.Request, http.Handler) { panic(http.ErrAbortHandler) }
}

// LoseAnswer does what is asked, and breaks off instead of answering: the client
// cannot know that it was done.
func LoseAnswer() Action {
	return func(_ http.ResponseWriter, r *http.Request, next http.Handler) {
		next.ServeHTTP(nowhere{}, r)
		panic(http.ErrAbortHandler)
	}
}

// Delay lets a request wait before it is done.
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

// Hold lets a request wait until a channel is closed, or gives something. It is
// Delay for tests that do not want to depend on time.
func Hold[T any](until <-chan T) Action {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		select {
		case <-until:
		case <-r.Context().Done():
		}
		next.ServeHTTP(w, r)
	}
}

// Nth is an action for the n-th of the requests that it gets, the first being 1,
// and none for the others.
func Nth(n int, action Action) Action {
	return counted(func(count int) bool { return count == n }, action)
}

// First is an action for the first n of the requests that it gets, and none for
// the others.
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

// nowhere is where an answer goes that gets lost.
type nowhere struct{}

func (nowhere) Header() http.Header         { return http.Header{} }
func (nowhere) Write(b []byte) (int, error) { return len(b), nil }
func (nowhere) WriteHeader(int)             {}
func (nowhere) Flush()                      {}

// Fault is an action that a server takes on requests.
type Fault struct {
	rule   Rule
	action Action
	faults *faults
	hits   atomic.Int64
}

// Hits tells how many requests have met the rule so far.
func (f *Fault) Hits() int { return int(f.hits.Load()) }

// Remove lets requests through again.
func (f *Fault) Remove() { f.faults.remove(f) }

// On takes an action on requests that meet a rule, from now on. Of several the
// first that was given comes first, and decides whether the others see the
// request.
func (s *Server) On(rule Rule, action Action) *Fault {
	f := &Fault{rule: rule, action: action, faults: &s.faults}
	s.faults.add(f)
	return f
}

// ClearFaults removes all that On has added.
func (s *Server) ClearFaults() {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.all = nil
}

// EndWatches ends the watches that meet a rule, as servers do from time to time,
// and tells how many there were. Clients begin new ones.
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

// faults is what a server does to requests before it answers them.
type faults struct {
	mu         sync.Mutex
	all        []*Fault
	recordings []*Recording
	watches    map[*watch]struct{}
}

// watch is one that is under way.
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

// following keeps a watch in mind, so that it can be ended.
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

// Request is one that a server has got.
type Request struct {
	request.Info
	// Query is what the URL has after the question mark.
	Query string
	// User who asked, and UserAgent how the client calls itself.
	User, UserAgent string
	// Body is what was sent, as far as the server has read it.
	Body []byte
	// Status is the code of the answer; 0 if there is none yet, or none at all.
	Status int
}

// String tells verb, resource and object: "update deployments.apps/status
// default/web". What was not answered well has the code behind it.
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

// Recording is the requests that meet a rule, from when it was begun.
type Recording struct {
	rule   Rule
	faults *faults

	mu       sync.Mutex
	requests []*Request
}

// Record writes requests down from now on.
func (s *Server) Record(rule Rule) *Recording {
	r := &Recording{rule: rule, faults: &s.faults}
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.recordings = append(slices.Clip(s.faults.recordings), r)
	return r
}

// Stop ends the recording. What it has stays.
func (rec *Recording) Stop() {
	f := rec.faults
	f.mu.Lock()
	defer f.mu.Unlock()
	f.recordings = slices.DeleteFunc(slices.Clone(f.recordings), func(other *Recording) bool { return other == rec })
}

// Requests returns those that there were, in the order in which they came.
func (rec *Recording) Requests() []Request {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	var all []Request
	for _, r := range rec.requests {
		all = append(all, *r)
	}
	return all
}

// Strings is Requests as text, for comparing.
func (rec *Recording) Strings() []string {
	var all []string
	for _, r := range rec.Requests() {
		all = append(all, r.String())
	}
	return all
}

// Reset forgets what was recorded.
func (rec *Recording) Reset() {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.requests = nil
}

// writing records a request that is then answered.
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
		see(http.StatusOK) // what is not said means this
	})
}

// seenWriter tells the code of an answer when it begins.
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

// Unwrap lets http.ResponseController find what is not here.
func (w *seenWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
