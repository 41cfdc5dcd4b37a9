package core

import (
	"context"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// maxDataSize bounds the size in bytes of the values of a ConfigMap or Secret.
const maxDataSize = 1 << 20

// ConfigMaps defines configmaps.
func ConfigMaps() resource.Definition {
	return resource.Definition{
		Resource:   "configmaps",
		Kind:       "ConfigMap",
		ShortNames: []string{"cm"},
		Namespaced: true,
		Versions:   []resource.Version{configMapVersion()},
		Strategy: resource.Rules[*corev1.ConfigMap]{
			NameOnUpdate: true,
			Validate:     func(_ context.Context, cm *corev1.ConfigMap) field.ErrorList { return validateConfigMap(cm) },
			ValidateUpdate: func(_ context.Context, cm, old *corev1.ConfigMap) field.ErrorList {
				errs := checkImmutable(cm.Immutable, old.Immutable, map[string]bool{
					"data":       !maps.Equal(cm.Data, old.Data),
					"binaryData": !equality.Semantic.DeepEqual(cm.BinaryData, old.BinaryData),
				})
				return append(errs, validateConfigMap(cm)...)
			},
		}.Strategy(),
		Columns: []resource.Column{
			rules.NameColumn(),
			{Name: "Data", Type: "string", Description: corev1.ConfigMap{}.SwaggerDoc()["data"]},
			rules.AgeColumn(),
		},
		Cells: resource.CellsFunc(func(cm *corev1.ConfigMap) []any {
			return []any{cm.Name, int64(len(cm.Data) + len(cm.BinaryData)), resource.Since(cm.CreationTimestamp.Time)}
		}),
	}
}

func configMapVersion() resource.Version {
	v := resource.VersionOf[corev1.ConfigMap, corev1.ConfigMapList]("v1", func(cm *corev1.ConfigMap) { emptyNotNull(cm.BinaryData) })
	v.DefaultsSentOnly = true // protobuf has no null
	return v
}

// emptyNotNull replaces nil values by empty ones: protobuf in storage does not distinguish
// them, and a response should not depend on whether the object was stored.
func emptyNotNull(data map[string][]byte) {
	for key, value := range data {
		if value == nil {
			data[key] = []byte{}
		}
	}
}

func validateConfigMap(cm *corev1.ConfigMap) field.ErrorList {
	var errs field.ErrorList
	size := 0
	invalid := func(name, key string, messages ...string) {
		if len(messages) > 0 {
			errs = append(errs, rules.Invalid(field.NewPath(name).Key(key), key, messages)...)
		}
	}
	for key, value := range cm.Data {
		invalid("data", key, rules.CheckDataKey(key)...)
		if _, both := cm.BinaryData[key]; both {
			invalid("data", key, "duplicate of key present in binaryData")
		}
		size += len(value)
	}
	for key, value := range cm.BinaryData {
		invalid("binaryData", key, rules.CheckDataKey(key)...)
		size += len(value)
	}
	if size > maxDataSize {
		errs = append(errs, field.TooLong(field.NewPath(""), "", maxDataSize))
	}
	return errs
}
