package encrypt

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/apikeel/kelson/internal/configfile"
)

const (
	configVersion = "apiserver.config.k8s.io/v1"
	configKind    = "EncryptionConfiguration"

	// kmsTimeout is how long a call of a key management service may take.
	kmsTimeout = 3 * time.Second
)

// configuration is the file, as kube-apiserver has it.
type configuration struct {
	metav1.TypeMeta
	Resources []resourceConfig `json:"resources"`
}

type resourceConfig struct {
	Resources []string         `json:"resources"`
	Providers []providerConfig `json:"providers"`
}

type providerConfig struct {
	AESGCM    *keysConfig `json:"aesgcm,omitempty"`
	AESCBC    *keysConfig `json:"aescbc,omitempty"`
	Secretbox *keysConfig `json:"secretbox,omitempty"`
	Identity  *struct{}   `json:"identity,omitempty"`
	KMS       *kmsConfig  `json:"kms,omitempty"`
}

type keysConfig struct {
	Keys []keyConfig `json:"keys"`
}

type keyConfig struct {
	Name   string `json:"name"`
	Secret string `json:"secret"`
}

// String keeps the secret out of messages.
func (k keyConfig) String() string { return fmt.Sprintf("Name: %s, Secret: [REDACTED]", k.Name) }

type kmsConfig struct {
	APIVersion string           `json:"apiVersion"`
	Name       string           `json:"name"`
	CacheSize  *int32           `json:"cachesize,omitempty"`
	Endpoint   string           `json:"endpoint"`
	Timeout    *metav1.Duration `json:"timeout,omitempty"`
}

func (c *configuration) defaults() {
	for i := range c.Resources {
		for _, p := range c.Resources[i].Providers {
			kms := p.KMS
			if kms == nil {
				continue
			}
			if kms.APIVersion == "" {
				kms.APIVersion = "v1"
			}
			if kms.Timeout == nil {
				kms.Timeout = &metav1.Duration{Duration: kmsTimeout}
			}
		}
	}
}

// parse reads the file that has a path for messages.
func parse(path string, content []byte) (*configuration, error) {
	wrong := func(err error) error {
		return fmt.Errorf("error while parsing file: error decoding encryption provider configuration file %q: %w", path, err)
	}
	if len(content) == 0 {
		return nil, fmt.Errorf("error while parsing file: error while loading file: encryption provider configuration file %q is empty", path)
	}
	if err := configfile.Check(content, configKind, configVersion); err != nil {
		return nil, wrong(err)
	}
	text, err := yaml.YAMLToJSONStrict(content)
	if err != nil {
		return nil, wrong(err)
	}
	var c configuration
	unknown, err := kjson.UnmarshalStrict(text, &c)
	switch {
	case err != nil:
		return nil, wrong(err)
	case len(unknown) > 0:
		texts := make([]string, len(unknown))
		for i := range unknown {
			texts[i] = unknown[i].Error()
		}
		return nil, wrong(fmt.Errorf("strict decoding error: %s", strings.Join(texts, ", ")))
	}
	c.defaults()
	if err := c.validate().ToAggregate(); err != nil {
		return nil, fmt.Errorf("error while parsing file: %w", err)
	}
	return &c, nil
}

// set is what a file says: who stores which resources.
type set struct {
	resources map[schema.GroupResource]transformer
	plugins   []*plugin
	measure   *measuring
	// grace is how long calls may last that began before the set was replaced.
	grace time.Duration
}

// build makes the transformers of a file.
func (c *configuration) build(measure *measuring, log *slog.Logger) (*set, error) {
	s := &set{resources: map[schema.GroupResource]transformer{}, measure: measure}
	choices := map[schema.GroupResource]*choice{}
	for _, rc := range c.Resources {
		providers, err := s.providers(rc.Providers, log)
		if err == nil {
			err = s.join(choices, rc.Resources, providers)
		}
		if err != nil {
			s.close()
			return nil, fmt.Errorf("error while building transformers: %w", err)
		}
	}
	for gr, c := range choices {
		s.resources[gr] = c
	}
	return s, nil
}

// join adds providers to what resources have so far. A rule that a wildcard
// before it hides is an error.
func (s *set) join(choices map[schema.GroupResource]*choice, names []string, providers []prefixed) error {
	for _, name := range names {
		gr := schema.ParseGroupResource(name)
		for _, wider := range []schema.GroupResource{{Group: gr.Group, Resource: "*"}, everything()} {
			if choices[wider] != nil {
				return fmt.Errorf("resource %q is masked by earlier rule %q", written(gr), written(wider))
			}
		}
		if choices[gr] == nil {
			choices[gr] = &choice{none: errors.New("no matching prefix found"), measure: s.measure}
		}
		choices[gr].from = append(choices[gr].from, providers...)
	}
	return nil
}

func everything() schema.GroupResource { return schema.GroupResource{Group: "*", Resource: "*"} }

// written is a resource as the file has it.
func written(gr schema.GroupResource) string {
	if gr.Group == "" && gr.Resource == "*" {
		return "*."
	}
	return gr.String()
}

func (s *set) providers(configs []providerConfig, log *slog.Logger) (all []prefixed, err error) {
	for _, p := range configs {
		var t prefixed
		switch {
		case p.AESGCM != nil:
			t, err = s.keyed(p.AESGCM, "k8s:enc:aesgcm:v1:", "AES", func(secret []byte) (transformer, error) {
				return withBlock(secret, func(block cipher.Block) (transformer, error) { return newGCM(block) })
			})
		case p.AESCBC != nil:
			t, err = s.keyed(p.AESCBC, "k8s:enc:aescbc:v1:", "AES", func(secret []byte) (transformer, error) {
				return withBlock(secret, func(block cipher.Block) (transformer, error) { return cbc{block}, nil })
			})
		case p.Secretbox != nil:
			t, err = s.keyed(p.Secretbox, "k8s:enc:secretbox:v1:", "Secretbox", func(secret []byte) (transformer, error) {
				return &box{[32]byte(secret)}, nil
			})
		case p.KMS != nil:
			t, err = s.plugin(p.KMS, log)
		default:
			t = prefixed{"", identity{}}
		}
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	return all, nil
}

func withBlock(secret []byte, then func(cipher.Block) (transformer, error)) (transformer, error) {
	block, err := aes.NewCipher(secret)
	if err != nil {
		return nil, err
	}
	return then(block)
}

// keyed is a provider that tells its keys apart by their names.
func (s *set) keyed(c *keysConfig, prefix, name string, with func(secret []byte) (transformer, error)) (prefixed, error) {
	keys := &choice{none: fmt.Errorf("no matching key was found for the provided %s transformer", name), measure: s.measure}
	for _, k := range c.Keys {
		secret, err := base64.StdEncoding.DecodeString(k.Secret)
		if err != nil {
			return prefixed{}, fmt.Errorf("could not obtain secret for named key %s: %w", k.Name, err)
		}
		t, err := with(secret)
		if err != nil {
			return prefixed{}, fmt.Errorf("error while creating cipher for named key %s: %w", k.Name, err)
		}
		keys.from = append(keys.from, prefixed{k.Name + ":", t})
	}
	return prefixed{prefix, keys}, nil
}

func (s *set) plugin(c *kmsConfig, log *slog.Logger) (prefixed, error) {
	if c.APIVersion == "v1" {
		const refused = "KMSv1 is deprecated and will only receive security updates going forward. " +
			"Use KMSv2 instead.  Set --feature-gates=KMSv1=true to use the deprecated KMSv1 feature."
		return prefixed{}, fmt.Errorf("%s", refused)
	}
	p, err := dial(c, s.measure, log)
	if err != nil {
		return prefixed{}, fmt.Errorf("could not configure KMSv2-Plugin's probe %q, error: %w", c.Name, err)
	}
	s.plugins = append(s.plugins, p)
	s.grace += 2 * c.Timeout.Duration
	return prefixed{"k8s:enc:kms:v2:" + c.Name + ":", p}, nil
}

// find returns who stores a resource.
func (s *set) find(gr schema.GroupResource) transformer {
	for _, name := range []schema.GroupResource{gr, {Group: gr.Group, Resource: "*"}, everything()} {
		if t := s.resources[name]; t != nil {
			return t
		}
	}
	return identity{}
}

func (s *set) close() {
	for _, p := range s.plugins {
		p.close()
	}
}

// aggregate is several errors in the words of Kubernetes.
func aggregate(errs []error) error { return utilerrors.Reduce(utilerrors.NewAggregate(errs)) }
