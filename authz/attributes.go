package authz

import (
	"strings"

	"github.com/apikeel/kelson/request"
)

// AttributesOf returns what an authorizer is asked about a request.
func AttributesOf(r *request.Request) *Attributes {
	a := &Attributes{
		User: &r.User, Verb: r.Verb, IsResource: r.IsResource, Path: r.Path,
		Group: r.Group, Version: r.Version, Namespace: r.Namespace,
		Resource: r.Resource, Subresource: r.Subresource, Name: r.Name,
	}
	switch r.Verb {
	case request.List, request.Watch, request.DeleteCollection:
		if r.IsResource && !r.Query.IsEmpty() && !verbInPath(&r.Info) {
			o := r.ListOptions()
			a.FieldsErr, a.LabelsErr = o.FieldsErr, o.LabelsErr
			if !o.Fields.Empty() {
				a.Fields = o.Fields.Requirements()
			}
			a.Labels, _ = o.Labels.Requirements()
		}
	}
	return a
}

// verbInPath reports whether a path has the verb before the resource, as in
// /api/v1/watch/pods. Not all of these watches evaluate selectors.
func verbInPath(i *request.Info) bool {
	if i.Verb != request.Watch {
		return false
	}
	root := "api/" + i.Version
	if i.Group != "" {
		root = "apis/" + i.Group + "/" + i.Version
	}
	rest, ok := strings.CutPrefix(strings.Trim(i.Path, "/"), root+"/")
	return ok && strings.HasPrefix(rest, "watch/")
}
