package plugin

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/apikeel/kelson/admission/manifests"
	"github.com/apikeel/kelson/internal/configfile"
)

// configurations are the plugin configurations of an AdmissionConfiguration.
type configurations []struct {
	Name string `json:"name"`
	// Path of another file, relative to this one.
	Path          string                `json:"path"`
	Configuration *runtime.RawExtension `json:"configuration"`
}

// Configuration returns the configuration of a plugin in the file, nil if there is none. It
// is for plugins that are made outside of this package.
func (c Config) Configuration(name string) ([]byte, error) {
	all, err := c.read([]maker{{name: name}})
	if err != nil {
		return nil, fmt.Errorf("failed to read plugin config: %w", err)
	}
	return all.of(name)
}

// Sources are the configuration sources of a webhook or policy plugin besides the API.
type Sources struct {
	// Kubeconfig is a file with the credentials to present to webhooks.
	Kubeconfig string
	// Manifests is a directory of static manifests.
	Manifests string
}

// Sources returns the sources that the file has for a plugin. They are empty for a disabled
// plugin.
func (c Config) Sources(name string) (s Sources, err error) {
	if m := slices.IndexFunc(order(), func(m maker) bool { return m.name == name }); m < 0 || !c.enabled(order()[m]) {
		return s, nil
	}
	data, err := c.Configuration(name)
	if err != nil || data == nil {
		return s, err
	}
	var cfg struct {
		APIVersion         string `json:"apiVersion"`
		Kind               string `json:"kind"`
		StaticManifestsDir string `json:"staticManifestsDir"`
	}
	const version = "apiserver.config.k8s.io/v1"
	if strings.HasSuffix(name, "Webhook") {
		var hooks struct {
			APIVersion         string `json:"apiVersion"`
			Kind               string `json:"kind"`
			StaticManifestsDir string `json:"staticManifestsDir"`
			KubeConfigFile     string `json:"kubeConfigFile"`
		}
		err = decode(data, &hooks, "WebhookAdmissionConfiguration", version)
		s = Sources{hooks.KubeConfigFile, hooks.StaticManifestsDir}
	} else {
		err = decode(data, &cfg, name+"Configuration", version)
		s.Manifests = cfg.StaticManifestsDir
	}
	switch {
	case err != nil:
		return s, err
	case s.Kubeconfig != "" && !path.IsAbs(s.Kubeconfig):
		return s, field.Invalid(field.NewPath("kubeConfigFile"), s.Kubeconfig, "must be an absolute file path")
	case s.Manifests != "":
		return s, manifests.CheckPath(s.Manifests)
	}
	return s, nil
}

// read decodes the file.
func (c Config) read(enabled []maker) (configurations, error) {
	if c.File == "" {
		return nil, nil
	}
	data, err := os.ReadFile(c.File)
	if err != nil {
		return nil, fmt.Errorf("unable to read admission control configuration from %q [%w]", c.File, err)
	}
	// Two plugins once had configuration files of their own, without a kind.
	var old struct {
		ImagePolicy  any `json:"imagePolicy"`
		NodeSelector any `json:"podNodeSelectorPluginConfig"`
		Kind         string
	}
	if yaml.Unmarshal(data, &old) == nil && old.Kind == "" && (old.ImagePolicy != nil || old.NodeSelector != nil) {
		var all configurations
		for _, m := range enabled {
			if m.name == "ImagePolicyWebhook" || m.name == "PodNodeSelector" {
				all = append(all, configurations{{Name: m.name, Path: c.File}}...)
			}
		}
		return all, nil
	}
	var file struct {
		APIVersion string         `json:"apiVersion"`
		Kind       string         `json:"kind"`
		Plugins    configurations `json:"plugins"`
	}
	if err := decode(data, &file, "AdmissionConfiguration", "apiserver.config.k8s.io/v1", "apiserver.k8s.io/v1alpha1"); err != nil {
		return nil, err
	}
	for i, p := range file.Plugins {
		if p.Path != "" && !filepath.IsAbs(p.Path) {
			file.Plugins[i].Path = filepath.Join(filepath.Dir(c.File), p.Path)
		}
	}
	return file.Plugins, nil
}

// of returns the configuration of a plugin, nil if it has none.
func (c configurations) of(name string) ([]byte, error) {
	for _, p := range c {
		switch {
		case p.Name != name:
			continue
		case p.Configuration != nil:
			return p.Configuration.Raw, nil
		case p.Path != "":
			data, err := os.ReadFile(p.Path)
			if err != nil {
				return nil, fmt.Errorf("couldn't open admission plugin configuration %s: %w", p.Path, err)
			}
			return data, nil
		}
		return nil, nil
	}
	return nil, nil
}

// decode decodes a configuration strictly; it must be of the kind in one of the versions.
func decode(data []byte, into any, kind string, apiVersions ...string) error {
	if err := configfile.Check(data, kind, apiVersions...); err != nil {
		return err
	}
	if err := configfile.UnmarshalYAML(data, into); err != nil {
		return fmt.Errorf("strict decoding error: %w", err)
	}
	return nil
}
