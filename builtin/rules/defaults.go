package rules

import corev1 "k8s.io/api/core/v1"

// Default sets a field that has the zero value of its type.
func Default[T comparable](p *T, value T) {
	var zero T
	if *p == zero {
		*p = value
	}
}

// DefaultPointer sets an optional field that is nil.
func DefaultPointer[T any](p **T, value T) {
	if *p == nil {
		*p = new(value)
	}
}

// RoundUp rounds the quantities of a list up to thousandths, the smallest
// fraction that the API has.
func RoundUp(list corev1.ResourceList) {
	for name, quantity := range list {
		quantity.RoundUp(-3)
		list[name] = quantity
	}
}
