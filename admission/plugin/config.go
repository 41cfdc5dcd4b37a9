package plugin

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

// configurations are those of plugins, as a file has them.
type configurations []struct {
	Name string `json:"name"`
	// Path of another file, relative to this one.
	Path          string                `json:"path"`
	Configuration *runtime.RawExtension `json:"configuration"`
}

// Configuration returns what the file has for a plugin, nil if there is nothing.
// It is for plugins that are made elsewhere.
func (c Config) Configuration(name string) ([]byte, error) {
	all, err := c.read([]maker{{name: name}})
	if err != nil {
		return nil, fmt.Errorf("failed to read plugin config: %w", err)
	}
	return all.of(name)
}

// WebhookKubeconfig returns the file with the credentials that a plugin shows to
// webhooks; empty if there is none.
func (c Config) WebhookKubeconfig(name string) (string, error) {
	data, err := c.Configuration(name)
	if err != nil || data == nil {
		return "", err
	}
	var cfg struct {
		APIVersion     string `json:"apiVersion"`
		Kind           string `json:"kind"`
		KubeConfigFile string `json:"kubeConfigFile"`
	}
	if err := decode(data, &cfg, "WebhookAdmissionConfiguration", "apiserver.config.k8s.io/v1"); err != nil {
		return "", err
	}
	if cfg.KubeConfigFile != "" && !path.IsAbs(cfg.KubeConfigFile) {
		return "", field.Invalid(field.NewPath("kubeConfigFile"), cfg.KubeConfigFile, "must be an absolute file path")
	}
	return cfg.KubeConfigFile, nil
}

// read reads the file.
func (c Config) read(enabled []maker) (configurations, error) {
	if c.File == "" {
		return nil, nil
	}
	data, err := os.ReadFile(c.File)
	if err != nil {
		return nil, fmt.Errorf("unable to read admission control configuration from %q [%w]", c.File, err)
	}
	// Two plugins once had files of their own, without a kind.
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

// decode reads a configuration of a kind in one of some versions. It must have
// no other fields.
func decode(data []byte, into any, kind string, apiVersions ...string) error {
	var is struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := yaml.Unmarshal(data, &is); err != nil {
		return err
	}
	switch {
	case is.Kind == "":
		return runtime.NewMissingKindErr(string(bytes.TrimSpace(data)))
	case is.APIVersion == "":
		return runtime.NewMissingVersionErr(string(bytes.TrimSpace(data)))
	}
	for _, v := range apiVersions {
		if is.Kind == kind && is.APIVersion == v {
			if err := yaml.UnmarshalStrict(data, into); err != nil {
				return fmt.Errorf("strict decoding error: %w", err)
			}
			return nil
		}
	}
	gv, err := schema.ParseGroupVersion(is.APIVersion)
	if err != nil {
		return err
	}
	return fmt.Errorf("no kind %q is registered for version %q: it is %s of %s", is.Kind, gv, kind, strings.Join(apiVersions, " or "))
}
