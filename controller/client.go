package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/apikeel/kelson/internal/loopback"
)

const (
	// agent is the User-Agent and thereby the field manager of controllers. Tools
	// recognize it and leave its fields alone.
	agent = "kube-controller-manager"

	// Protobuf is quicker than JSON, and part of an object than all of it, but not
	// every server behind this one has them.
	asJSON      = loopback.JSON
	asProto     = loopback.Protobuf
	asPartial   = asJSON + partial + "," + asJSON // for watches
	asMetadata  = asProto + partial + "," + asPartial
	asList      = asProto + partialList + "," + asJSON + partialList + "," + asJSON
	partial     = ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	partialList = ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	asDiscovery = asJSON + ";as=APIGroupDiscoveryList;g=apidiscovery.k8s.io;v=v2"

	// listPage is how many objects of other servers are read at a time.
	listPage = "500"
)

// Client is an API client with the requests that controllers need. Transport
// authenticates them. Errors are those of apimachinery.
type Client struct {
	Transport http.RoundTripper
	// Agent is the User-Agent; "" is kube-controller-manager.
	Agent string
}

func path(k *Kind, namespace, name string) string {
	p := "/apis/" + k.Group + "/" + k.Version
	if k.Group == "" {
		p = "/api/" + k.Version
	}
	if k.Namespaced && namespace != "" {
		p += "/namespaces/" + namespace
	}
	p += "/" + k.Resource
	if name != "" {
		p += "/" + name
	}
	return p
}

func (c *Client) client() *loopback.Client {
	return &loopback.Client{Transport: c.Transport, Agent: cmp.Or(c.Agent, agent)}
}

func (c *Client) do(ctx context.Context, r loopback.Call) error { return c.client().Do(ctx, r) }

// Get reads an object.
func (c *Client) Get(ctx context.Context, k *Kind, namespace, name string, into any) error {
	return c.do(ctx, loopback.Call{Method: http.MethodGet, Path: path(k, namespace, name), Into: into})
}

// Metadata reads the metadata of an object.
func (c *Client) Metadata(ctx context.Context, k *Kind, namespace, name string) (*metav1.PartialObjectMetadata, error) {
	m := &metav1.PartialObjectMetadata{}
	return m, c.do(ctx, loopback.Call{Method: http.MethodGet, Path: path(k, namespace, name), Accept: asMetadata, Into: m})
}

// List reads the objects of a namespace, or of all namespaces for "".
func (c *Client) List(ctx context.Context, k *Kind, namespace string, into any) error {
	return c.do(ctx, loopback.Call{Method: http.MethodGet, Path: path(k, namespace, ""), Into: into})
}

// ListMetadata reads the metadata of the objects of a namespace.
func (c *Client) ListMetadata(ctx context.Context, k *Kind, namespace string) ([]metav1.PartialObjectMetadata, error) {
	var l metav1.PartialObjectMetadataList
	err := c.do(ctx, loopback.Call{Method: http.MethodGet, Path: path(k, namespace, ""), Accept: asList, Into: &l})
	return l.Items, err
}

// listAll reads the metadata of all objects in pages, and the resourceVersion of the
// list.
func (c *Client) listAll(ctx context.Context, k *Kind) (all []metav1.PartialObjectMetadata, version string, err error) {
	query := url.Values{"limit": {listPage}}
	for {
		var l metav1.PartialObjectMetadataList
		if err := c.do(ctx, loopback.Call{Method: http.MethodGet, Path: path(k, "", ""), Query: query, Accept: asList, Into: &l}); err != nil {
			return nil, "", err
		}
		all = append(all, l.Items...)
		if l.Continue == "" {
			return all, l.ResourceVersion, nil
		}
		query.Set("continue", l.Continue)
	}
}

// watch calls see for each event after a resourceVersion. When the server ends the
// watch, it returns the resourceVersion from which to resume.
func (c *Client) watch(ctx context.Context, k *Kind, version string, see func(event string, m *metav1.PartialObjectMetadata)) (string, error) {
	answer, err := c.client().Open(ctx, loopback.Call{
		Method: http.MethodGet, Path: path(k, "", ""), Accept: asPartial,
		Query: url.Values{"watch": {"true"}, "allowWatchBookmarks": {"true"}, "resourceVersion": {version}},
	})
	if err != nil {
		return version, err
	}
	defer answer.Body.Close()
	for events := json.NewDecoder(answer.Body); ; {
		var e struct {
			Type   string
			Object json.RawMessage
		}
		if err := events.Decode(&e); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return version, err
		}
		if e.Type == "ERROR" {
			failed := &apierrors.StatusError{}
			_ = json.Unmarshal(e.Object, &failed.ErrStatus)
			return version, failed
		}
		m := &metav1.PartialObjectMetadata{}
		if err := json.Unmarshal(e.Object, m); err != nil {
			return version, err
		}
		version = m.ResourceVersion
		if e.Type != "BOOKMARK" {
			see(e.Type, m)
		}
	}
}

// ListNamed reads the metadata of the objects with a name in all namespaces.
func (c *Client) ListNamed(ctx context.Context, k *Kind, name string) ([]metav1.PartialObjectMetadata, error) {
	var l metav1.PartialObjectMetadataList
	err := c.do(ctx, loopback.Call{
		Method: http.MethodGet, Path: path(k, "", ""), Accept: asList, Into: &l,
		Query: url.Values{"fieldSelector": {"metadata.name=" + name}},
	})
	return l.Items, err
}

// Create creates an object.
func (c *Client) Create(ctx context.Context, k *Kind, namespace string, obj any) error {
	return c.do(ctx, loopback.Call{Method: http.MethodPost, Path: path(k, namespace, ""), Body: obj, Accept: asMetadata})
}

// Update replaces an object, or a subresource of it. into, unless it is nil, receives
// the response.
func (c *Client) Update(ctx context.Context, k *Kind, namespace, name, subresource string, obj, into any) error {
	p := path(k, namespace, name)
	if subresource != "" {
		p += "/" + subresource
	}
	r := loopback.Call{Method: http.MethodPut, Path: p, Body: obj, Into: into}
	if into == nil {
		r.Accept = asMetadata
	}
	return c.do(ctx, r)
}

// Patch changes an object, and returns its metadata.
func (c *Client) Patch(ctx context.Context, k *Kind, namespace, name string, how types.PatchType, patch any) (*metav1.PartialObjectMetadata, error) {
	m := &metav1.PartialObjectMetadata{}
	return m, c.do(ctx, loopback.Call{Method: http.MethodPatch, Path: path(k, namespace, name), ContentType: string(how), Body: patch, Accept: asMetadata, Into: m})
}

// Apply makes a server-side apply request with force.
func (c *Client) Apply(ctx context.Context, k *Kind, namespace, name, manager string, config any) error {
	return c.do(ctx, loopback.Call{
		Method: http.MethodPatch, Path: path(k, namespace, name), ContentType: string(types.ApplyPatchType), Body: config, Accept: asMetadata,
		Query: url.Values{"fieldManager": {manager}, "force": {"true"}},
	})
}

// Delete deletes an object.
func (c *Client) Delete(ctx context.Context, k *Kind, namespace, name string, opts *metav1.DeleteOptions) error {
	return c.do(ctx, loopback.Call{Method: http.MethodDelete, Path: path(k, namespace, name), Body: opts})
}

// DeleteAll deletes all objects of a namespace.
func (c *Client) DeleteAll(ctx context.Context, k *Kind, namespace string, opts *metav1.DeleteOptions) error {
	return c.do(ctx, loopback.Call{Method: http.MethodDelete, Path: path(k, namespace, ""), Body: opts, Accept: asList})
}
