package rest

import (
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/resource"
)

// quickMeta is the metadata of an object as its validation sees it: without the labels and
// annotations that simple loops find valid. apimachinery runs two regular expressions for
// each, 2% of the CPU of creating a pod.
type quickMeta struct{ resource.Object }

// GetManagedFields implements metav1.Object.
func (m quickMeta) GetManagedFields() []metav1.ManagedFieldsEntry {
	return resource.ManagedFields(m.Object)
}

// GetLabels implements metav1.Object.
func (m quickMeta) GetLabels() map[string]string {
	labels := m.Object.GetLabels()
	for key, value := range labels {
		if !isLabelKey(key) || value != "" && !isLabelText(value) {
			return labels
		}
	}
	return nil
}

// GetAnnotations implements metav1.Object.
func (m quickMeta) GetAnnotations() map[string]string {
	annotations := m.Object.GetAnnotations()
	size := 0
	for key, value := range annotations {
		if size += len(key) + len(value); size > apivalidation.TotalAnnotationSizeLimitB || !isLabelKey(key) {
			return annotations
		}
	}
	return nil
}

// isQuickChange reports whether a change of metadata is one that simple comparisons find
// valid. apimachinery makes them by reflection, 2% of the CPU of an update.
func isQuickChange(obj quickMeta, old resource.Object, path *field.Path) bool {
	created, was := obj.GetCreationTimestamp(), old.GetCreationTimestamp()
	if obj.GetName() != old.GetName() || obj.GetNamespace() != old.GetNamespace() || obj.GetUID() != old.GetUID() || !created.Equal(&was) ||
		obj.GetResourceVersion() == "" || obj.GetGeneration() < max(0, old.GetGeneration()) ||
		obj.GetDeletionTimestamp() != nil || old.GetDeletionTimestamp() != nil ||
		obj.GetDeletionGracePeriodSeconds() != nil || old.GetDeletionGracePeriodSeconds() != nil ||
		obj.GetLabels() != nil || obj.GetAnnotations() != nil {
		return false
	}
	for _, e := range obj.GetManagedFields() {
		if e.Operation != metav1.ManagedFieldsOperationApply && e.Operation != metav1.ManagedFieldsOperationUpdate || e.FieldsType != "FieldsV1" ||
			len(e.Manager) > metavalidation.FieldManagerMaxLength || !isPrintable(e.Manager) || len(e.Subresource) > metavalidation.MaxSubresourceNameLength {
			return false
		}
	}
	refs := obj.GetOwnerReferences()
	return len(refs) == 0 || len(apivalidation.ValidateOwnerReferences(refs, path)) == 0
}

// isPrintable reports whether a text consists of printable characters of ASCII.
func isPrintable(text string) bool {
	for i := range len(text) {
		if text[i] < ' ' || text[i] > '~' {
			return false
		}
	}
	return true
}

// validateSubdomain is apivalidation.NameIsDNSSubdomain with less work.
func validateSubdomain(name string, prefix bool) []string {
	if isSubdomain(name) {
		return nil
	}
	return apivalidation.NameIsDNSSubdomain(name, prefix)
}

// isLabelKey reports whether a text is valid as the key of a label: a name of up to 63
// characters, and before it a DNS subdomain and a slash, or not.
func isLabelKey(key string) bool {
	for i := range len(key) {
		if key[i] == '/' {
			return isSubdomain(key[:i]) && isLabelText(key[i+1:])
		}
	}
	return isLabelText(key)
}

// isLabelText reports whether a text is valid as the name in a key, or as a value that is
// not empty.
func isLabelText(text string) bool {
	if len(text) == 0 || len(text) > 63 || !isAlphanumeric(text[0]) || !isAlphanumeric(text[len(text)-1]) {
		return false
	}
	for i := range len(text) {
		if c := text[i]; !isAlphanumeric(c) && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	return true
}

// isSubdomain reports whether a text is a DNS subdomain (RFC 1123) in lower case.
func isSubdomain(text string) bool {
	if len(text) == 0 || len(text) > 253 {
		return false
	}
	before := byte('.')
	for i := range len(text) {
		c := text[i]
		switch {
		case c >= 'a' && c <= 'z' || c >= '0' && c <= '9':
		case c == '-' && before != '.':
		case c == '.' && before != '.' && before != '-':
		default:
			return false
		}
		before = c
	}
	return before != '.' && before != '-'
}

func isAlphanumeric(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c >= 'A' && c <= 'Z'
}
