package encrypt

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validate checks the configuration; the messages are those of kube-apiserver.
func (c *configuration) validate() (errs field.ErrorList) {
	root := field.NewPath("resources")
	if len(c.Resources) == 0 {
		return field.ErrorList{missing(root, root)}
	}
	plugins := map[string]bool{}
	for i, rc := range c.Resources {
		names, providers := root.Index(i).Child("resources"), root.Index(i).Child("providers")
		if len(rc.Resources) == 0 {
			errs = append(errs, missing(names, names))
		}
		errs = append(errs, overlaps(rc.Resources, names)...)
		for j, name := range rc.Resources {
			if problem := nameProblem(name); problem != "" {
				errs = append(errs, field.Invalid(names.Index(j), name, problem))
			}
		}
		if len(rc.Providers) == 0 {
			errs = append(errs, missing(providers, providers))
		}
		for j := range rc.Providers {
			errs = append(errs, rc.Providers[j].validate(providers.Index(j), plugins)...)
		}
	}
	return errs
}

func missing(path *field.Path, what fmt.Stringer) *field.Error {
	return field.Required(path, fmt.Sprintf("at least one %s is required", what))
}

// overlaps reports duplicate resource names and names that a wildcard in the same list
// includes.
func overlaps(names []string, path *field.Path) (errs field.ErrorList) {
	var duplicate, overlap bool
	parsed := make([]schema.GroupResource, len(names))
	for i := range names {
		parsed[i] = schema.ParseGroupResource(names[i])
	}
	for i, a := range parsed {
		for _, b := range parsed[i+1:] {
			switch {
			case a == b:
				duplicate = true
				overlap = overlap || a.Resource == "*"
			case a == everything() || b == everything(), a.Group == b.Group && (a.Resource == "*" || b.Resource == "*"):
				overlap = true
			}
		}
	}
	if duplicate {
		errs = append(errs, field.Invalid(path, names, "the same resource cannot be specified multiple times"))
	}
	if overlap {
		errs = append(errs, field.Invalid(path, names, "using overlapping resources such as 'secrets' and '*.' in the same resource list is not allowed as they will be masked"))
	}
	return errs
}

// nameProblem returns what is wrong with the name of a resource, or "".
func nameProblem(name string) string {
	gr := schema.ParseGroupResource(name)
	switch {
	case strings.ToLower(name) != name:
		return "resource name should not contain capital letters"
	case name == "*":
		return "use '*.' to encrypt all the resources from core API group or *.* to encrypt all resources"
	case name == "apiserveripinfo", name == "serviceipallocations", name == "servicenodeportallocations":
		return "resources which do not have REST API/s cannot be encrypted"
	case gr.Group == "events.k8s.io":
		return "'*.events.k8s.io' objects are stored using the 'events' API group in etcd. Use 'events' instead in the config file"
	case gr.Group == "extensions":
		return "'extensions' group has been removed and cannot be used for encryption"
	case gr.Group == "*" && gr.Resource != "*":
		return "encrypting the same resource across groups is not supported"
	}
	return ""
}

func (p *providerConfig) validate(path *field.Path, plugins map[string]bool) (errs field.ErrorList) {
	found := 0
	for _, there := range []bool{p.AESGCM != nil, p.AESCBC != nil, p.Secretbox != nil, p.Identity != nil, p.KMS != nil} {
		if there {
			found++
		}
	}
	switch {
	case found == 0:
		errs = append(errs, field.Invalid(path, "REDACTED", "provider does not contain any of the expected providers: KMS, AESGCM, AESCBC, Secretbox, Identity"))
	case found > 1:
		errs = append(errs, field.Invalid(path, "REDACTED", "more than one provider specified in a single element, should split into different list elements"))
	}
	switch {
	case p.KMS != nil:
		errs = append(errs, p.KMS.validate(path.Child("kms"), plugins)...)
		plugins[p.KMS.Name] = true
	case p.AESGCM != nil:
		errs = append(errs, p.AESGCM.validate(path.Child("aesgcm", "keys"), 16, 24, 32)...)
	case p.AESCBC != nil:
		errs = append(errs, p.AESCBC.validate(path.Child("aescbc", "keys"), 16, 24, 32)...)
	case p.Secretbox != nil:
		errs = append(errs, p.Secretbox.validate(path.Child("secretbox", "keys"), 32)...)
	}
	return errs
}

func (c *keysConfig) validate(path *field.Path, sizes ...int) (errs field.ErrorList) {
	if len(c.Keys) == 0 {
		return field.ErrorList{field.Required(path, "at least one keys is required")}
	}
	for i, k := range c.Keys {
		at := path.Index(i)
		if k.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), "name is a mandatory field for a key"))
		}
		if k.Secret == "" {
			errs = append(errs, field.Required(at.Child("secret"), "secret is a mandatory field for a key"))
			continue
		}
		secret, err := base64.StdEncoding.DecodeString(k.Secret)
		switch {
		case err != nil:
			errs = append(errs, field.Invalid(at.Child("secret"), "REDACTED", "secrets must be base64 encoded"))
		case !slices.Contains(sizes, len(secret)):
			errs = append(errs, field.Invalid(at.Child("secret"), "REDACTED",
				fmt.Sprintf("secret is not of the expected length, got %d, expected one of %v", len(secret), sizes)))
		}
	}
	return errs
}

func (c *kmsConfig) validate(path *field.Path, plugins map[string]bool) (errs field.ErrorList) {
	name, endpoint := path.Child("name"), path.Child("endpoint")
	if c.Name == "" {
		errs = append(errs, field.Required(name, "name is a mandatory field for a provider"))
	}
	if c.APIVersion != "v1" && strings.Contains(c.Name, ":") {
		errs = append(errs, field.Invalid(name, c.Name, fmt.Sprintf("invalid KMS provider name %s, must not contain ':'", c.Name)))
	}
	if plugins[c.Name] {
		errs = append(errs, field.Invalid(name, c.Name, fmt.Sprintf("duplicate KMS provider name %s, names must be unique", c.Name)))
	}
	if c.Timeout.Duration <= 0 {
		errs = append(errs, field.Invalid(path.Child("timeout"), c.Timeout, "timeout should be a positive value"))
	}
	if c.Endpoint == "" {
		errs = append(errs, field.Invalid(endpoint, "", "endpoint is a mandatory field for a kms"))
	} else if u, err := url.Parse(c.Endpoint); err != nil {
		errs = append(errs, field.Invalid(endpoint, c.Endpoint, fmt.Sprintf("invalid endpoint for kms provider, error: %v", err)))
	} else if u.Scheme != "unix" {
		errs = append(errs, field.Invalid(endpoint, c.Endpoint, fmt.Sprintf("unsupported scheme %q for KMS provider, only unix is supported", u.Scheme)))
	}
	if c.APIVersion != "v1" && c.CacheSize != nil {
		errs = append(errs, field.Invalid(path.Child("cachesize"), *c.CacheSize, "cachesize is not supported in v2"))
	}
	if c.APIVersion == "v1" && c.CacheSize != nil && *c.CacheSize == 0 {
		errs = append(errs, field.Invalid(path.Child("cachesize"), *c.CacheSize, "cachesize should be a positive value, or negative to disable"))
	}
	if c.APIVersion != "v1" && c.APIVersion != "v2" {
		errs = append(errs, field.Invalid(path.Child("apiVersion"), c.APIVersion, "unsupported apiVersion apiVersion for KMS provider, only v1 and v2 are supported"))
	}
	return errs
}
