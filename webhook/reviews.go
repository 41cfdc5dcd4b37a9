package webhook

import (
	"io"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

// ReviewClient returns a client for a webhook that answers reviews
// (SubjectAccessReview, TokenReview), described by a kubeconfig. The caller encodes the
// reviews and limits their rate; an answer has at most MaxAnswer bytes.
func ReviewClient(config *rest.Config) (*rest.RESTClient, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1
	config.ContentType = runtime.ContentTypeJSON
	config.NegotiatedSerializer = OnlyErrors()
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return boundedTransport{next} })
	return rest.UnversionedRESTClientFor(config)
}

// OnlyErrors returns the serializer for a client that sends and receives bytes: it
// decodes only the Status of an error.
func OnlyErrors() runtime.NegotiatedSerializer {
	types := runtime.NewScheme()
	metav1.AddToGroupVersion(types, schema.GroupVersion{Version: "v1"})
	return serializer.NewCodecFactory(types).WithoutConversion()
}

// boundedTransport is a round tripper that limits the size of answers.
type boundedTransport struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b boundedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.next.RoundTrip(r)
	if err == nil {
		resp.Body = &boundedBody{resp.Body, MaxAnswer}
	}
	return resp, err
}

type boundedBody struct {
	io.ReadCloser
	left int // bytes left; negative if the answer was too large
}

func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left+1)])
	if b.left -= n; b.left < 0 {
		b.left = 0
		return 0, ErrTooLarge
	}
	return n, err
}

// MayPass reports whether an error is temporary, so that a retry makes sense.
func MayPass(err error) bool {
	if _, wait := apierrors.SuggestsClientDelay(err); wait {
		return true
	}
	return utilnet.IsConnectionReset(err) || utilnet.IsHTTP2ConnectionLost(err) ||
		apierrors.IsInternalError(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err)
}
