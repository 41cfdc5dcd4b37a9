// Package history answers what objects were, when they changed, and who changed them, out
// of the versions that the store keeps. Start at Pages, which has a page below
// /debug/kelson/ for each kind of question:
//
//	/debug/kelson/history  the changes of an object or of a namespace, newest first
//	/debug/kelson/at       an object or a list as it was at a moment
//	/debug/kelson/diff     what differs between two moments
//
// The pages only read; whoever undoes a change writes through the API. They are in no
// discovery document. A user needs the right to get the path, and for everything that is
// shown the right to read it now: get for one object, list for many, for secrets both.
// What a user may not read is left out before it is read.
//
// Every answer is bounded in objects and bytes, and has a token for the next page.
package history

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/status"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/wire"
)

// The paths of the pages.
const (
	ChangesPath = "/debug/kelson/history"
	AtPath      = "/debug/kelson/at"
	DiffPath    = "/debug/kelson/diff"
)

// Bounds of an answer. One object may be larger than answerBytes, and is shown.
const (
	defaultLimit = 100
	maxLimit     = 1000
	answerBytes  = 8 << 20
)

// Pages are the pages about the past of the objects of a server.
type Pages struct {
	// Catalog returns what is served now. Objects of resources that are not served any
	// more cannot be decoded, and are left out.
	Catalog func() *resource.Catalog
	// Backend returns where the objects of a definition are. Main is where those are that
	// are shown if a question names no resource.
	Backend func(def *resource.Definition) storage.Backend
	Main    func() storage.Backend
	// Authorizer decides what of the objects a user may see; nil shows all.
	Authorizer authz.Authorizer
	// Memory is the memory of the server, in which pages wait for room; nil is unbounded.
	Memory *budget.Memory
}

// Handlers returns the pages by their paths.
func (p *Pages) Handlers() map[string]http.Handler {
	return map[string]http.Handler{ChangesPath: p.page(p.changes, false), AtPath: p.page(p.at, true), DiffPath: p.page(p.diff, false)}
}

// page is a page that answers a question with a body of JSON. If the question has a name,
// and single is set, that is one object.
func (p *Pages) page(answer func(ctx context.Context, q *question) (any, error), single bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			status.Write(w, r, metav1.Status{Status: metav1.StatusFailure, Code: http.StatusMethodNotAllowed, Reason: metav1.StatusReasonMethodNotAllowed, Message: "history is only read"})
			return
		}
		q, err := p.parse(r)
		var document any
		if err == nil {
			var release func()
			if release, err = p.hold(r.Context(), q, single && q.name != ""); err == nil {
				defer release()
				document, err = answer(r.Context(), q)
			}
		}
		if err != nil {
			err = &apierrors.StatusError{ErrStatus: p.apiError(r.Context(), q, err)}
		}
		status.WriteJSON(w, r, document, err)
	})
}

const (
	// pageFactor is how many times its bytes of objects a page holds: what is stored, the
	// object in JSON, its fields, and the answer.
	pageFactor = 4
	// objectBytes is the size of the object that a page about one object is taken to have.
	objectBytes = 512 << 10
	// busySeconds is after how long a client may come again.
	busySeconds = 1
)

// hold waits until a page may be made. What it holds is given back when it is written.
func (p *Pages) hold(ctx context.Context, q *question, single bool) (release func(), err error) {
	if p.Memory == nil {
		return func() {}, nil
	}
	bytes := int64(pageFactor * answerBytes)
	if single {
		bytes = pageFactor * objectBytes
	}
	return p.Memory.Answers.Acquire(ctx, bytes, q.user.IsAdministrator())
}

// question is what a request asks.
type question struct {
	user    *request.User
	query   request.Query
	catalog *resource.Catalog
	served  *resource.Served // nil asks for all resources
	backend storage.Backend
	// namespace is empty for all namespaces, and for objects of the cluster.
	namespace, name string
	labels          *wire.Selector
	limit           int
	// floor is the oldest revision that the user may see: who has rights in one namespace
	// sees nothing of another of the same name before it.
	floor int64
}

func (q *question) get(name string) string {
	return q.query.Get(name)
}

// parse reads the parameters that all pages have.
func (p *Pages) parse(r *http.Request) (*question, error) {
	query := request.QueryOf(r)
	q := &question{user: &request.From(r.Context()).User, query: query, catalog: p.Catalog(), namespace: query.Get("namespace"), name: query.Get("name"), limit: defaultLimit}
	if name := query.Get("resource"); name != "" {
		served, ok := q.catalog.Lookup(query.Get("group"), query.Get("version"), name)
		if !ok && query.Get("version") == "" {
			if def, found := q.catalog.Definition(query.Get("group"), name); found {
				served, ok = preferred(q.catalog, def)
			}
		}
		if !ok || served.Definition.Virtual() {
			return q, apierrors.NewBadRequest(fmt.Sprintf("%s is not stored by this server, so it has no history", name))
		}
		q.served = served
		if !served.Definition.Namespaced {
			q.namespace = ""
		}
	} else if q.name != "" {
		return q, apierrors.NewBadRequest("name needs resource")
	}
	if q.served != nil && q.served.Definition.Namespaced && q.name != "" && q.namespace == "" {
		return q, apierrors.NewBadRequest("name needs namespace")
	}
	if strings.ContainsAny(q.namespace+q.name, "/\x00") {
		return q, apierrors.NewBadRequest("a name has no slash")
	}
	q.backend = p.Main()
	if q.served != nil {
		q.backend = p.Backend(q.served.Definition)
	}
	var err error
	selector, err := labels.Parse(query.Get("labelSelector"))
	if err != nil {
		return q, apierrors.NewBadRequest(err.Error())
	}
	q.labels = wire.NewSelector(selector, fields.Everything())
	if text := query.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return q, apierrors.NewBadRequest("limit is a number above 0")
		}
		q.limit = min(n, maxLimit)
	}
	return q, nil
}

// preferred returns the version of a definition that clients are offered first.
func preferred(catalog *resource.Catalog, def *resource.Definition) (*resource.Served, bool) {
	for i := range def.Versions {
		v := &def.Versions[i]
		if s, ok := catalog.Lookup(def.GroupOf(v), v.Name, def.Resource); ok {
			return s, true
		}
	}
	return nil, false
}

// moment returns the revision that a parameter names: a revision, a time in RFC 3339, or
// with nothing the current one.
func (q *question) moment(ctx context.Context, name string) (int64, error) {
	text := q.get(name)
	if text == "" || text == "now" {
		return q.backend.Revision(ctx)
	}
	if revision, err := strconv.ParseInt(text, 10, 64); err == nil && revision > 0 {
		return revision, nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return 0, apierrors.NewBadRequest(fmt.Sprintf("%s=%q is neither a revision nor a time such as 2006-01-02T15:04:05Z", name, text))
	}
	return storage.RevisionAt(ctx, q.backend, t)
}

// Kept tells which history the store has.
type Kept struct {
	Oldest int64      `json:"oldest,omitempty"`
	Newest int64      `json:"newest"`
	Since  *time.Time `json:"since,omitempty"`
	// For is how long versions are kept; empty if the store decides.
	For      string `json:"for,omitempty"`
	Bytes    int64  `json:"bytes,omitempty"`
	MaxBytes int64  `json:"maxBytes,omitempty"`
	// Note says in words what a person should know about it.
	Note string `json:"note,omitempty"`
}

func (q *question) kept(ctx context.Context) (Kept, error) {
	k, err := storage.KeptHistory(ctx, q.backend)
	out := Kept{Oldest: k.Oldest, Newest: k.Newest, Bytes: k.Bytes, MaxBytes: k.MaxBytes}
	if !k.Since.IsZero() {
		since := k.Since.UTC()
		out.Since = &since
	}
	switch {
	case !k.Times:
		out.Note = "the store keeps versions as long as it wants, and does not know their times: they are those of managedFields"
	case k.MaxBytes == 0:
		out.For = k.Age.String()
		out.Note = "versions are kept as long as watches need them; 'kelson serve --history 24h' keeps them longer"
	default:
		out.For = k.Age.String()
	}
	return out, err
}

// apiError gives an error the words for a client.
func (p *Pages) apiError(ctx context.Context, q *question, err error) metav1.Status {
	var known apierrors.APIStatus
	switch {
	case errors.As(err, &known):
	case errors.Is(err, storage.ErrCompacted):
		text := "that moment is before the history that is kept"
		if k, err := q.kept(ctx); err == nil && k.Oldest > 0 {
			text += fmt.Sprintf(", which begins at revision %d", k.Oldest)
			if k.Since != nil {
				text += " of " + k.Since.Format(time.RFC3339)
			}
			if k.Note != "" {
				text += "; " + k.Note
			}
		}
		known = apierrors.NewResourceExpired(text)
	case errors.Is(err, budget.ErrBusy):
		known = apierrors.NewTooManyRequests(err.Error(), busySeconds)
	case errors.Is(err, storage.ErrFutureRevision), errors.Is(err, errors.ErrUnsupported):
		known = apierrors.NewBadRequest(err.Error())
	default:
		known = apierrors.NewInternalError(err)
	}
	return known.Status()
}

// mayRead returns an error unless the user may read an object, or with an empty name all
// objects of a resource in a namespace.
func (p *Pages) mayRead(ctx context.Context, q *question, s *resource.Served, namespace, name string) error {
	if p.Authorizer == nil {
		return nil
	}
	a := authz.Attributes{
		User: q.user, Verb: request.Get, IsResource: true, Group: s.GroupVersion.Group, Version: s.GroupVersion.Version,
		Resource: s.Definition.Resource, Namespace: namespace, Name: name,
	}
	if isNamespaces(s) {
		a.Namespace = name // as a request for a namespace has it
	}
	if name != "" {
		return authz.CheckBeside(ctx, p.Authorizer, &a)
	}
	if s.Definition.Group == "" && s.Definition.Resource == "secrets" {
		if err := authz.CheckBeside(ctx, p.Authorizer, &a); err != nil {
			return err
		}
	}
	a.Verb = request.List
	return authz.CheckBeside(ctx, p.Authorizer, &a)
}

// isNamespaces reports whether a resource is that of the namespaces themselves.
func isNamespaces(s *resource.Served) bool {
	return s.Definition.Group == "" && s.Definition.Resource == "namespaces"
}

// part is a resource that an answer covers, with the prefix of the keys that it covers.
type part struct {
	*resource.Served
	prefix string // of the resource
	// only is the part of the prefix that was asked for: a namespace, or a key.
	only string
	// key says that only is one key.
	key bool
}

// split returns the namespace and the name in a key of the part.
func (p *part) split(key string) (namespace, name string) {
	rest := strings.TrimPrefix(key, p.prefix)
	if p.Definition.Namespaced {
		if namespace, name, ok := strings.Cut(rest, "/"); ok {
			return namespace, name
		}
	}
	return "", rest
}

func (p *part) covers(key string) bool {
	return key == p.only || !p.key && strings.HasPrefix(key, p.only)
}

// parts returns what a question is about and the user may read, and which resources it may
// not. If the question names a resource, not to be allowed to read it is an error.
func (p *Pages) parts(ctx context.Context, q *question) (parts []part, hidden []string, err error) {
	if q.served != nil {
		if err := p.mayRead(ctx, q, q.served, q.namespace, q.name); err != nil {
			return nil, nil, err
		}
		return []part{newPart(q.served, q.namespace, q.name)}, nil, p.setFloor(ctx, q, q.served, q.namespace, q.name)
	}
	seen := map[string]bool{}
	for _, def := range q.catalog.Definitions() {
		s, ok := preferred(q.catalog, def)
		if !ok || def.Virtual() || seen[def.StorageKey] || p.Backend(def) != q.backend {
			continue
		}
		seen[def.StorageKey] = true
		namespace, name := q.namespace, ""
		if q.namespace != "" && !def.Namespaced {
			if !isNamespaces(s) {
				continue
			}
			namespace, name = "", q.namespace
		}
		if err := p.mayRead(ctx, q, s, namespace, name); err != nil {
			hidden = append(hidden, s.GroupVersionResource().GroupResource().String())
			continue
		}
		if err := p.setFloor(ctx, q, s, namespace, name); err != nil {
			return nil, nil, err
		}
		parts = append(parts, newPart(s, namespace, name))
	}
	return parts, hidden, nil
}

// setFloor sets the floor of a question about one namespace, or the object of it, unless the
// user may read the resource in all of them.
func (p *Pages) setFloor(ctx context.Context, q *question, s *resource.Served, namespace, name string) error {
	if isNamespaces(s) {
		namespace = name // a role in the namespace may allow to read its object
	}
	if namespace == "" || q.floor > 0 || p.mayRead(ctx, q, s, "", "") == nil {
		return nil
	}
	kv, err := p.Main().Get(ctx, storage.Root+"namespaces/"+namespace)
	switch {
	case errors.Is(err, storage.ErrNotFound):
		q.floor = math.MaxInt64
	case err != nil:
		return err
	default:
		q.floor = kv.CreateRevision
	}
	return nil
}

// visible returns an error if the user may not see a revision.
func (q *question) visible(revision int64) error {
	if revision < q.floor {
		return apierrors.NewResourceExpired("that moment is before this namespace was created; to see one of the same name before it takes the right to list in all namespaces")
	}
	return nil
}

func newPart(s *resource.Served, namespace, name string) part {
	p := part{Served: s, prefix: storage.Root + s.Definition.StorageKey + "/"}
	p.only = p.prefix
	if namespace != "" {
		p.only += namespace + "/"
	}
	if name != "" {
		p.only, p.key = p.only+name, true
	}
	return p
}

// find returns the part that a key belongs to.
func find(byPrefix map[string]*part, key string) *part {
	for i := len(storage.Root); i < len(key); i++ {
		if key[i] == '/' {
			if p := byPrefix[key[:i+1]]; p != nil && p.covers(key) {
				return p
			}
		}
	}
	return nil
}
