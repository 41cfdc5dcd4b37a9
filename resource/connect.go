package resource

import (
	"context"
	"net/http"
	"net/url"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
)

// Connect makes a subresource a proxied connection to a kubelet, a pod or an endpoint
// of a service: pods/exec, pods/log, services/proxy.
type Connect struct {
	// Methods are the HTTP methods that open the connection. Each is authorized as
	// its verb: GET is get, POST is create.
	Methods []string
	// Verb, if set, must be authorized whatever the method. WebSockets are opened
	// with GET, so exec would otherwise need only the verb get.
	Verb string
	// Options returns an empty value to decode the query parameters into.
	Options func() runtime.Object
	// Path allows further path segments after the subresource. They are decoded
	// into the option "path".
	Path bool
	// Text makes the server read the backend's response itself and answer with it
	// as text/plain.
	Text bool
	// Locate returns the backend. A nil Location is answered with 204 No Content.
	Locate func(ctx context.Context, target Target, options runtime.Object) (*Location, error)
}

// Location is the backend of a connection and how to talk to it.
type Location struct {
	URL *url.URL
	// Kubelet authenticates with the kubelet client certificate and verifies the
	// serving certificate of the kubelet, unless Unverified is set. Otherwise no
	// client certificate is sent and none is verified.
	Kubelet    bool
	Unverified bool
	// Routable refuses to connect to an address that is not global unicast. The
	// address is checked when the connection is made, since a host name may resolve
	// to another one by then.
	Routable bool
	// Upgrade requires a protocol upgrade (SPDY or WebSocket).
	Upgrade bool
	// Flush flushes each piece of the response at once, for followed logs.
	Flush bool
	// Translate is used for kubelets that do not speak the WebSocket subprotocols
	// of today's clients.
	Translate Translation
}

// Translation says how a WebSocket connection of a client is forwarded.
type Translation uint8

// Translations.
const (
	// NoTranslation forwards it unchanged.
	NoTranslation Translation = iota
	// ToStreams forwards its channels as SPDY streams, if the subprotocol can close
	// channels one by one (v5.channel.k8s.io).
	ToStreams
	// ToTunnel unwraps the SPDY connection that it tunnels (port-forward).
	ToTunnel
)

// verbs returns the verbs that the methods stand for.
func (c *Connect) verbs() []string {
	var verbs []string
	for _, method := range c.Methods {
		switch method {
		case http.MethodGet:
			verbs = append(verbs, "get")
		case http.MethodPost:
			verbs = append(verbs, "create")
		case http.MethodPut:
			verbs = append(verbs, "update")
		case http.MethodPatch:
			verbs = append(verbs, "patch")
		case http.MethodDelete:
			verbs = append(verbs, "delete")
		}
	}
	slices.Sort(verbs)
	return verbs
}
