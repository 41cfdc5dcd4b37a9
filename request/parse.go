package request

import (
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
)

// This file parses the path and query of a request.

// Parse parses what a request asks for from its path, method and query. These are the
// forms of resource paths; any other path is a non-resource path like /healthz:
//
//	/api/{version}/…
//	/apis/{group}/{version}/…
//	   {resource}[/{name}[/{subresource}[/…]]]
//	   namespaces/{namespace}/{resource}[/{name}[/{subresource}[/…]]]
//	   namespaces[/{name}[/status|finalize]]
//	   watch/… or proxy/… in front of any of them
//
// With an error, Info holds what was understood before it; with ErrTooManyParameters that is
// all but the query.
func Parse(r *http.Request) (Info, error) {
	query, tooMany := ParseQuery(r.URL.RawQuery)
	info := Info{Path: r.URL.Path, Verb: lowerMethod(r.Method), Query: query}
	if err := info.parsePath(r); err != nil {
		return info, err
	}
	return info, tooMany
}

// parsePath parses the path and what the query makes of the verb.
func (info *Info) parsePath(r *http.Request) error {
	rest, isAPI := strings.CutPrefix(strings.Trim(r.URL.Path, "/"), "api")
	if !isAPI {
		return nil
	}
	// rest begins with the slash after api or apis.
	wanted := 2 // path segments: version and resource
	if strings.HasPrefix(rest, "s/") {
		rest, wanted = rest[1:], 3
	}
	if !strings.HasPrefix(rest, "/") {
		return nil
	}
	parts := strings.Split(rest[1:], "/")
	if len(parts) < wanted {
		return nil
	}
	if wanted == 3 {
		info.Group, parts = parts[0], parts[1:]
	}
	info.IsResource = true
	info.Version, parts = parts[0], parts[1:]

	if parts[0] == Watch || parts[0] == "proxy" {
		if len(parts) < 2 {
			return fmt.Errorf("unable to determine kind and namespace from url, %v", r.URL)
		}
		info.Verb, parts = parts[0], parts[1:]
	} else {
		info.Verb = resourceVerb(r.Method)
	}

	if parts[0] == "namespaces" && len(parts) > 1 {
		info.Namespace = parts[1]
		// namespaces/{name}/status and /finalize are subresources of the namespace;
		// anything else is a resource in it.
		if len(parts) > 2 && parts[2] != "status" && parts[2] != "finalize" {
			parts = parts[2:]
		}
	}
	info.Parts = parts
	info.Resource = parts[0]
	if len(parts) > 1 {
		info.Name = parts[1]
	}
	if len(parts) > 2 && info.Verb != "proxy" {
		info.Subresource = parts[2]
	}

	if info.Name == "" {
		switch info.Verb {
		case Get:
			info.Verb, info.Name = info.listOrWatch()
		case Delete:
			info.Verb = DeleteCollection
		}
	}
	return nil
}

// LongRunning reports whether a request may last as long as the client wants: it has no
// deadline, and a shutdown does not wait for it.
func (i *Info) LongRunning() bool {
	if i.Verb == Watch || i.Verb == "proxy" {
		return true
	}
	if !i.IsResource {
		return strings.HasPrefix(i.Path, "/debug/pprof/")
	}
	switch i.Subresource {
	case "attach", "exec", "proxy", "log", "portforward":
		return true
	}
	return false
}

// resourceVerb returns the verb of a resource request, "" for an unknown method.
func resourceVerb(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead:
		return Get
	case http.MethodPost:
		return Create
	case http.MethodPut:
		return Update
	case http.MethodPatch:
		return Patch
	case http.MethodDelete:
		return Delete
	}
	return ""
}

func lowerMethod(method string) string {
	if method == http.MethodGet {
		return Get
	}
	return strings.ToLower(method)
}

// listOrWatch returns list or watch, and the name if a field selector selects exactly
// one object: whoever may read one object may list and watch it.
func (i *Info) listOrWatch() (verb, name string) {
	verb = List
	if i.Query.Bool("watch") {
		verb = Watch
	}
	if !strings.Contains(i.Query.Get("fieldSelector"), "metadata.name") {
		return verb, ""
	}
	// A request with options that cannot be parsed is refused later; until then it
	// counts as one for all objects.
	o := i.ListOptions()
	if o.NumberErr != nil || o.LabelsErr != nil || o.FieldsErr != nil {
		return verb, ""
	}
	name, ok := o.Fields.RequiresExactMatch("metadata.name")
	if !ok || len(content.IsPathSegmentName(name)) > 0 {
		return verb, ""
	}
	return verb, name
}

// IsPlainPath reports whether everybody reads the same segments in a path: none is empty, but for a
// slash at the end, and none is . or .. once it is decoded. A server that requests are sent on to,
// or a proxy in front of it, may merge slashes and remove dots, and so serve another path than
// the one that was authorized here.
func IsPlainPath(path string) bool {
	path = strings.TrimSuffix(strings.TrimPrefix(path, "/"), "/")
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "" || segment == "." || segment == ".." {
			return false
		}
	}
	return true
}

// ErrNotPlain is the answer to a request for another API server whose path is not plain.
func ErrNotPlain() error {
	return apierrors.NewBadRequest("a path with an empty segment, . or .. is not sent on to another API server")
}

// AcceptsGzip reports whether a client names gzip among the codings that it accepts.
// One with a weight does not count, as in kube-apiserver.
func AcceptsGzip(r *http.Request) bool {
	for coding := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		if strings.TrimSpace(coding) == "gzip" {
			return true
		}
	}
	return false
}
