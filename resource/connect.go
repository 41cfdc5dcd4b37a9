package resource

import (
	"context"
	"net/http"
	"net/url"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
)

// Connect makes a subresource a connection to something behind the server: to
// a kubelet, to a pod, to an endpoint of a service. What the client sends goes
// there, and what comes back is the answer.
type Connect struct {
	// Methods of HTTP with which it is opened. Who may open it is asked for the
	// verbs that they stand for: GET is get, POST is create.
	Methods []string
	// Verb, if set, is what a client has to be allowed whatever the method:
	// WebSockets are opened with GET, and to run something is not to read.
	Verb string
	// Options returns an empty value for the options that the query has.
	Options func() runtime.Object
	// Path: the path of the request may go on behind the subresource. The rest
	// of it is the option of the name path.
	Path bool
	// Text: the server itself reads what is there, and answers with it as plain
	// text.
	Text bool
	// Locate says where the connection goes. Without a location the answer is
	// that there is nothing.
	Locate func(ctx context.Context, target Target, options runtime.Object) (*Location, error)
}

// Location is where a connection goes, and what to expect there.
type Location struct {
	URL *url.URL
	// Kubelet: the server proves who it is, and wants the same from the other
	// side unless that is Unverified. Otherwise neither side proves anything.
	Kubelet    bool
	Unverified bool
	// Routable: only a global unicast address may be connected to. It is checked when
	// the connection is made, since a name may resolve to another address by then.
	Routable bool
	// Upgrade: the connection has to change to another protocol.
	Upgrade bool
	// Flush: every piece is passed on at once, as the next may be long in
	// coming.
	Flush bool
	// Translate is for another side that may not know the forms of WebSocket
	// that clients have today.
	Translate Translation
}

// Translation is what becomes of a WebSocket on its way.
type Translation uint8

// Translations.
const (
	// NoTranslation: it is passed on as it is.
	NoTranslation Translation = iota
	// ToStreams: what comes in its channels goes on in streams of SPDY, if the
	// channels can be closed one by one.
	ToStreams
	// ToTunnel: the SPDY that it carries is taken out.
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
