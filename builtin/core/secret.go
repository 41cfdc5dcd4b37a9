package core

import (
	"context"
	"crypto/tls"
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// Secrets defines secrets. Their type determines the required keys.
func Secrets() resource.Definition {
	return resource.Definition{
		Resource:   "secrets",
		Kind:       "Secret",
		Namespaced: true,
		Versions:   []resource.Version{resource.VersionOf[corev1.Secret, corev1.SecretList]("v1", defaultSecret)},
		Strategy: resource.Rules[*corev1.Secret]{
			NameOnUpdate: true,
			PrepareUpdate: func(_ context.Context, s, old *corev1.Secret) {
				if s.Type == "" {
					s.Type = old.Type
				}
			},
			Validate: func(_ context.Context, s *corev1.Secret) field.ErrorList { return validateSecret(s) },
			ValidateUpdate: func(_ context.Context, s, old *corev1.Secret) field.ErrorList {
				errs := rules.ValidateImmutable(s.Type, old.Type, field.NewPath("type"))
				errs = append(errs, checkImmutable(s.Immutable, old.Immutable, map[string]bool{
					"data": !equality.Semantic.DeepEqual(s.Data, old.Data),
				})...)
				return append(errs, validateSecret(s)...)
			},
			Warnings: func(_ context.Context, s, _ *corev1.Secret) []string {
				if s.Type != corev1.SecretTypeTLS {
					return nil
				}
				if _, err := tls.X509KeyPair(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey]); err != nil {
					return []string{err.Error()}
				}
				return nil
			},
		}.Strategy(),
		Columns: []resource.Column{
			rules.NameColumn(),
			{Name: "Type", Type: "string", Description: corev1.Secret{}.SwaggerDoc()["type"]},
			{Name: "Data", Type: "string", Description: corev1.Secret{}.SwaggerDoc()["data"]},
			rules.AgeColumn(),
		},
		Cells: resource.CellsFunc(func(s *corev1.Secret) []any {
			return []any{s.Name, string(s.Type), int64(len(s.Data)), resource.Since(s.CreationTimestamp.Time)}
		}),
		Fields: []resource.Field{
			resource.FieldFunc("type", func(s *corev1.Secret) string { return string(s.Type) }),
		},
	}
}

// defaultSecret sets defaults, and moves the write-only stringData into data.
func defaultSecret(s *corev1.Secret) {
	if s.Type == "" {
		s.Type = corev1.SecretTypeOpaque
	}
	if len(s.StringData) > 0 && s.Data == nil {
		s.Data = map[string][]byte{}
	}
	for key, value := range s.StringData {
		s.Data[key] = []byte(value)
	}
	s.StringData = nil
	emptyNotNull(s.Data)
}

func validateSecret(s *corev1.Secret) field.ErrorList {
	var errs field.ErrorList
	data := field.NewPath("data")
	size := 0
	for key, value := range s.Data {
		if messages := rules.CheckDataKey(key); len(messages) > 0 {
			errs = append(errs, rules.Invalid(data.Key(key), key, messages)...)
		}
		size += len(value)
	}
	if size > maxDataSize {
		errs = append(errs, field.TooLong(data, "", maxDataSize))
	}

	has := func(key string) bool { _, ok := s.Data[key]; return ok }
	required := func(key string) { errs = append(errs, field.Required(data.Key(key), "")) }
	wantJSON := func(key string) {
		if !has(key) {
			required(key)
		} else if err := json.Unmarshal(s.Data[key], &map[string]any{}); err != nil {
			errs = append(errs, field.Invalid(data.Key(key), "<secret contents redacted>", err.Error()))
		}
	}
	switch s.Type {
	case corev1.SecretTypeServiceAccountToken:
		if s.Annotations[corev1.ServiceAccountNameKey] == "" {
			errs = append(errs, field.Required(field.NewPath("metadata", "annotations").Key(corev1.ServiceAccountNameKey), ""))
		}
	case corev1.SecretTypeDockercfg:
		wantJSON(corev1.DockerConfigKey)
	case corev1.SecretTypeDockerConfigJson:
		wantJSON(corev1.DockerConfigJsonKey)
	case corev1.SecretTypeBasicAuth:
		if !has(corev1.BasicAuthUsernameKey) && !has(corev1.BasicAuthPasswordKey) {
			required(corev1.BasicAuthUsernameKey)
			required(corev1.BasicAuthPasswordKey)
		}
	case corev1.SecretTypeSSHAuth:
		if len(s.Data[corev1.SSHAuthPrivateKey]) == 0 {
			required(corev1.SSHAuthPrivateKey)
		}
	case corev1.SecretTypeTLS:
		for _, key := range []string{corev1.TLSCertKey, corev1.TLSPrivateKeyKey} {
			if !has(key) {
				required(key)
			}
		}
	}
	return errs
}
