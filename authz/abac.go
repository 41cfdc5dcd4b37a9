package authz

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/apikeel/kelson/internal/configfile"
	"github.com/apikeel/kelson/request"
)

// ABAC is an Authorizer for attribute-based access control: it allows what the policies
// of a file say, one JSON policy in a line.
type ABAC []policy

// policy allows a subject something. An empty resource field matches only an empty
// value, "*" every value; for User and Group see isFor.
type policy struct {
	User            string `json:"user"`
	Group           string `json:"group"`
	Readonly        bool   `json:"readonly"`
	APIGroup        string `json:"apiGroup"`
	Resource        string `json:"resource"`
	Namespace       string `json:"namespace"`
	NonResourcePath string `json:"nonResourcePath"`
}

// API versions of policies.
const (
	abacGroup   = "abac.authorization.kubernetes.io"
	abacVersion = abacGroup + "/v1beta1"
	abacOldest  = abacGroup + "/v0"
)

// NewABAC reads a policy file.
func NewABAC(file string, log *slog.Logger) (ABAC, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	policies, unversioned := ABAC{}, 0
	scanner := bufio.NewScanner(f)
	for line := 1; scanner.Scan(); line++ {
		text := strings.TrimSpace(scanner.Text())
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		p, versioned, err := parsePolicy(scanner.Bytes())
		if err != nil {
			return nil, fmt.Errorf("error reading policy file %s, line %d: %w", file, line, configfile.Unquoted(err))
		}
		if !versioned {
			unversioned++
		}
		policies = append(policies, p)
	}
	if err := scanner.Err(); err != nil {
		return nil, fmt.Errorf("error reading policy file %s: %w", file, err)
	}
	if unversioned > 0 && log != nil {
		log.Warn("policy file has lines without apiVersion and kind", "file", file, "lines", unversioned)
	}
	return policies, nil
}

// parsePolicy parses a line in version v1beta1 or, without apiVersion and kind, in
// version v0.
func parsePolicy(line []byte) (p policy, versioned bool, err error) {
	var read struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Spec       policy `json:"spec"`
	}
	if _, _, err := configfile.Kind(line); err != nil {
		return p, false, err
	}
	if err := json.Unmarshal(line, &read); err != nil {
		return p, false, err
	}
	if read.APIVersion == abacVersion && read.Kind == "Policy" {
		if read.Spec.User == "*" || read.Spec.Group == "*" {
			read.Spec.User, read.Spec.Group = "", Authenticated
		}
		return read.Spec, true, nil
	}
	if read.APIVersion != "" && read.APIVersion != abacOldest || read.Kind != "" && read.Kind != "Policy" {
		return p, false, fmt.Errorf("no kind %q is registered for version %q", read.Kind, read.APIVersion)
	}
	if err := json.Unmarshal(line, &p); err != nil {
		return p, false, err
	}
	p.APIGroup, p.NonResourcePath = "*", ""
	if p.User == "" && p.Group == "" || p.User == "*" || p.Group == "*" {
		p.User, p.Group = "", Authenticated
	}
	if p.Namespace == "" && p.Resource == "" {
		p.NonResourcePath = "*"
	}
	if p.Namespace == "" {
		p.Namespace = "*"
	}
	if p.Resource == "" {
		p.Resource = "*"
	}
	return p, read.APIVersion != "" && read.Kind != "", nil
}

// Authorize implements Authorizer.
func (policies ABAC) Authorize(_ context.Context, a *Attributes) (Decision, string, error) {
	for i := range policies {
		if p := &policies[i]; p.isFor(a.User) && p.allows(a) {
			return Allow, "", nil
		}
	}
	return NoOpinion, "No policy matched.", nil
}

// RulesFor implements Rules.
func (policies ABAC) RulesFor(_ context.Context, user *request.User, namespace string) (resources []ResourceRule, paths []PathRule, incomplete bool, err error) {
	for i := range policies {
		p := &policies[i]
		if !p.isFor(user) || p.Namespace != "*" && p.Namespace != namespace {
			continue
		}
		verbs := []string{"*"}
		if p.Readonly {
			verbs = []string{request.Get, request.List, request.Watch}
		}
		if p.Resource != "" {
			resources = append(resources, ResourceRule{Verbs: verbs, Groups: []string{p.APIGroup}, Resources: []string{p.Resource}})
		}
		if p.NonResourcePath != "" {
			paths = append(paths, PathRule{Verbs: verbs, Paths: []string{p.NonResourcePath}})
		}
	}
	return resources, paths, false, nil
}

// maxNearPolicies is the largest number of policies of a user in an explanation.
const maxNearPolicies = 5

// Explain implements Explainer: the first policy that allows the request, or the first
// ones of the user that do not.
func (policies ABAC) Explain(_ context.Context, a *Attributes) (d Detail, _ error) {
	for i := range policies {
		p := &policies[i]
		switch {
		case !p.isFor(a.User):
		case p.allows(a):
			return Detail{Grants: []Grant{p.grant()}}, nil
		case len(d.Near) < maxNearPolicies:
			g := p.grant()
			g.Lacks, g.Applies = p.lacks(a), true
			d.Near = append(d.Near, g)
		}
	}
	slices.SortStableFunc(d.Near, func(a, b Grant) int { return len(a.Lacks) - len(b.Lacks) })
	d.SuggestedPolicy = suggestedPolicy(a)
	return d, nil
}

// WhoCan implements Finder.
func (policies ABAC) WhoCan(_ context.Context, a *Attributes, found func(Grant) bool) (string, error) {
	for i := range policies {
		if p := &policies[i]; (p.User != "" || p.Group != "") && p.allows(a) && !found(p.grant()) {
			break
		}
	}
	return "", nil
}

// suggestedPolicy returns the line of a policy file that would allow what is asked for. A
// policy cannot say which names or, apart from reading, which verbs it is for.
func suggestedPolicy(a *Attributes) string {
	if a.User == nil || a.User.Name == "" {
		return ""
	}
	p := policy{User: a.User.Name, Readonly: a.ReadOnly(), APIGroup: a.Group, Resource: a.Resource, Namespace: a.Namespace, NonResourcePath: a.Path}
	if a.IsResource {
		p.NonResourcePath = ""
	}
	line, err := json.Marshal(map[string]any{"apiVersion": abacVersion, "kind": "Policy", "spec": p})
	if err != nil {
		return ""
	}
	return string(line)
}

// grant returns the policy as a Grant. If it names a user and a group, the subject is
// the user.
func (p *policy) grant() Grant {
	text, _ := json.Marshal(p) // it has only strings
	s := &Subject{Kind: "Group", Name: p.Group}
	if p.User != "" {
		s = &Subject{Kind: "User", Name: p.User}
	}
	return Grant{Subject: s, Policy: string(text)}
}

// lacks returns what keeps the policy from allowing a.
func (p *policy) lacks(a *Attributes) (lacks []string) {
	lack := func(what, value string, matches bool) {
		if !matches {
			lacks = append(lacks, fmt.Sprintf("%s %q", what, value))
		}
	}
	lack("verb", a.Verb, a.ReadOnly() || !p.Readonly)
	if !a.IsResource {
		lack("path", a.Path, p.covers(a))
		return lacks
	}
	lack("namespace", a.Namespace, p.Namespace == "*" || p.Namespace == a.Namespace)
	lack("resource", a.Resource, p.Resource == "*" || p.Resource == a.Resource)
	lack("API group", a.Group, p.APIGroup == "*" || p.APIGroup == a.Group)
	return lacks
}

// isFor reports whether the policy is about a user. If it names a user and a group,
// both must match.
func (p *policy) isFor(user *request.User) bool {
	if user == nil || p.User == "" && p.Group == "" {
		return false
	}
	return (p.User == "" || p.User == user.Name) && (p.Group == "" || slices.Contains(user.Groups, p.Group))
}

// allows reports whether the policy allows its subject what a is about.
func (p *policy) allows(a *Attributes) bool { return (a.ReadOnly() || !p.Readonly) && p.covers(a) }

// covers reports whether the policy includes the resource or path of a.
func (p *policy) covers(a *Attributes) bool {
	if a.IsResource {
		return (p.Namespace == "*" || p.Namespace == a.Namespace) &&
			(p.Resource == "*" || p.Resource == a.Resource) &&
			(p.APIGroup == "*" || p.APIGroup == a.Group)
	}
	return p.NonResourcePath == a.Path ||
		strings.HasSuffix(p.NonResourcePath, "*") && strings.HasPrefix(a.Path, strings.TrimRight(p.NonResourcePath, "*"))
}
