// Package why answers questions about decisions of the server: why a request is allowed
// or not, who may make it, which requests of a user were denied last, and what admission
// does to an object. Start at Pages.
//
// Its answers are pages below /debug/kelson/, which are not in discovery and are
// authorized like other paths that are not resources. Beyond that, who asks about another
// user needs the permission to create subjectaccessreviews, as in kube-apiserver, and no
// answer names a role, a binding, a pod or another object that the asker may not read:
// such a thing is left out, and Hidden says so. It must never change anything, and never
// show more than its asker could find out without it.
package why

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/status"
)

// Paths of the pages.
const (
	Path        = "/debug/kelson/why"
	WhoCanPath  = "/debug/kelson/who-can"
	DenialsPath = "/debug/kelson/denials"
	// AdmissionPath answers to POST.
	AdmissionPath = "/debug/kelson/admission"
)

// Bounds of a question, and of what is done for an answer.
const (
	maxText    = 1 << 10 // bytes of a text of a question
	maxGroups  = 100
	maxShown   = 5 // grants of each sort
	maxChecks  = 200
	answerTime = 10 * time.Second
)

// Authorizer is what decisions are made by; chain.Chain is one.
type Authorizer interface {
	authz.Authorizer
	Explain(ctx context.Context, a *authz.Attributes) authz.Explanation
	WhoCan(ctx context.Context, a *authz.Attributes, found func(authorizer string, g authz.Grant) bool) (unknown []string, err error)
}

// Pages answers questions.
type Pages struct {
	Authorizer Authorizer
	// Denials are the requests that were denied; nil keeps none.
	Denials *Denials
	// Submit returns a transport by which a request of a user is sent through the whole
	// server; nil has no page for admission.
	Submit func(user request.User) http.RoundTripper
	// Serves reports whether the server itself, and not another one behind it, serves a
	// resource.
	Serves func(group, version, resource string) bool

	// admitting has an element for each write that is being explained.
	admitting chan struct{}
}

// Handlers returns the pages by path. They answer to GET, that of admission to POST.
func (p *Pages) Handlers() map[string]http.Handler {
	pages := map[string]http.Handler{
		Path:        page(p.why),
		WhoCanPath:  page(p.whoCan),
		DenialsPath: page(p.denials),
	}
	if p.Submit != nil {
		p.admitting = make(chan struct{}, maxAdmitting)
		pages[AdmissionPath] = page(p.admission)
	}
	return pages
}

// page returns a handler that writes an answer as JSON.
func page(answer func(ctx context.Context, r *http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), answerTime)
		defer cancel()
		got, err := answer(ctx, r)
		status.WriteJSON(w, r, got, err)
	})
}

// Question is what somebody wants to know about. Its fields are the parameters of a page,
// of which groups may be repeated. A question without user and groups is about the asker.
type Question struct {
	User          string   `json:"user,omitempty"`
	Groups        []string `json:"groups,omitempty"`
	Verb          string   `json:"verb"`
	Path          string   `json:"path,omitempty"`
	Group         string   `json:"group,omitempty"`
	Resource      string   `json:"resource,omitempty"`
	Subresource   string   `json:"subresource,omitempty"`
	Namespace     string   `json:"namespace,omitempty"`
	Name          string   `json:"name,omitempty"`
	FieldSelector string   `json:"fieldSelector,omitempty"`
	LabelSelector string   `json:"labelSelector,omitempty"`
}

// Answer says whether a request is allowed, and why.
type Answer struct {
	Question Question `json:"question"`
	Allowed  bool     `json:"allowed"`
	Reason   string   `json:"reason,omitempty"`
	Error    string   `json:"error,omitempty"`
	// Authorizers are in the order in which they are asked.
	Authorizers []Opinion   `json:"authorizers"`
	Suggestion  *Suggestion `json:"suggestion,omitempty"`
	// Hidden: the asker may not see everything that led to the decision.
	Hidden bool `json:"hidden,omitempty"`
}

// The answers of an authorizer.
const (
	Allows    = "allow"
	Denies    = "deny"
	NoOpinion = "no opinion"
	NotAsked  = "not asked"
)

// Opinion is the answer of one authorizer. The fields are those of authz.Detail.
type Opinion struct {
	Name     string        `json:"name"`
	Answer   string        `json:"answer"`
	Reason   string        `json:"reason,omitempty"`
	Error    string        `json:"error,omitempty"`
	Grants   []authz.Grant `json:"grants,omitempty"`
	Near     []authz.Grant `json:"near,omitempty"`
	Dangling []authz.Grant `json:"dangling,omitempty"`
	Paths    []authz.Path  `json:"paths,omitempty"`
	Missing  string        `json:"missing,omitempty"`
	Notes    []string      `json:"notes,omitempty"`
	Hidden   bool          `json:"hidden,omitempty"`
}

// Suggestion is what would allow a request that is not allowed.
type Suggestion struct {
	// YAML is a role and a binding that can be applied.
	YAML string `json:"yaml,omitempty"`
	// Policy is a line for the policy file of ABAC.
	Policy string `json:"policy,omitempty"`
	// Note says what to know about it, or why there is none.
	Note string `json:"note,omitempty"`
}

// why is the page Path.
func (p *Pages) why(ctx context.Context, r *http.Request) (any, error) {
	q, err := questionOf(r)
	if err != nil {
		return nil, err
	}
	if q.Verb == "" || (q.Resource == "") == (q.Path == "") {
		return nil, apierrors.NewBadRequest("a question needs a verb, and a resource or a path")
	}
	s, user, err := p.subject(ctx, r, &q)
	if err != nil {
		return nil, err
	}
	return p.explain(ctx, s, q, user)
}

// subject returns whom a question is about, and what its asker sees of the answer. It
// fails if the asker may not ask.
func (p *Pages) subject(ctx context.Context, r *http.Request, q *Question) (*sight, *request.User, error) {
	asker := &request.From(r.Context()).User
	s := &sight{authorizer: p.Authorizer, user: asker}
	if q.User == "" && len(q.Groups) == 0 {
		q.User, q.Groups = asker.Name, asker.Groups
		return s, asker, nil
	}
	if err := s.mayReview(ctx); err != nil {
		return nil, nil, err
	}
	return s, &request.User{Name: q.User, Groups: q.Groups}, nil
}

// explain answers a question about a user.
func (p *Pages) explain(ctx context.Context, s *sight, q Question, user *request.User) (*Answer, error) {
	a, err := q.attributes(user)
	if err != nil {
		return nil, err
	}
	e := p.Authorizer.Explain(ctx, a)
	answer := &Answer{Question: q, Allowed: e.Decision == authz.Allow, Reason: e.Reason, Error: text(e.Err)}
	for i := range e.Opinions {
		o, withheld := s.opinion(ctx, &e.Opinions[i], a)
		if withheld {
			answer.Reason = ""
		}
		answer.Hidden = answer.Hidden || o.Hidden
		answer.Authorizers = append(answer.Authorizers, o)
	}
	if !answer.Allowed {
		answer.Suggestion, err = suggest(&e, a)
	}
	return answer, err
}

// suggest returns what would allow the request of an explanation; nil if nothing is known.
func suggest(e *authz.Explanation, a *authz.Attributes) (*Suggestion, error) {
	s := &Suggestion{}
	for i := range e.Opinions {
		o := &e.Opinions[i]
		if o.Decision == authz.Deny {
			return &Suggestion{Note: fmt.Sprintf("the authorizer %s denies it, whatever those after it would say; no role can allow it", o.Name)}, nil
		}
		if o.Detail.Missing != "" {
			return &Suggestion{Note: "it takes " + o.Detail.Missing}, nil
		}
		var documents []string
		for _, object := range o.Detail.Suggested {
			document, err := document(object)
			if err != nil {
				return nil, err
			}
			documents = append(documents, document)
		}
		if len(documents) > 0 && s.YAML == "" {
			s.YAML = strings.Join(documents, "---\n")
		}
		if o.Detail.SuggestedPolicy != "" {
			s.Policy = o.Detail.SuggestedPolicy
		}
	}
	if a.Name != "" && a.Subresource == "" && (a.Verb == request.Create || a.Verb == request.DeleteCollection) {
		s.Note = fmt.Sprintf("a request to %s has no name, so the rule is for all names", a.Verb)
	}
	if strings.Contains(a.Verb+a.Resource+a.Subresource+a.Path, "*") {
		s.Note = "a star in a rule stands for everything, so this allows more than it seems to"
	}
	if s.YAML == "" && s.Policy == "" {
		return nil, nil
	}
	return s, nil
}

// document returns an object as YAML. If a name in it has characters that are not printed
// as themselves, it is JSON with escapes, which is YAML too.
func document(object any) (string, error) {
	text, err := json.Marshal(object)
	if err != nil {
		return "", err
	}
	if !strings.ContainsFunc(string(text), func(r rune) bool { return !unicode.IsGraphic(r) || r == utf8.RuneError }) && !bytes.Contains(text, []byte(`\u`)) {
		text, err = yaml.JSONToYAML(text)
		return string(text), err
	}
	var b strings.Builder
	for _, r := range string(text) {
		if r < utf8.RuneSelf {
			b.WriteRune(r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			fmt.Fprintf(&b, `\u%04x`, unit)
		}
	}
	return b.String() + "\n", nil
}

// questionOf reads the parameters of a request.
func questionOf(r *http.Request) (q Question, err error) {
	query := request.QueryOf(r)
	for name, to := range map[string]*string{
		"user": &q.User, "verb": &q.Verb, "path": &q.Path, "group": &q.Group, "resource": &q.Resource, "subresource": &q.Subresource,
		"namespace": &q.Namespace, "name": &q.Name, "fieldSelector": &q.FieldSelector, "labelSelector": &q.LabelSelector,
	} {
		if *to = query.Get(name); len(*to) > maxText {
			return q, apierrors.NewBadRequest(fmt.Sprintf("%s has more than %d bytes", name, maxText))
		}
	}
	q.Groups = query.All("groups")
	if len(q.Groups) > maxGroups || slices.ContainsFunc(q.Groups, func(g string) bool { return len(g) > maxText }) {
		return q, apierrors.NewBadRequest(fmt.Sprintf("there are more than %d groups, or one has more than %d bytes", maxGroups, maxText))
	}
	if q.Path != "" && !strings.HasPrefix(q.Path, "/") {
		return q, apierrors.NewBadRequest("a path begins with /")
	}
	return q, nil
}

// attributes returns what the authorizer is asked.
func (q *Question) attributes(user *request.User) (*authz.Attributes, error) {
	if q.Path != "" {
		return &authz.Attributes{User: user, Verb: q.Verb, Path: q.Path}, nil
	}
	a := &authz.Attributes{
		User: user, Verb: q.Verb, IsResource: true, Group: q.Group, Version: "*", Namespace: q.Namespace,
		Resource: q.Resource, Subresource: q.Subresource, Name: q.Name,
	}
	if q.FieldSelector != "" {
		selector, err := fields.ParseSelector(q.FieldSelector)
		if err != nil {
			return nil, apierrors.NewBadRequest("fieldSelector: " + err.Error())
		}
		a.Fields = selector.Requirements()
	}
	if q.LabelSelector != "" {
		selector, err := labels.Parse(q.LabelSelector)
		if err != nil {
			return nil, apierrors.NewBadRequest("labelSelector: " + err.Error())
		}
		a.Labels, _ = selector.Requirements()
	}
	return a, nil
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
