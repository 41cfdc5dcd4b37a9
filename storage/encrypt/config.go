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

	"github.com/apikeel/kelson/internal/configfile"
)

// This file reads an EncryptionConfiguration and creates its transformers.

const (
	configVersion = "apiserver.config.k8s.io/v1"
	configKind    = "EncryptionConfiguration"

	// kmsTimeout is the default timeout of a call to a KMS plugin.
	kmsTimeout = 3 * time.Second
	// kmsV1Cache is how many keys of a KMS v1 plugin are cached unless the file says.
	kmsV1Cache = 1000
)

// configuration is the EncryptionConfiguration of kube-apiserver.
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
			if kms.APIVersion == "v1" && kms.CacheSize == nil {
				size := int32(kmsV1Cache)
				kms.CacheSize = &size
			}
			if kms.Timeout == nil {
				kms.Timeout = &metav1.Duration{Duration: kmsTimeout}
			}
		}
	}
}

// parse decodes and validates a file; path is for messages.
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
	text, err := configfile.ToJSON(content)
	if err != nil {
		return nil, wrong(err)
	}
	var c configuration
	unknown, err := configfile.UnmarshalStrict(text, &c)
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

// providerSet holds the transformers of one configuration, by resource.
type providerSet struct {
	resources map[schema.GroupResource]transformer
	plugins   []kms
	usesV1    bool // a plugin is of KMS v1
	measure   *measuring
	allowV1   bool // KMS v1 may be used
	// grace is how long a call may still use the set after it was replaced.
	grace time.Duration
}

// build creates the transformers of a configuration.
func (c *configuration) build(measure *measuring, kmsV1 bool, log *slog.Logger) (*providerSet, error) {
	s := &providerSet{resources: map[schema.GroupResource]transformer{}, measure: measure, allowV1: kmsV1}
	choices := map[schema.GroupResource]*prefixTransformers{}
	for _, rc := range c.Resources {
		providers, err := s.providers(rc.Providers, log)
		if err == nil {
			err = s.addProviders(choices, rc.Resources, providers)
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

// addProviders appends providers to those of the named resources. A resource that is masked by
// an earlier wildcard is an error.
func (s *providerSet) addProviders(choices map[schema.GroupResource]*prefixTransformers, names []string, providers []prefixed) error {
	for _, name := range names {
		gr := schema.ParseGroupResource(name)
		for _, wider := range []schema.GroupResource{{Group: gr.Group, Resource: "*"}, everything()} {
			if choices[wider] != nil {
				return fmt.Errorf("resource %q is masked by earlier rule %q", configName(gr), configName(wider))
			}
		}
		if choices[gr] == nil {
			choices[gr] = &prefixTransformers{noMatch: errors.New("no matching prefix found"), measure: s.measure}
		}
		choices[gr].candidates = append(choices[gr].candidates, providers...)
	}
	return nil
}

func everything() schema.GroupResource { return schema.GroupResource{Group: "*", Resource: "*"} }

// configName returns the name of a resource as the file writes it.
func configName(gr schema.GroupResource) string {
	if gr.Group == "" && gr.Resource == "*" {
		return "*."
	}
	return gr.String()
}

func (s *providerSet) providers(configs []providerConfig, log *slog.Logger) (all []prefixed, err error) {
	for _, p := range configs {
		var t prefixed
		switch {
		case p.AESGCM != nil:
			t, err = s.newKeyedProvider(p.AESGCM, "k8s:enc:aesgcm:v1:", "AES", func(secret []byte) (transformer, error) {
				return withBlock(secret, func(block cipher.Block) (transformer, error) { return newGCM(block) })
			})
		case p.AESCBC != nil:
			t, err = s.newKeyedProvider(p.AESCBC, "k8s:enc:aescbc:v1:", "AES", func(secret []byte) (transformer, error) {
				return withBlock(secret, func(block cipher.Block) (transformer, error) { return cbc{block}, nil })
			})
		case p.Secretbox != nil:
			t, err = s.newKeyedProvider(p.Secretbox, "k8s:enc:secretbox:v1:", "Secretbox", func(secret []byte) (transformer, error) {
				return &box{[32]byte(secret)}, nil
			})
		case p.KMS != nil:
			t, err = s.newPlugin(p.KMS, log)
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

// newKeyedProvider returns a provider with named keys; the name is part of the stored prefix.
func (s *providerSet) newKeyedProvider(c *keysConfig, prefix, name string, with func(secret []byte) (transformer, error)) (prefixed, error) {
	keys := &prefixTransformers{noMatch: fmt.Errorf("no matching key was found for the provided %s transformer", name), measure: s.measure}
	for _, k := range c.Keys {
		secret, err := base64.StdEncoding.DecodeString(k.Secret)
		if err != nil {
			return prefixed{}, fmt.Errorf("could not obtain secret for named key %s: %w", k.Name, err)
		}
		t, err := with(secret)
		if err != nil {
			return prefixed{}, fmt.Errorf("error while creating cipher for named key %s: %w", k.Name, err)
		}
		keys.candidates = append(keys.candidates, prefixed{k.Name + ":", t})
	}
	return prefixed{prefix, keys}, nil
}

func (s *providerSet) newPlugin(c *kmsConfig, log *slog.Logger) (prefixed, error) {
	if c.APIVersion == "v1" {
		const deprecated = "KMSv1 is deprecated and will only receive security updates going forward. Use KMSv2 instead."
		if !s.allowV1 {
			//lint:ignore ST1005 the words of kube-apiserver
			return prefixed{}, errors.New(deprecated + "  Set --feature-gates=KMSv1=true to use the deprecated KMSv1 feature.")
		}
		log.Warn(deprecated, "provider", c.Name)
		p, err := dialV1(c, s.measure)
		if err != nil {
			return prefixed{}, fmt.Errorf("could not configure KMSv1-Plugin's probe %q, error: %w", c.Name, err)
		}
		s.plugins, s.usesV1 = append(s.plugins, p), true
		s.grace += 4 * c.Timeout.Duration // a health check encrypts and decrypts
		return prefixed{"k8s:enc:kms:v1:" + c.Name + ":", p}, nil
	}
	p, err := dial(c, s.measure, log)
	if err != nil {
		return prefixed{}, fmt.Errorf("could not configure KMSv2-Plugin's probe %q, error: %w", c.Name, err)
	}
	s.plugins = append(s.plugins, p)
	s.grace += 2 * c.Timeout.Duration
	return prefixed{"k8s:enc:kms:v2:" + c.Name + ":", p}, nil
}

// find returns the transformer of a resource; without a rule, identity.
func (s *providerSet) find(gr schema.GroupResource) transformer {
	for _, name := range []schema.GroupResource{gr, {Group: gr.Group, Resource: "*"}, everything()} {
		if t := s.resources[name]; t != nil {
			return t
		}
	}
	return identity{}
}

func (s *providerSet) close() {
	for _, p := range s.plugins {
		p.close()
	}
}

// aggregate combines errors with the text of Kubernetes' aggregates.
func aggregate(errs []error) error { return utilerrors.Reduce(utilerrors.NewAggregate(errs)) }
