package features

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Flag is the value of --feature-gates, a pflag.Value: what was given, by component.
// The flag may be given several times; Values has what they say together.
type Flag map[string][]string

// Set implements pflag.Value.
func (f *Flag) Set(text string) error {
	if *f == nil {
		*f = Flag{}
	}
	for pair := range strings.SplitSeq(text, ",") {
		if pair == "" {
			continue
		}
		component, value, ok := strings.Cut(pair, ":")
		if !ok {
			component, value = "", pair
		}
		component = strings.TrimSpace(component)
		(*f)[component] = append((*f)[component], strings.TrimSpace(value))
	}
	return nil
}

// String implements pflag.Value.
func (f *Flag) String() string {
	var all []string
	for _, component := range slices.Sorted(maps.Keys(*f)) {
		for _, value := range (*f)[component] {
			all = append(all, component+":"+value)
		}
	}
	return strings.Join(all, ",")
}

// Type implements pflag.Value.
func (*Flag) Type() string { return "colonSeparatedMultimapStringString" }

// Values returns the gates that were given.
func (f Flag) Values() (map[string]bool, error) {
	set := map[string]bool{}
	for _, component := range slices.Sorted(maps.Keys(f)) {
		if _, both := f[kubeComponent]; component == "" && both {
			return nil, errors.New("set kube feature gates with default empty prefix or kube: prefix consistently, do not mix use")
		}
		if component != "" && component != kubeComponent {
			return nil, fmt.Errorf("component not registered: %s", component)
		}
		for _, text := range f[component] {
			name, value, ok := strings.Cut(text, "=")
			name, value = strings.TrimSpace(name), strings.TrimSpace(value)
			if text == "" {
				continue
			}
			if !ok {
				return nil, fmt.Errorf("missing bool value for %s", name)
			}
			on, err := strconv.ParseBool(value)
			if err != nil {
				return nil, fmt.Errorf("invalid value of %s=%s, err: %w", name, value, err)
			}
			set[name] = on
		}
	}
	return set, nil
}
