package flow

import (
	"slices"
	"strings"

	flowcontrol "k8s.io/api/flowcontrol/v1"

	"github.com/apikeel/kelson/request"
)

// This file finds the flow schema of a request.

// schema is a FlowSchema in use.
type schema struct {
	name  string
	level *level
	rules []flowcontrol.PolicyRulesWithSubjects
	by    flowcontrol.FlowDistinguisherMethodType
	// Values of the response headers. All responses share these slices, whose capacity
	// is one, so that appending copies.
	uid, levelUID []string
	// From the level when the table was built.
	queues, maxSeats int

	stats     *schemaStats // guarded by the level's mu
	observers func() *Observers
}

// distinguisher returns the text that distinguishes the flows of a schema: the user
// name or the namespace.
func (s *schema) distinguisher(r *request.Request) string {
	switch s.by {
	case flowcontrol.FlowDistinguisherMethodByUserType:
		return r.User.Name
	case flowcontrol.FlowDistinguisherMethodByNamespaceType:
		return r.Namespace
	}
	return ""
}

// matches reports whether a rule of the schema matches a request.
func (s *schema) matches(r *request.Request) bool {
	for i := range s.rules {
		rule := &s.rules[i]
		if !anySubject(rule.Subjects, &r.User) {
			continue
		}
		if r.IsResource && anyResource(rule.ResourceRules, &r.Info) || !r.IsResource && anyPath(rule.NonResourceRules, &r.Info) {
			return true
		}
	}
	return false
}

func anySubject(subjects []flowcontrol.Subject, user *request.User) bool {
	for i := range subjects {
		switch s := &subjects[i]; {
		case s.Kind == flowcontrol.SubjectKindUser && s.User != nil:
			if s.User.Name == flowcontrol.NameAll || s.User.Name == user.Name {
				return true
			}
		case s.Kind == flowcontrol.SubjectKindGroup && s.Group != nil:
			if s.Group.Name == flowcontrol.NameAll || slices.Contains(user.Groups, s.Group.Name) {
				return true
			}
		case s.Kind == flowcontrol.SubjectKindServiceAccount && s.ServiceAccount != nil:
			if isAccount(user.Name, s.ServiceAccount) {
				return true
			}
		}
	}
	return false
}

func isAccount(user string, a *flowcontrol.ServiceAccountSubject) bool {
	rest, ok := strings.CutPrefix(user, "system:serviceaccount:")
	if !ok {
		return false
	}
	namespace, name, ok := strings.Cut(rest, ":")
	return ok && namespace == a.Namespace && (a.Name == flowcontrol.NameAll || name == a.Name)
}

func anyResource(rules []flowcontrol.ResourcePolicyRule, i *request.Info) bool {
	for n := range rules {
		rule := &rules[n]
		if contains(rule.Verbs, i.Verb) && containsResource(rule.Resources, i) && contains(rule.APIGroups, i.Group) &&
			(i.Namespace == "" && rule.ClusterScope || i.Namespace != "" && contains(rule.Namespaces, i.Namespace)) {
			return true
		}
	}
	return false
}

func anyPath(rules []flowcontrol.NonResourcePolicyRule, i *request.Info) bool {
	for n := range rules {
		rule := &rules[n]
		if contains(rule.Verbs, i.Verb) && slices.ContainsFunc(rule.NonResourceURLs, func(url string) bool { return isBelow(i.Path, url) }) {
			return true
		}
	}
	return false
}

// isBelow reports whether a path matches the URL of a rule, which may end with a star:
// it is equal to it or below it.
func isBelow(path, url string) bool {
	if url == flowcontrol.NonResourceAll || url == path {
		return true
	}
	url = strings.TrimSuffix(strings.TrimSuffix(url, "*"), "/")
	return len(path) > len(url) && path[len(url)] == '/' && strings.HasPrefix(path, url)
}

// contains reports whether a list contains a name or is ["*"].
func contains(list []string, name string) bool {
	return len(list) == 1 && list[0] == "*" || slices.Contains(list, name)
}

func containsResource(list []string, i *request.Info) bool {
	if i.Subresource == "" || len(list) == 1 && list[0] == "*" {
		return contains(list, i.Resource)
	}
	return slices.ContainsFunc(list, func(s string) bool {
		rest, ok := strings.CutPrefix(s, i.Resource)
		return ok && len(rest) == len(i.Subresource)+1 && rest[0] == '/' && rest[1:] == i.Subresource
	})
}
