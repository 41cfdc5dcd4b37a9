package audit

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/internal/configfile"
	"github.com/apikeel/kelson/request"
)

// levels returns all levels, in order.
func levels() []Level {
	return []Level{LevelNone, LevelMetadata, LevelRequest, LevelRequestResponse}
}

// Policy is the Policy of audit.k8s.io/v1: the first rule that matches a request
// decides its level. A request that no rule matches is not audited.
type Policy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Rules             []Rule  `json:"rules"`
	OmitStages        []Stage `json:"omitStages,omitempty"`
	OmitManagedFields bool    `json:"omitManagedFields,omitempty"`
}

// Rule matches the requests that match all of its fields that are set.
type Rule struct {
	Level             Level            `json:"level"`
	Users             []string         `json:"users,omitempty"`
	UserGroups        []string         `json:"userGroups,omitempty"`
	Verbs             []string         `json:"verbs,omitempty"`
	Resources         []GroupResources `json:"resources,omitempty"`
	Namespaces        []string         `json:"namespaces,omitempty"`
	NonResourceURLs   []string         `json:"nonResourceURLs,omitempty"`
	OmitStages        []Stage          `json:"omitStages,omitempty"`
	OmitManagedFields *bool            `json:"omitManagedFields,omitempty"`
}

// GroupResources are resources of an API group: pods, pods/log, pods/*,
// */scale, or *.
type GroupResources struct {
	Group         string   `json:"group,omitempty"`
	Resources     []string `json:"resources,omitempty"`
	ResourceNames []string `json:"resourceNames,omitempty"`
}

// LoadPolicy reads a policy from a file. Unknown and duplicate fields are logged and
// ignored.
func LoadPolicy(file string, logger *slog.Logger) (*Policy, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("failed to read file path %q: %w", file, err)
	}
	p, problems, err := parsePolicy(content)
	if err != nil {
		return nil, fmt.Errorf("%w: from file %v", err, file)
	}
	for _, problem := range problems {
		logger.Warn("audit policy contains an error, which is ignored", "file", file, "error", problem)
	}
	return p, nil
}

// parsePolicy also returns the errors of strict decoding.
func parsePolicy(content []byte) (p *Policy, problems []error, err error) {
	strict := configfile.UnmarshalYAML(content, new(any))
	content, _, err = configfile.Kind(content)
	if err != nil {
		return nil, nil, fmt.Errorf("failed decoding: %w", err)
	}
	p = &Policy{}
	problems, err = configfile.UnmarshalStrict(content, p)
	if err != nil {
		return nil, nil, fmt.Errorf("failed decoding: %w", err)
	}
	if strict != nil {
		problems = append(problems, strict)
	}
	switch {
	case p.APIVersion == "" || p.Kind == "":
		return nil, nil, errors.New("unknown group version field audit.k8s.io/__internal, Kind=Policy in policy")
	case p.APIVersion == GroupVersion && slices.Contains([]string{"Event", "EventList", "PolicyList"}, p.Kind):
		return nil, nil, fmt.Errorf("failed decoding: converting (v1.%s) to (audit.Policy): unknown conversion", p.Kind)
	case p.APIVersion != GroupVersion || p.Kind != "Policy":
		return nil, nil, fmt.Errorf("failed decoding: no kind %q is registered for version %q in scheme %q", p.Kind, p.APIVersion, "pkg/runtime/scheme.go:111")
	}
	if errs := p.validate(); len(errs) > 0 {
		return nil, nil, errs.ToAggregate()
	}
	if len(p.Rules) == 0 {
		return nil, nil, errors.New("loaded illegal policy with 0 rules")
	}
	return p, problems, nil
}

func (p *Policy) validate() field.ErrorList {
	errs := validateStages(p.OmitStages, field.NewPath("omitStages"))
	for i := range p.Rules {
		errs = append(errs, p.Rules[i].validate(field.NewPath("rules").Index(i))...)
	}
	return errs
}

func (r *Rule) validate(path *field.Path) (errs field.ErrorList) {
	if r.Level == "" {
		errs = append(errs, field.Required(path.Child("level"), ""))
	} else if !slices.Contains(levels(), r.Level) {
		errs = append(errs, field.NotSupported(path.Child("level"), r.Level, levels()))
	}
	urls := path.Child("nonResourceURLs")
	for i, url := range r.NonResourceURLs {
		if url == "*" {
			continue
		}
		if !strings.HasPrefix(url, "/") {
			errs = append(errs, field.Invalid(urls.Index(i), url, "non-resource URL rules must begin with a '/' character"))
		}
		if star := strings.IndexByte(url, '*'); star >= 0 && star < len(url)-1 {
			errs = append(errs, field.Invalid(urls.Index(i), url, "non-resource URL wildcards '*' must be the final character of the rule"))
		}
	}
	resources := path.Child("resources")
	for _, gr := range r.Resources {
		if gr.Group != "" && gr.Group != "*" {
			if msgs := apivalidation.NameIsDNSSubdomain(gr.Group, false); len(msgs) > 0 {
				errs = append(errs, field.Invalid(resources.Child("group"), gr.Group, strings.Join(msgs, ",")))
			}
		}
		if len(gr.ResourceNames) > 0 && len(gr.Resources) == 0 {
			errs = append(errs, field.Invalid(resources.Child("resourceNames"), gr.ResourceNames, "using resourceNames requires at least one resource"))
		}
	}
	errs = append(errs, validateStages(r.OmitStages, path.Child("omitStages"))...)
	if len(r.NonResourceURLs) > 0 && (len(r.Resources) > 0 || len(r.Namespaces) > 0) {
		errs = append(errs, field.Invalid(urls, r.NonResourceURLs, "rules cannot apply to both regular resources and non-resource URLs"))
	}
	return errs
}

func validateStages(omitted []Stage, path *field.Path) (errs field.ErrorList) {
	for i, stage := range omitted {
		switch stage {
		case StageRequestReceived, StageResponseStarted, StageResponseComplete, StagePanic:
		default:
			errs = append(errs, field.Invalid(path.Index(i), string(stage), fmt.Sprintf("allowed stages are %s,%s,%s,%s",
				StageRequestReceived, StageResponseStarted, StageResponseComplete, StagePanic)))
		}
	}
	return errs
}

// rule returns the first rule that matches a request, or nil.
func (p *Policy) rule(req *request.Request) *Rule {
	for i := range p.Rules {
		if p.Rules[i].matches(req) {
			return &p.Rules[i]
		}
	}
	return nil
}

// omits reports whether the policy or the rule omits the events of a stage.
func (p *Policy) omits(r *Rule, stage Stage) bool {
	return slices.Contains(p.OmitStages, stage) || slices.Contains(r.OmitStages, stage)
}

// omitsManagedFields reports whether managedFields are removed from recorded objects.
func (p *Policy) omitsManagedFields(r *Rule) bool {
	if r.OmitManagedFields != nil {
		return *r.OmitManagedFields
	}
	return p.OmitManagedFields
}

func (r *Rule) matches(req *request.Request) bool {
	switch {
	case len(r.Users) > 0 && !slices.Contains(r.Users, req.User.Name),
		len(r.UserGroups) > 0 && !slices.ContainsFunc(req.User.Groups, func(g string) bool { return slices.Contains(r.UserGroups, g) }),
		len(r.Verbs) > 0 && !slices.Contains(r.Verbs, req.Verb):
		return false
	case len(r.Namespaces) > 0 || len(r.Resources) > 0:
		return req.IsResource &&
			(len(r.Namespaces) == 0 || slices.Contains(r.Namespaces, req.Namespace)) &&
			(len(r.Resources) == 0 || slices.ContainsFunc(r.Resources, func(gr GroupResources) bool { return gr.matches(req) }))
	case len(r.NonResourceURLs) > 0:
		return !req.IsResource && slices.ContainsFunc(r.NonResourceURLs, func(url string) bool {
			prefix, wild := strings.CutSuffix(url, "*")
			return url == req.Path || wild && strings.HasPrefix(req.Path, prefix)
		})
	}
	return true
}

func (gr *GroupResources) matches(req *request.Request) bool {
	if gr.Group != req.Group && gr.Group != "*" {
		return false
	}
	if len(gr.Resources) == 0 {
		return true
	}
	if len(gr.ResourceNames) > 0 && !slices.Contains(gr.ResourceNames, req.Name) {
		return false
	}
	return slices.ContainsFunc(gr.Resources, func(pattern string) bool {
		resource, sub, hasSub := strings.Cut(pattern, "/")
		switch {
		case pattern == "*":
			return true
		case !hasSub:
			return pattern == req.Resource && req.Subresource == ""
		case sub == "*":
			// pods/* also matches pods itself.
			return resource == req.Resource
		}
		return sub == req.Subresource && (resource == "*" || resource == req.Resource)
	})
}
