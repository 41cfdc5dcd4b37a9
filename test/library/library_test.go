// Package library uses Kelson as those do who write an API server with it: by what
// is exported, and nothing else.
package library

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

const group = "library.example.com"

// Book is the form of v2, in which books are stored.
type Book struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Title  string     `json:"title,omitempty"`
	Pages  int        `json:"pages,omitempty"`
	Status BookStatus `json:"status,omitempty"`
}

// BookStatus says where a book is.
type BookStatus struct {
	Reader string `json:"reader,omitempty"`
}

// OldBook is the form of v1, which had the title in two parts.
type OldBook struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Name     string     `json:"name,omitempty"`
	Subtitle string     `json:"subtitle,omitempty"`
	Pages    int        `json:"pages,omitempty"`
	Status   BookStatus `json:"status,omitempty"`
}

// Shelf is computed: it has the books that begin with its name.
type Shelf struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Books []string `json:"books,omitempty"`
}

// Greeting is answered, and not kept.
type Greeting struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Text string `json:"text,omitempty"`
}

// DeepCopyObject implements runtime.Object.
func (b *Book) DeepCopyObject() runtime.Object { return resource.Copy(b) }

// DeepCopyObject implements runtime.Object.
func (b *OldBook) DeepCopyObject() runtime.Object { return resource.Copy(b) }

// DeepCopyObject implements runtime.Object.
func (s *Shelf) DeepCopyObject() runtime.Object { return resource.Copy(s) }

// DeepCopyObject implements runtime.Object.
func (g *Greeting) DeepCopyObject() runtime.Object { return resource.Copy(g) }

func books() resource.Definition {
	old := resource.Plain("v1", func(b *OldBook) {
		if b.Pages == 0 {
			b.Pages = 1
		}
	})
	old.ToHub = resource.Convert(func(b *OldBook) (*Book, error) {
		title := b.Name
		if b.Subtitle != "" {
			title += ": " + b.Subtitle
		}
		return &Book{TypeMeta: b.TypeMeta, ObjectMeta: b.ObjectMeta, Title: title, Pages: b.Pages, Status: b.Status}, nil
	})
	old.FromHub = resource.Convert(func(b *Book) (*OldBook, error) {
		name, subtitle, _ := strings.Cut(b.Title, ": ")
		return &OldBook{TypeMeta: b.TypeMeta, ObjectMeta: b.ObjectMeta, Name: name, Subtitle: subtitle, Pages: b.Pages, Status: b.Status}, nil
	})
	status := resource.Rules[*Book]{
		PrepareUpdate: func(_ context.Context, b, old *Book) { b.Title, b.Pages = old.Title, old.Pages },
	}.Strategy()
	return resource.Definition{
		Group: group, Resource: "books", Kind: "Book", Namespaced: true, ShortNames: []string{"bk"},
		Versions: []resource.Version{resource.Plain[Book]("v2", nil), old},
		Strategy: resource.Rules[*Book]{
			PrepareCreate: func(_ context.Context, b *Book) { b.Status = BookStatus{} },
			PrepareUpdate: func(_ context.Context, b, old *Book) { b.Status = old.Status },
			Validate: func(_ context.Context, b *Book) field.ErrorList {
				if b.Pages < 0 {
					return field.ErrorList{field.Invalid(field.NewPath("pages"), b.Pages, "must not be negative")}
				}
				return nil
			},
		}.Strategy(),
		Subresources: []resource.Subresource{{Name: "status", Part: &status}},
		Columns:      []resource.Column{{Name: "Name", Type: "string", Format: "name"}, {Name: "Pages", Type: "integer"}},
		Cells:        resource.CellsFunc(func(b *Book) []any { return []any{b.Name, b.Pages} }),
		Fields:       []resource.Field{resource.FieldFunc("title", func(b *Book) string { return b.Title })},
	}
}

// shelves computes shelves from books.
type shelves struct{ server *kelson.Server }

// Get implements resource.Lister.
func (s shelves) Get(ctx context.Context, namespace, name string) (resource.Object, error) {
	if len(name) != 1 {
		return nil, apierrors.NewNotFound(schema.GroupResource{Group: group, Resource: "shelves"}, name)
	}
	books, err := s.server.Objects(group, "books").List(ctx, namespace)
	if err != nil {
		return nil, err
	}
	shelf := &Shelf{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	for _, obj := range books {
		if strings.HasPrefix(obj.GetName(), name) {
			shelf.Books = append(shelf.Books, obj.GetName())
		}
	}
	return shelf, nil
}

// List implements resource.Lister.
func (s shelves) List(ctx context.Context, namespace string) ([]resource.Object, error) {
	shelf, err := s.Get(ctx, namespace, "a")
	return []resource.Object{shelf}, err
}

// stamp is an admission plugin that marks books, and refuses some.
type stamp struct{}

// Name implements admission.Plugin.
func (stamp) Name() string { return "Stamp" }

// Handles implements admission.Plugin.
func (stamp) Handles(t admission.Target) bool {
	return t.Resource == "books" && t.Operation == admission.Create
}

// Admit implements admission.Mutator.
func (stamp) Admit(_ context.Context, a *admission.Attributes) error {
	book := a.Object.(*Book)
	if book.Labels == nil {
		book.Labels = map[string]string{}
	}
	book.Labels["by"] = a.Request.User.Name
	return nil
}

// Validate implements admission.Validator.
func (stamp) Validate(_ context.Context, a *admission.Attributes) error {
	if a.Name == "forbidden" {
		return a.Forbidden(errors.New("nobody may have it"))
	}
	return nil
}

// newServer makes a server with everything of one's own.
func newServer(well *atomic.Bool, hooks *atomic.Int64) *kelson.Server {
	s := &kelson.Server{Name: "library", Addr: "127.0.0.1:0"}
	s.Groups = []resource.Group{{Name: group, Resources: []resource.Definition{
		books(),
		{
			Group: group, Resource: "shelves", Singular: "shelf", Kind: "Shelf", Namespaced: true, Verbs: []string{"get", "list"},
			Versions: []resource.Version{resource.Plain[Shelf]("v2", nil)}, Source: shelves{s},
		},
		{
			Group: group, Resource: "greetings", Kind: "Greeting", Verbs: []string{"create"}, Versions: []resource.Version{resource.Plain[Greeting]("v2", nil)},
			Answer: func(ctx context.Context, obj resource.Object) (resource.Object, error) {
				g := obj.(*Greeting)
				g.Text = "hello " + request.From(ctx).User.Name
				return g, nil
			},
		},
	}}}
	s.Admission = []admission.Plugin{stamp{}}
	s.Authenticate = func(r *http.Request) (request.User, bool, error) {
		name, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		return request.User{Name: name, Groups: []string{authz.Authenticated}}, ok, nil
	}
	s.Authorizer = authz.Func(func(_ context.Context, a *authz.Attributes) (authz.Decision, string, error) {
		if a.User.Name == "reader" && a.Verb != "get" && a.Verb != "list" && a.Resource == "books" {
			return authz.Deny, "readers read", nil
		}
		return authz.Allow, "", nil
	})
	s.PostStartHooks = []kelson.Hook{{Name: "count", Run: func(ctx context.Context) error {
		hooks.Add(1)
		return s.Objects(group, "books").Create(ctx, &Book{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "atlas"}, Title: "Atlas"})
	}}}
	s.PreShutdownHooks = []kelson.Hook{{Name: "count", Run: func(context.Context) error { hooks.Add(10); return nil }}}
	s.HealthChecks = []kelson.HealthCheck{{Name: "well", On: kelson.Readyz, Check: func(context.Context) error {
		if !well.Load() {
			return errors.New("not well")
		}
		return nil
	}}}
	s.Paths = map[string]http.Handler{"/opening-hours": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "always, %s", request.From(r.Context()).User.Name)
	})}
	return s
}

// client asks a server in the name of users.
type client struct {
	*testing.T
	server *kelson.Server
	http   *http.Client
}

func (c *client) do(user, method, path, body string, headers ...string) (int, string) {
	c.Helper()
	req, err := http.NewRequestWithContext(c.Context(), method, c.server.URL()+path, strings.NewReader(body))
	if err != nil {
		c.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+user)
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := c.http.Do(req)
	if err != nil {
		c.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		c.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// run runs a server until the test ends, or stop is called.
func run(t *testing.T, s *kelson.Server) (stop func()) {
	t.Helper()
	s.Serving.HTTP2Server = os.Getenv("KELSON_TEST_HTTP2")
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	var once atomic.Bool
	stop = func() {
		if cancel(); once.CompareAndSwap(false, true) {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(stop)
	<-s.Signals().MuxAndDiscoveryComplete.Happened()
	return stop
}

func TestServer(t *testing.T) {
	var well atomic.Bool
	var hooks atomic.Int64
	s := newServer(&well, &hooks)
	stop := run(t, s)
	c := &client{t, s, &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.PKI.Pool()}, ForceAttemptHTTP2: true}}}
	t.Cleanup(c.http.CloseIdleConnections)
	const all = "/apis/" + group + "/v2/namespaces/default/books"
	for _, step := range []struct {
		user, method, path, body string
		code                     int
		want                     string
	}{
		{"ann", "GET", all + "/atlas", "", 200, `"title":"Atlas"`},
		{"ann", "POST", all, `{"metadata":{"name":"bible"},"title":"B: new","status":{"reader":"x"}}`, 201, `"by":"ann"`},
		{"ann", "GET", all + "/bible", "", 200, `"status":{}`},
		{"ann", "POST", all, `{"metadata":{"name":"forbidden"}}`, 403, "nobody may have it"},
		{"ann", "POST", all, `{"metadata":{"name":"short"},"pages":-1}`, 422, "must not be negative"},
		{"reader", "POST", all, `{"metadata":{"name":"c"}}`, 403, "readers read"},
		{"reader", "GET", all + "?fieldSelector=title%3DAtlas", "", 200, `"name":"atlas"`},
		{"ann", "GET", "/apis/" + group + "/v1/namespaces/default/books/bible", "", 200, `"name":"B","subtitle":"new"`},
		{"ann", "POST", "/apis/" + group + "/v1/namespaces/default/books", `{"metadata":{"name":"old"},"name":"O"}`, 201, `"pages":1`},
		{"ann", "PUT", all + "/bible/status", `{"metadata":{"name":"bible"},"title":"other","status":{"reader":"ann"}}`, 200, `"title":"B: new"`},
		{"ann", "GET", "/apis/" + group + "/v2/namespaces/default/shelves/b", "", 200, `"books":["bible"]`},
		{"ann", "GET", "/apis/" + group + "/v2/namespaces/default/shelves", "", 200, `"kind":"ShelfList"`},
		{"ann", "POST", "/apis/" + group + "/v2/greetings", `{}`, 201, `"text":"hello ann"`},
		{"ann", "GET", "/opening-hours", "", 200, "always, ann"},
		{"ann", "GET", "/apis/" + group + "/v2", "", 200, `"shortNames":["bk"]`},
		{"ann", "GET", "/openapi/v3/apis/" + group + "/v1", "", 200, `"subtitle"`},
		{"ann", "GET", "/readyz", "", 500, "[-]well failed"},
		{"ann", "GET", "/livez", "", 200, "ok"},
	} {
		code, body := c.do(step.user, step.method, step.path, step.body)
		if code != step.code || !strings.Contains(body, step.want) {
			t.Errorf("%s %s: %d %s", step.method, step.path, code, body)
		}
	}
	if code, body := c.do("ann", "GET", all, "", "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io"); code != 200 || !strings.Contains(body, `"name":"Pages"`) {
		t.Errorf("table: %d %s", code, body)
	}
	if code, body := c.do("ann", "PATCH", all+"/bible?fieldManager=m&force=true", `{"apiVersion":"`+group+`/v2","kind":"Book","metadata":{"name":"bible"},"pages":7}`,
		"Content-Type", "application/apply-patch+yaml"); code != 200 || !strings.Contains(body, `"pages":7`) {
		t.Errorf("apply: %d %s", code, body)
	}
	well.Store(true)
	if code, body := c.do("ann", "GET", "/readyz", ""); code != 200 {
		t.Errorf("ready: %d %s", code, body)
	}
	var list struct{ Items []Book }
	if _, body := c.do("ann", "GET", all, ""); json.Unmarshal([]byte(body), &list) != nil || len(list.Items) != 3 {
		t.Errorf("list: %s", body)
	}
	stop()
	if n := hooks.Load(); n != 11 {
		t.Errorf("hooks: %d", n)
	}
}
