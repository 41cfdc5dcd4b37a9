package builtin

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/resource"
)

// isOther reports whether a group that is not built in may be named in --runtime-config.
func isOther(group string) bool {
	switch group {
	case "apiextensions.k8s.io", "apiregistration.k8s.io", "admission.k8s.io", "imagepolicy.k8s.io":
		return true
	}
	return false
}

// isGone reports whether a version may be named in --runtime-config although nothing is
// served or stored in it any more: kube-apiserver still knows its types.
func isGone(gv schema.GroupVersion) bool {
	switch gv.Group {
	case "authentication.k8s.io":
		return gv.Version == "v1alpha1" || gv.Version == "v1beta1"
	case "authorization.k8s.io":
		return gv.Version == "v1beta1"
	}
	return false
}

// Select returns the groups with versions turned on and off by --runtime-config. Keys are
// api/all, api/ga, api/beta, api/alpha, a group and version, or a group, version and resource;
// more specific keys win. Values are true and false. Versions that are not named keep their
// default.
//
// Versions that Kubernetes has removed are turned on only by their own names. A resource
// without an enabled version, or behind a disabled feature gate, is left out.
func Select(groups []resource.Group, runtimeConfig map[string]string) ([]resource.Group, error) {
	return SelectAs(groups, runtimeConfig, features.Gates{}, Emulation{})
}

// SelectAs is Select with feature gates and an emulated version: later versions are off,
// except for those that e allows.
func SelectAs(groups []resource.Group, runtimeConfig map[string]string, gates features.Gates, e Emulation) ([]resource.Group, error) {
	config, err := parseConfig(groups, runtimeConfig)
	if err != nil {
		return nil, err
	}
	version := gates.Version().Emulated
	config.minor = int(version.Minor())
	out := slices.Clone(groups)
	for i := range out {
		out[i].Resources = nil
		for _, d := range groups[i].Resources {
			d.Versions = slices.Clone(d.Versions)
			for j := range d.Versions {
				v := &d.Versions[j]
				r := groupVersion(&groups[i], &d, v).WithResource(d.Resource)
				v.Off = !config.enabled(r, v) || d.Gate != "" && !gates.Enabled(d.Gate)
			}
			if slices.ContainsFunc(d.Versions, func(v resource.Version) bool { return !v.Off }) {
				out[i].Resources = append(out[i].Resources, d)
			}
		}
	}
	if out, err = e.apply(out, version, config); err != nil {
		return nil, err
	}
	setStorageVersions(out, gates.Version())
	return out, nil
}

// groupVersion returns the group and version in which a version of a resource is served.
func groupVersion(g *resource.Group, d *resource.Definition, v *resource.Version) schema.GroupVersion {
	for _, group := range []string{v.Group, d.Group} {
		if group != "" {
			return schema.GroupVersion{Group: group, Version: v.Name}
		}
	}
	return schema.GroupVersion{Group: g.Name, Version: v.Name}
}

// level is a key that stands for all versions of a stability level.
type level struct {
	name  string
	match func(version string) bool
}

// levels returns the levels in the order in which they apply.
func levels() []level {
	pattern := func(p string) func(string) bool { return regexp.MustCompile(p).MatchString }
	return []level{
		{"api/all", func(string) bool { return true }},
		{"api/ga", pattern(`^v\d+$`)},
		{"api/beta", pattern(`^v\d+beta\d+$`)},
		{"api/alpha", pattern(`^v\d+alpha\d+$`)},
	}
}

// versionConfig is a parsed --runtime-config.
type versionConfig struct {
	levels    []level
	minor     int // minor version of Kubernetes
	byLevel   map[string]bool
	versions  map[schema.GroupVersion]bool
	resources map[schema.GroupVersionResource]bool
}

func (c *versionConfig) enabled(r schema.GroupVersionResource, v *resource.Version) bool {
	if on, ok := c.resources[r]; ok {
		return on
	}
	if on, ok := c.versions[r.GroupVersion()]; ok {
		return on
	}
	on := !v.Off
	for _, l := range c.levels {
		if value, ok := c.byLevel[l.name]; ok && l.match(v.Name) && !(value && (removed(v, c.minor) || forgotten(r))) {
			on = value
		}
	}
	return on
}

// forgotten reports whether a version is one that Kubernetes no longer serves although its type
// does not say so.
func forgotten(r schema.GroupVersionResource) bool {
	switch r {
	case schema.GroupVersionResource{Group: "node.k8s.io", Version: "v1alpha1", Resource: "runtimeclasses"},
		schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1alpha1", Resource: "volumeattributesclasses"}:
		return true
	}
	return false
}

// removed reports whether Kubernetes has removed a version.
func removed(v *resource.Version, minorVersion int) bool {
	r, ok := v.New().(interface{ APILifecycleRemoved() (major, minor int) })
	if !ok {
		return false
	}
	major, minor := r.APILifecycleRemoved()
	return major == features.KubernetesMajor && minor <= minorVersion
}

// CheckKeys returns an error for keys of --runtime-config that name unknown versions.
func CheckKeys(runtimeConfig map[string]string) error {
	if len(runtimeConfig) == 0 {
		return nil
	}
	_, err := parseKeys(Groups(Config{}), runtimeConfig)
	return err
}

// CheckConfig returns the error that Select would return for a --runtime-config.
func CheckConfig(runtimeConfig map[string]string) error {
	if len(runtimeConfig) == 0 {
		return nil
	}
	_, err := parseConfig(Groups(Config{}), runtimeConfig)
	return err
}

// parseKeys parses the keys that name versions and resources. Errors in keys come before errors
// in values.
func parseKeys(groups []resource.Group, config map[string]string) (map[string][]string, error) {
	if config["api/all"] == "false" && len(config) == 1 {
		return nil, errors.New("invalid runtime-config with only api/all=false")
	}
	knownGroups := map[string]bool{}
	for gv := range versionsOf(groups) {
		knownGroups[gv.Group] = true
	}
	keys := map[string][]string{}
	var unknown []string
	for _, key := range slices.Sorted(maps.Keys(config)) {
		if slices.ContainsFunc(levels(), func(l level) bool { return l.name == key }) {
			continue
		}
		parts := strings.Split(key, "/")
		if len(parts) != 2 && len(parts) != 3 {
			return nil, fmt.Errorf("runtime-config invalid key %s", key)
		}
		keys[key] = parts
		if gv := (schema.GroupVersion{Group: parts[0], Version: parts[1]}); !knownGroups[gv.Group] {
			delete(keys, key)
			if !isOther(gv.Group) {
				unknown = append(unknown, gv.String())
			}
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		return nil, fmt.Errorf("unknown api groups %s", strings.Join(slices.Compact(unknown), ","))
	}
	return keys, nil
}

// versionsOf returns the versions that groups have, and those that stored objects may be of.
func versionsOf(groups []resource.Group) map[schema.GroupVersion]bool {
	known := map[schema.GroupVersion]bool{}
	for i := range groups {
		for _, d := range groups[i].Resources {
			for j := range d.Versions {
				known[groupVersion(&groups[i], &d, &d.Versions[j])] = true
			}
			for j := range d.Old {
				known[groupVersion(&groups[i], &d, &d.Old[j])] = true
			}
		}
	}
	return known
}

func parseConfig(groups []resource.Group, config map[string]string) (*versionConfig, error) {
	keys, err := parseKeys(groups, config)
	if err != nil {
		return nil, err
	}
	c := &versionConfig{
		levels: levels(), byLevel: map[string]bool{},
		versions: map[schema.GroupVersion]bool{}, resources: map[schema.GroupVersionResource]bool{},
	}
	for _, l := range c.levels {
		switch value, ok := config[l.name]; {
		case !ok:
		case value != "true" && value != "false":
			return nil, fmt.Errorf("invalid value %s=%s", l.name, value)
		default:
			c.byLevel[l.name] = value == "true"
		}
	}
	known := versionsOf(groups)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		parts := keys[key]
		gv := schema.GroupVersion{Group: parts[0], Version: parts[1]}
		if !known[gv] && !isGone(gv) {
			return nil, fmt.Errorf("group version %s that has not been registered", gv)
		}
		on := true
		if value := config[key]; value != "" {
			var err error
			if on, err = strconv.ParseBool(value); err != nil {
				return nil, fmt.Errorf("invalid value of %s: %s, err: %w", key, value, err)
			}
		}
		if len(parts) == 2 {
			c.versions[gv] = on
			continue
		}
		if parts[2] != strings.ToLower(parts[2]) {
			return nil, fmt.Errorf("invalid key %v: group/version/resource and resource is always lowercase plural, not %q", key, parts[2])
		}
		c.resources[gv.WithResource(parts[2])] = on
	}
	return c, nil
}
