package chain

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/authz/webhook"
	"github.com/apikeel/kelson/internal/configfile"
)

// This file reads and validates AuthorizationConfiguration files.

const (
	configGroup = "apiserver.config.k8s.io"
	configKind  = "AuthorizationConfiguration"

	failNoOpinion = "NoOpinion"
	failDeny      = "Deny"

	connectKubeconfig = "KubeConfigFile"
	connectInCluster  = "InClusterConfig"

	defaultAuthorizedTTL   = 5 * time.Minute
	defaultUnauthorizedTTL = 30 * time.Second
	maxWebhookTimeout      = 30 * time.Second
)

// configuration is an AuthorizationConfiguration. All versions have the same fields.
type configuration struct {
	metav1.TypeMeta `json:""`
	Authorizers     []authorizerConfiguration `json:"authorizers"`
}

type authorizerConfiguration struct {
	Type    string                `json:"type"`
	Name    string                `json:"name"`
	Webhook *webhookConfiguration `json:"webhook,omitempty"`
}

type webhookConfiguration struct {
	AuthorizedTTL                            metav1.Duration  `json:"authorizedTTL"`
	CacheAuthorizedRequests                  *bool            `json:"cacheAuthorizedRequests,omitempty"`
	UnauthorizedTTL                          metav1.Duration  `json:"unauthorizedTTL"`
	CacheUnauthorizedRequests                *bool            `json:"cacheUnauthorizedRequests,omitempty"`
	Timeout                                  metav1.Duration  `json:"timeout"`
	SubjectAccessReviewVersion               string           `json:"subjectAccessReviewVersion"`
	MatchConditionSubjectAccessReviewVersion string           `json:"matchConditionSubjectAccessReviewVersion"`
	FailurePolicy                            string           `json:"failurePolicy"`
	ConnectionInfo                           connectionInfo   `json:"connectionInfo"`
	MatchConditions                          []matchCondition `json:"matchConditions"`
}

type connectionInfo struct {
	Type           string  `json:"type"`
	KubeConfigFile *string `json:"kubeConfigFile"`
}

type matchCondition struct {
	Expression string `json:"expression"`
}

// compiler returns the CEL compiler of match conditions, created on first use.
type compiler func() (*webhook.Compiler, error)

// load decodes and validates a configuration, which must contain authorizers of the
// required types.
func load(data []byte, compiler compiler, required []string) (*configuration, error) {
	c, err := decode(data)
	if err != nil {
		return nil, fmt.Errorf("failed to load AuthorizationConfiguration from file: %w", err)
	}
	c.defaults()
	if errs := c.validate(compiler); len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	var errs []error
	missing := slices.Clone(required)
	for _, a := range c.Authorizers {
		missing = slices.DeleteFunc(missing, func(t string) bool { return t == a.Type })
		if name := strings.ToLower(a.Type); a.Type != ModeWebhook && a.Name != name {
			errs = append(errs, fmt.Errorf("expected name %s for authorizer %s instead of %s", name, a.Type, a.Name))
		}
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		errs = append(errs, fmt.Errorf("missing required types: %v", missing))
	}
	return c, aggregate(errs)
}

// decode decodes a configuration strictly: unknown fields are errors.
func decode(data []byte) (*configuration, error) {
	c := &configuration{}
	if len(data) == 0 {
		return c, nil
	}
	text, gvk, err := configfile.Kind(data)
	if err != nil {
		return nil, err
	}
	var strict []error
	if _, err := configfile.ToJSON(data); err != nil {
		strict = append(strict, err)
	}
	unknown, err := configfile.UnmarshalStrict(text, c)
	if err != nil {
		return nil, err
	}
	switch {
	case gvk.Kind == "":
		return nil, configfile.MissingKind(data)
	case gvk.Version == "":
		return nil, configfile.MissingVersion(data)
	case gvk.Group != configGroup || gvk.Kind != configKind || !slices.Contains([]string{"v1", "v1beta1", "v1alpha1"}, gvk.Version):
		return nil, configfile.Unknown(gvk)
	}
	if strict = append(strict, unknown...); len(strict) > 0 {
		return nil, runtime.NewStrictDecodingError(strict)
	}
	// All versions are alike: two files that differ only in it are equal.
	c.TypeMeta = metav1.TypeMeta{}
	return c, nil
}

func (c *configuration) defaults() {
	for i := range c.Authorizers {
		w := c.Authorizers[i].Webhook
		if w == nil {
			continue
		}
		if w.AuthorizedTTL.Duration == 0 {
			w.AuthorizedTTL.Duration = defaultAuthorizedTTL
		}
		if w.UnauthorizedTTL.Duration == 0 {
			w.UnauthorizedTTL.Duration = defaultUnauthorizedTTL
		}
		if w.CacheAuthorizedRequests == nil {
			w.CacheAuthorizedRequests = new(true)
		}
		if w.CacheUnauthorizedRequests == nil {
			w.CacheUnauthorizedRequests = new(true)
		}
	}
}

func (c *configuration) validate(compiler compiler) (errs field.ErrorList) {
	root := field.NewPath("authorizers")
	if len(c.Authorizers) == 0 {
		errs = append(errs, field.Required(root, "at least one authorization mode must be defined"))
	}
	known := Modes()
	slices.Sort(known)
	types, names := map[string]bool{}, map[string]bool{}
	for i := range c.Authorizers {
		a, path := &c.Authorizers[i], root.Index(i)
		switch {
		case a.Type == "":
			errs = append(errs, field.Required(path.Child("type"), ""))
			continue
		case !slices.Contains(known, a.Type):
			errs = append(errs, field.NotSupported(path.Child("type"), a.Type, known))
			continue
		case types[a.Type] && a.Type != ModeWebhook:
			errs = append(errs, field.Duplicate(path.Child("type"), a.Type))
			continue
		}
		types[a.Type] = true

		if a.Name == "" {
			errs = append(errs, field.Required(path.Child("name"), ""))
		} else if names[a.Name] {
			errs = append(errs, field.Duplicate(path.Child("name"), a.Name))
		} else if problems := validation.IsDNS1123Subdomain(a.Name); len(problems) > 0 {
			errs = append(errs, field.Invalid(path.Child("name"), a.Name, "authorizer name is invalid: "+strings.Join(problems, ", ")))
		}
		names[a.Name] = true

		switch {
		case a.Type != ModeWebhook && a.Webhook != nil:
			errs = append(errs, field.Invalid(path.Child("webhook"), "non-null", "may only be specified when type=Webhook"))
		case a.Type == ModeWebhook && a.Webhook == nil:
			errs = append(errs, field.Required(path.Child("webhook"), "required when type=Webhook"))
		case a.Type == ModeWebhook:
			errs = append(errs, a.Webhook.validate(path, compiler)...)
		}
	}
	return errs
}

func (w *webhookConfiguration) validate(path *field.Path, compiler compiler) (errs field.ErrorList) {
	add := func(err *field.Error) { errs = append(errs, err) }
	duration := func(name string, d, most time.Duration, rule string) {
		if at := path.Child(name); d == 0 {
			add(field.Required(at, ""))
		} else if d < 0 || most > 0 && d > most {
			add(field.Invalid(at, d.String(), rule))
		}
	}
	oneOf := func(name, value, detail string, optional bool, values ...string) {
		if at := path.Child(name); value == "" && !optional {
			add(field.Required(at, detail))
		} else if value != "" && !slices.Contains(values, value) {
			add(field.NotSupported(at, value, values))
		}
	}
	duration("timeout", w.Timeout.Duration, maxWebhookTimeout, "must be > 0s and <= 30s")
	duration("authorizedTTL", w.AuthorizedTTL.Duration, 0, "must be > 0s")
	duration("unauthorizedTTL", w.UnauthorizedTTL.Duration, 0, "must be > 0s")
	oneOf("subjectAccessReviewVersion", w.SubjectAccessReviewVersion, "", false, "v1", "v1beta1")
	oneOf("matchConditionSubjectAccessReviewVersion", w.MatchConditionSubjectAccessReviewVersion,
		"required if match conditions are specified", len(w.MatchConditions) == 0, "v1")
	oneOf("failurePolicy", w.FailurePolicy, "", false, failNoOpinion, failDeny)

	connection := path.Child("connectionInfo")
	file := connection.Child("kubeConfigFile")
	switch w.ConnectionInfo.Type {
	case "":
		add(field.Required(connection.Child("type"), ""))
	case connectInCluster:
		if name := w.ConnectionInfo.KubeConfigFile; name != nil {
			add(field.Invalid(file, *name, "can only be set when type=KubeConfigFile"))
		}
	case connectKubeconfig:
		if name := w.ConnectionInfo.KubeConfigFile; name == nil || *name == "" {
			add(field.Required(file, ""))
		} else if !filepath.IsAbs(*name) {
			add(field.Invalid(file, *name, "must be an absolute path"))
		} else if info, err := os.Stat(*name); err != nil {
			add(field.Invalid(file, *name, fmt.Sprintf("error loading file: %v", err)))
		} else if !info.Mode().IsRegular() {
			add(field.Invalid(file, *name, "must be a regular file"))
		}
	default:
		// kube-apiserver's message has the whole connectionInfo as the value.
		value := struct {
			Type           string
			KubeConfigFile *string
		}{w.ConnectionInfo.Type, w.ConnectionInfo.KubeConfigFile}
		add(field.NotSupported(connection.Child("type"), value, []string{connectInCluster, connectKubeconfig}))
	}
	if len(w.MatchConditions) > 0 {
		c, err := compiler()
		if err != nil {
			return append(errs, field.InternalError(path, err))
		}
		_, problems := c.Compile(path, expressions(w.MatchConditions))
		errs = append(errs, problems...)
	}
	return errs
}

func expressions(conditions []matchCondition) (out []string) {
	for _, c := range conditions {
		out = append(out, c.Expression)
	}
	return out
}

// compile compiles the match conditions of a webhook; nil if there are none.
func compile(compiler compiler, conditions []matchCondition) (*webhook.Conditions, error) {
	if len(conditions) == 0 {
		return nil, nil
	}
	c, err := compiler()
	if err != nil {
		return nil, err
	}
	compiled, errs := c.Compile(nil, expressions(conditions))
	return compiled, errs.ToAggregate()
}
