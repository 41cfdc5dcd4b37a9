package why

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/request"
)

const (
	// maxAdmitting is how many writes are explained at a time. Each is a request within a
	// request, so they must not take all seats of a priority level.
	maxAdmitting = 2
	// maxObject is the largest size of an object in bytes, that of a request.
	maxObject = 3 << 20
)

// Admission is what admission does to a write.
type Admission struct {
	Allowed bool `json:"allowed"`
	// Code and Message are the answer to the write; Message is empty if it is allowed.
	Code    int    `json:"code"`
	Message string `json:"message,omitempty"`
	// RefusedBy is the plugin that refuses the write; empty if it is another part of the
	// server, such as the validation of the kind.
	RefusedBy string           `json:"refusedBy,omitempty"`
	Warnings  []string         `json:"warnings,omitempty"`
	Steps     []admission.Step `json:"steps"`
	// Object is what would be stored.
	Object json.RawMessage `json:"object,omitempty"`
	// Hidden: there are webhooks or policies that the asker may not read. What they have
	// changed is shown without their names.
	Hidden bool `json:"hidden,omitempty"`
}

// admission is the page AdmissionPath: it sends the body as a dry run to the path that the
// parameter path names, by the method of the parameter method: POST, PUT, or DELETE, which
// has no body. The dry run is a request of the asker, who needs the same permissions as for
// the write; if the asker is impersonated, it impersonates in the same way.
func (p *Pages) admission(ctx context.Context, r *http.Request) (any, error) {
	req := request.From(r.Context())
	asker := &req.User
	query := request.QueryOf(r)
	write, err := p.target(query.Get("path"), query.Get("method"))
	if err != nil {
		return nil, err
	}
	s := &sight{authorizer: p.Authorizer, user: asker}
	if write.Method != http.MethodPost {
		// An explanation of an update or a deletion tells of the object as it is.
		info, _ := request.Parse(write)
		if err := authz.CheckBeside(ctx, p.Authorizer, &authz.Attributes{User: asker, Verb: request.Get, IsResource: true, Group: info.Group, Version: info.Version,
			Namespace: info.Namespace, Resource: info.Resource, Name: info.Name}); err != nil {
			return nil, err
		}
	}
	select {
	case p.admitting <- struct{}{}:
		defer func() { <-p.admitting }()
	default:
		return nil, apierrors.NewTooManyRequests("other writes are being explained", 1)
	}
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxObject))
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	trace := &admission.Trace{}
	write = write.WithContext(admission.WithTrace(freshContext(ctx), trace))
	if write.Method == http.MethodDelete {
		body = nil // options in a body would count instead of dryRun in the query
	}
	write.Body, write.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	write.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json"}, "User-Agent": {r.UserAgent()}}
	sender := *asker
	if req.Impersonator != nil {
		sender = *req.Impersonator
		req.Wanted.Impersonate(write.Header)
	}
	response, err := p.Submit(sender).RoundTrip(write)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 2*maxObject))
	if err != nil {
		return nil, err
	}
	answer := &Admission{Allowed: response.StatusCode < 300, Code: response.StatusCode, Warnings: response.Header.Values("Warning"), Steps: []admission.Step{}}
	if answer.Allowed {
		answer.Object = text
	} else {
		var said metav1.Status
		_ = json.Unmarshal(text, &said)
		answer.Message = said.Message
	}
	// A dry run that has failed early, or was sent elsewhere, has no steps.
	for _, step := range trace.Steps {
		seen, hidden := s.step(ctx, step)
		answer.Hidden = answer.Hidden || hidden
		answer.Steps = append(answer.Steps, seen)
		if step.Error != "" {
			answer.RefusedBy = step.Plugin
		}
	}
	return answer, nil
}

// freshContext returns a context with the deadline of ctx that does not know of the request
// which is being served: the write is one of its own.
func freshContext(ctx context.Context) context.Context {
	return detached{ctx}
}

// detached has the end of a context, and none of its values.
type detached struct{ context.Context }

// Value implements context.Context.
func (detached) Value(any) any { return nil }

// target returns the write that a path and a method name. It must be an ordinary create,
// update or deletion of a resource of this server: a dry run of anything else might not be
// one.
func (p *Pages) target(path, method string) (*http.Request, error) {
	wanted := map[string]string{http.MethodPost: request.Create, http.MethodPut: request.Update, http.MethodDelete: request.Delete}[method]
	if !strings.HasPrefix(path, "/api") || len(path) > maxText || wanted == "" {
		return nil, apierrors.NewBadRequest("path must be that of a resource, and method POST, PUT or DELETE")
	}
	write := &http.Request{Method: method, URL: &url.URL{Scheme: "https", Host: "localhost", Path: path, RawQuery: "dryRun=All&pretty=false"}, Host: "localhost", Header: http.Header{}}
	info, err := request.Parse(write)
	if err != nil || !info.IsResource || info.Verb != wanted || info.Subresource != "" || (info.Name == "") != (method == http.MethodPost) {
		return nil, apierrors.NewBadRequest("path must be that of a collection for POST, and that of an object for PUT and DELETE")
	}
	if p.Serves == nil || !p.Serves(info.Group, info.Version, info.Resource) {
		return nil, apierrors.NewBadRequest("this server does not serve the resource itself")
	}
	return write, nil
}

// step returns what the asker sees of a step: webhooks and policies that the asker may not
// read have no names and no expressions.
func (s *sight) step(ctx context.Context, step admission.Step) (seen admission.Step, hidden bool) {
	step.Parts = slices.Clone(step.Parts)
	for i := range step.Parts {
		part := &step.Parts[i]
		if !s.sees(ctx, &authz.Object{Group: "admissionregistration.k8s.io", Resource: part.Resource, Name: part.Config}) {
			*part = admission.Part{Resource: part.Resource, Answer: part.Answer, Changes: part.Changes}
			if part.Answer != admission.PartRefused {
				// That it has looked at the write, too, is its own affair.
				part.Answer = ""
			}
			hidden = true
			continue
		}
		// What is not in the object or the request may be something that only the server reads.
		part.Values = slices.DeleteFunc(slices.Clone(part.Values), func(v admission.Value) bool {
			switch v.Root {
			case "object", "oldObject", "request":
				return false
			}
			return !s.readsAll(ctx, part)
		})
	}
	if hidden {
		step.Parts = slices.DeleteFunc(step.Parts, func(p admission.Part) bool {
			return p.Config == "" && p.Answer == "" && len(p.Changes) == 0
		})
	}
	return step, hidden
}

// readsAll reports whether the asker may read everything that a policy can: all namespaces,
// and every parameter object.
func (s *sight) readsAll(ctx context.Context, part *admission.Part) bool {
	if part.UsesParams {
		return s.may(ctx, request.Get, authz.Object{Group: "*", Resource: "*"})
	}
	return s.may(ctx, request.List, authz.Object{Resource: "namespaces"})
}
