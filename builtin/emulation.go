package builtin

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	apiversion "k8s.io/apimachinery/pkg/version"

	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/resource"
)

// Emulation configures what a server that emulates an earlier version of Kubernetes serves
// of later API versions. The zero value is nothing.
type Emulation struct {
	// Forward serves later versions of a resource if an earlier version of the same
	// resource, other than alpha, is served.
	Forward bool
	// RuntimeForward serves later versions that --runtime-config names.
	RuntimeForward bool
}

// apply turns off versions that were introduced after the emulated version, unless the
// configuration wants them.
func (e Emulation) apply(groups []resource.Group, version *utilversion.Version, config *versionConfig) ([]resource.Group, error) {
	out := slices.Clone(groups)
	left, gone := map[schema.GroupVersion]bool{}, map[schema.GroupVersion]bool{}
	alpha := regexp.MustCompile(`^v\d+alpha\d+$`)
	for i := range out {
		out[i].Resources = nil
		for _, d := range groups[i].Resources {
			d.Versions = slices.Clone(d.Versions)
			older := map[string]bool{} // groups in which an older version is served
			// Oldest first, so that older is complete for each version.
			for _, j := range byAge(d.Versions) {
				v := &d.Versions[j]
				r := groupVersion(&groups[i], &d, v).WithResource(d.Resource)
				if v.Off {
					continue
				}
				since := introduced(v)
				explicit := config.resources[r]
				switch {
				case version.AtLeast(since) || e.Forward && older[r.Group] || e.RuntimeForward && (explicit || config.versions[r.GroupVersion()]):
					left[r.GroupVersion()] = true
					older[r.Group] = older[r.Group] || !alpha.MatchString(v.Name)
				case explicit:
					return nil, fmt.Errorf("cannot enable resource %s in runtime-config because it is introduced at %s after the current version %s. Consider setting --runtime-config-emulation-forward-compatible=true", r, since, version)
				default:
					v.Off, gone[r.GroupVersion()] = true, true
				}
			}
			if slices.ContainsFunc(d.Versions, func(v resource.Version) bool { return !v.Off }) {
				out[i].Resources = append(out[i].Resources, d)
			}
		}
	}
	for _, gv := range slices.SortedFunc(maps.Keys(gone), func(a, b schema.GroupVersion) int { return strings.Compare(a.String(), b.String()) }) {
		if !left[gv] && config.versions[gv] {
			return nil, fmt.Errorf("cannot enable version %s in runtime-config because all the resources have been introduced after the current version %s. Consider setting --runtime-config-emulation-forward-compatible=true", gv, version)
		}
	}
	return out, nil
}

// byAge returns the indexes of versions, the least mature first.
func byAge(versions []resource.Version) []int {
	order := make([]int, len(versions))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return apiversion.CompareKubeAwareVersionStrings(versions[a].Name, versions[b].Name)
	})
	return order
}

// introduced returns the release of Kubernetes that introduced a version, nil if its type
// does not say.
func introduced(v *resource.Version) *utilversion.Version {
	i, ok := v.New().(interface{ APILifecycleIntroduced() (major, minor int) })
	if !ok {
		return utilversion.MajorMinor(0, 0)
	}
	major, minor := i.APILifecycleIntroduced()
	return utilversion.MajorMinor(uint(major), uint(minor))
}

// setStorageVersions sets the versions that objects are written in, if an earlier server
// than usual must be able to read them.
func setStorageVersions(groups []resource.Group, version features.Version) {
	usual := features.Gates{}.Version()
	if version.Emulated.EqualTo(usual.Emulated) && version.MinCompatibility.EqualTo(usual.MinCompatibility) {
		return // the hubs are the storage versions
	}
	for i := range groups {
		for j := range groups[i].Resources {
			d := &groups[i].Resources[j]
			if v := storageVersion(&groups[i], d, version); v != nil && v != d.HubVersion() {
				d.StoreAs = v.Name
			}
		}
	}
}

func isAlpha(version string) bool { return strings.Contains(version, "alpha") }
func isBeta(version string) bool  { return strings.Contains(version, "beta") }

// storageVersion returns the most mature version that the oldest compatible server can
// read. Nobody promises to read alpha versions: if there is nothing else, it is the most
// mature version that the emulated server has. It is nil if there is none. A hub that is
// alpha or beta is kept whatever version is emulated, as in kube-apiserver.
func storageVersion(g *resource.Group, d *resource.Definition, version features.Version) *resource.Version {
	hub := d.HubVersion()
	if isBeta(hub.Name) || isAlpha(hub.Name) {
		return hub
	}
	group := groupVersion(g, d, hub).Group
	order := byAge(d.Versions)
	slices.Reverse(order)
	find := func(at *utilversion.Version, isCandidate func(name string) bool) *resource.Version {
		for _, i := range order {
			if v := &d.Versions[i]; groupVersion(g, d, v).Group == group && isCandidate(v.Name) && at.AtLeast(introduced(v)) {
				return v
			}
		}
		return nil
	}
	if v := find(version.MinCompatibility, func(name string) bool { return !isAlpha(name) }); v != nil {
		return v
	}
	return find(version.Emulated, func(string) bool { return true })
}
