package features

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
)

// The version of Kubernetes whose API this module serves. It is written here and
// nowhere else.
const (
	KubernetesMajor = 1
	KubernetesMinor = 37
	KubernetesPatch = 1
)

// oldestEmulated is how many minor versions back a server can emulate.
const oldestEmulated = 3

// kubeComponent is the component that gates and versions on a command line are of, if
// they name one: kube:GenericWorkload=true, kube=1.36.
const kubeComponent = "kube"

// KubernetesVersion returns the version of Kubernetes whose API this module serves,
// with its patch: 1.37.1, for example.
func KubernetesVersion() string {
	return fmt.Sprintf("%d.%d.%d", KubernetesMajor, KubernetesMinor, KubernetesPatch)
}

// Version is the version of a server in three senses.
type Version struct {
	// Binary is the version that the program is of, with its patch.
	Binary *version.Version
	// Emulated is the version that the server behaves as: --emulated-version.
	Emulated *version.Version
	// MinCompatibility is the oldest version of servers that use the same data:
	// --min-compatibility-version.
	MinCompatibility *version.Version
}

// ParseVersion reads the values of --emulated-version and --min-compatibility-version,
// each VERSION or kube=VERSION. Without a value, the emulated version is that of the
// program, and the minimum is the one before the emulated version. Whether a server
// can have these versions is for Validate to say.
func ParseVersion(emulated, minCompatibility []string) (v Version, err error) {
	v.Binary = version.MustParse(KubernetesVersion())
	v.Emulated = majorMinor(v.Binary)
	given, err := parseComponent(emulated)
	if err != nil {
		return v, err
	}
	if given != nil {
		v.Emulated = majorMinor(given)
	}
	v.MinCompatibility = v.Emulated.SubtractMinor(1)
	if oldest := v.oldest(); v.MinCompatibility.LessThan(oldest) {
		v.MinCompatibility = oldest
	}
	given, err = parseComponent(minCompatibility)
	if given != nil {
		v.MinCompatibility = majorMinor(given)
	}
	return v, err
}

// currentVersion is the version of a server that is not told to emulate another.
func currentVersion() Version {
	v, _ := ParseVersion(nil, nil)
	return v
}

// Validate refuses versions that are too old or newer than the program.
func (v Version) Validate() error {
	var errs []error
	oldest, newest := v.oldest(), v.Binary.WithPatch(0)
	if v.Emulated.GreaterThan(newest) || v.Emulated.LessThan(oldest) {
		errs = append(errs, fmt.Errorf("emulation version %s is not between [%s, %s]", v.Emulated, oldest, newest))
	}
	if v.MinCompatibility.GreaterThan(v.Emulated) || v.MinCompatibility.LessThan(oldest) {
		errs = append(errs, fmt.Errorf("minCompatibilityVersion version %s is not between [%s, %s]", v.MinCompatibility, oldest, v.Emulated))
	}
	return errors.Join(errs...)
}

// IsEmulating reports whether the server behaves as another version than its own.
func (v Version) IsEmulating() bool { return !v.Emulated.EqualTo(v.Binary.WithPatch(0)) }

// oldest is the oldest version that the server can emulate.
func (v Version) oldest() *version.Version {
	return majorMinor(v.Binary).SubtractMinor(oldestEmulated)
}

func majorMinor(v *version.Version) *version.Version {
	return version.MajorMinor(v.Major(), v.Minor())
}

// parseComponent reads the versions of components, and returns that of the only one
// there is; nil if it is not given.
func parseComponent(given []string) (v *version.Version, err error) {
	all := map[string]*version.Version{}
	for _, text := range given {
		component := kubeComponent
		if name, value, ok := strings.Cut(text, "="); ok {
			component, text = strings.TrimSpace(name), strings.TrimSpace(value)
		}
		if v, err = version.Parse(text); err != nil {
			return nil, err
		}
		if v.Patch() != 0 {
			return nil, fmt.Errorf("patch version not allowed, got: %s=%s", component, v)
		}
		if was := all[component]; was != nil {
			return nil, fmt.Errorf("duplicate version flag, %s=%s and %s=%s", component, was, component, v)
		}
		all[component] = v
	}
	for component := range all {
		if component != kubeComponent {
			return nil, fmt.Errorf("component not registered: %s", component)
		}
	}
	return all[kubeComponent], nil
}
