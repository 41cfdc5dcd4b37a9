package webhook

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// Services that a kubeconfig tells the way to are asked by clients of client-go.

// OnlyErrors is what a client needs to read that sends and gets bytes: the Status
// that says why there are none.
func OnlyErrors() runtime.NegotiatedSerializer {
	types := runtime.NewScheme()
	metav1.AddToGroupVersion(types, schema.GroupVersion{Version: "v1"})
	return serializer.NewCodecFactory(types).WithoutConversion()
}

// MayPass reports whether an error may be gone at the next try.
func MayPass(err error) bool {
	if _, wait := apierrors.SuggestsClientDelay(err); wait {
		return true
	}
	return utilnet.IsConnectionReset(err) || utilnet.IsHTTP2ConnectionLost(err) ||
		apierrors.IsInternalError(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err)
}
