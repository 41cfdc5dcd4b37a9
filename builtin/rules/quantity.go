package rules

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// IsHugePages reports whether a resource is huge pages of some size.
func IsHugePages(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

// IsNativeResource reports whether a resource belongs to Kubernetes: its name
// has no domain or the domain kubernetes.io.
func IsNativeResource(name corev1.ResourceName) bool {
	return !strings.Contains(string(name), "/") || strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix)
}

// IsExtendedResource reports whether a resource belongs to a device plugin: its
// name has a domain other than kubernetes.io and can be used in quotas.
func IsExtendedResource(name corev1.ResourceName) bool {
	const quota = corev1.DefaultResourceRequestsPrefix
	return !IsNativeResource(name) && !strings.HasPrefix(string(name), quota) && len(validation.IsQualifiedName(quota+string(name))) == 0
}

// IsNodeAllocatable reports whether devices can provide or need a resource that the
// kubelet allocates to pods.
func IsNodeAllocatable(name corev1.ResourceName) bool {
	return name == corev1.ResourceCPU || name == corev1.ResourceMemory || IsHugePages(name)
}

// CanOvercommit reports whether the request of a resource may be lower than its
// limit.
func CanOvercommit(name corev1.ResourceName) bool {
	return IsNativeResource(name) && !IsHugePages(name)
}

// IsStandardResource reports whether a name without a domain is one of the
// resources of containers and quotas.
func IsStandardResource(name corev1.ResourceName) bool {
	switch name {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourceStorage,
		corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory, corev1.ResourceRequestsEphemeralStorage, corev1.ResourceRequestsStorage,
		corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory, corev1.ResourceLimitsEphemeralStorage:
		return true
	}
	return isCount(name) || IsHugePages(name) || strings.HasPrefix(string(name), corev1.ResourceRequestsHugePagesPrefix)
}

// isCount reports whether a resource of quotas counts objects.
func isCount(name corev1.ResourceName) bool {
	switch name {
	case corev1.ResourcePods, corev1.ResourceQuotas, corev1.ResourceServices, corev1.ResourceReplicationControllers,
		corev1.ResourceSecrets, corev1.ResourceConfigMaps, corev1.ResourcePersistentVolumeClaims,
		corev1.ResourceServicesNodePorts, corev1.ResourceServicesLoadBalancers:
		return true
	}
	return false
}

// IsWholePages reports whether a quantity of huge pages is a multiple of the page
// size that the resource name has.
func IsWholePages(name corev1.ResourceName, quantity resource.Quantity) bool {
	size, err := resource.ParseQuantity(strings.TrimPrefix(string(name), corev1.ResourceHugePagesPrefix))
	return err == nil && size.Sign() > 0 && size.MilliValue()%1000 == 0 && quantity.Value()%size.Value() == 0
}

// CheckResourceName reports a name that no resource can have, and returns whether
// the name is valid.
func CheckResourceName(e *Errors, name corev1.ResourceName, p *field.Path) bool {
	if !isPlainKey(string(name)) {
		if messages := validation.IsQualifiedName(string(name)); len(messages) > 0 {
			e.InvalidEach(p, name, messages)
			return false
		}
	}
	if !strings.Contains(string(name), "/") && !IsStandardResource(name) {
		e.Invalid(p, name, "must be a standard resource type or fully qualified")
		return false
	}
	return true
}

// CheckContainerResourceName reports a name that is not a resource of containers.
func CheckContainerResourceName(e *Errors, name corev1.ResourceName, p *field.Path) {
	CheckResourceName(e, name, p)
	switch {
	case !strings.Contains(string(name), "/"):
		if name != corev1.ResourceCPU && name != corev1.ResourceMemory && name != corev1.ResourceEphemeralStorage && !IsHugePages(name) {
			e.Invalid(p, name, "must be a standard resource for containers")
		}
	case !IsNativeResource(name) && !IsExtendedResource(name):
		e.Invalid(p, name, "doesn't follow extended resource name standard")
	}
}

// ValidateContainerResourceName is CheckContainerResourceName for callers that
// want the errors as a list.
func ValidateContainerResourceName(name corev1.ResourceName, p *field.Path) field.ErrorList {
	var e Errors
	CheckContainerResourceName(&e, name, p)
	return field.ErrorList(e)
}

// CheckQuantity reports a negative quantity, and a fraction of a resource that
// exists only in whole units.
func CheckQuantity(e *Errors, name corev1.ResourceName, quantity resource.Quantity, p *field.Path) {
	if quantity.Sign() < 0 {
		e.Invalid(p, quantity.String(), "must be greater than or equal to 0")
	}
	if (isCount(name) || IsExtendedResource(name)) && quantity.MilliValue()%1000 != 0 {
		e.Invalid(p, quantity, "must be an integer")
	}
}

// SortedResourceNames returns the names of a list in alphabetical order, so that
// errors of the same object always have the same order.
func SortedResourceNames(list corev1.ResourceList) []corev1.ResourceName {
	names := make([]corev1.ResourceName, 0, len(list))
	for name := range list {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
