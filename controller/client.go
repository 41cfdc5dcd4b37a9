package controller

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// agent is the User-Agent and thereby the field manager of controllers. Tools
	// recognize it and leave its fields alone.
	agent = "kube-controller-manager"

	// Accept headers. Protobuf and PartialObjectMetadata are cheaper to decode;
	// JSON is the alternative for aggregated servers that have neither.
	asJSON      = "application/json"
	asProto     = "application/vnd.kubernetes.protobuf"
	asTyped     = asProto + "," + asJSON
	asPartial   = asJSON + partial + "," + asJSON // for watches
	asMetadata  = asProto + partial + "," + asPartial
	asList      = asProto + partialList + "," + asJSON + partialList + "," + asJSON
	partial     = ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	partialList = ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	asDiscovery = asJSON + ";as=APIGroupDiscoveryList;g=apidiscovery.k8s.io;v=v2"

	// maxStatus bounds how many bytes of an error response are read.
	maxStatus = 1 << 20
	// listPage is the page size of lists from aggregated servers.
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

// call is one request, and where its response goes.
type call struct {
	method, path string
	query        url.Values
	contentType  string
	body         any // encoded as JSON, nil for none
	accept       string
	into         any // decoded response; nil if it is not needed
}

// message is an object that has a protobuf decoder.
type message interface {
	runtime.Object
	Unmarshal([]byte) error
}

func (c *Client) do(ctx context.Context, r call) error {
	if _, typed := r.into.(message); typed && r.accept == "" {
		r.accept = asTyped
	}
	answer, err := c.open(ctx, r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if r.into == nil {
		_, err = io.Copy(io.Discard, answer.Body)
		return err
	}
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if m, typed := r.into.(message); typed && strings.HasPrefix(answer.Header.Get("Content-Type"), asProto) {
		return decode(body, m)
	}
	return json.Unmarshal(body, r.into)
}

// decode decodes a protobuf response: the magic prefix and runtime.Unknown around the
// object.
func decode(body []byte, into message) error {
	const magic = "k8s\x00"
	var envelope runtime.Unknown
	if !bytes.HasPrefix(body, []byte(magic)) {
		return errors.New("the answer is not what it says that it is")
	}
	if err := envelope.Unmarshal(body[len(magic):]); err != nil {
		return err
	}
	if err := into.Unmarshal(envelope.Raw); err != nil {
		return err
	}
	into.GetObjectKind().SetGroupVersionKind(schema.FromAPIVersionAndKind(envelope.APIVersion, envelope.Kind))
	return nil
}

// open sends a request and returns the response with its body unread, or the API error.
func (c *Client) open(ctx context.Context, r call) (*http.Response, error) {
	var body []byte
	if r.body != nil {
		var err error
		if body, err = json.Marshal(r.body); err != nil {
			return nil, err
		}
	}
	target := "http://kelson" + r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.method, target, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", cmp.Or(c.Agent, agent))
	if r.accept == "" {
		r.accept = asJSON
	}
	req.Header.Set("Accept", r.accept)
	if body != nil {
		if r.contentType == "" {
			r.contentType = asJSON
		}
		req.Header.Set("Content-Type", r.contentType)
	}
	resp, err := c.Transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxStatus))
	if err != nil {
		return nil, err
	}
	status := metav1.Status{Code: int32(resp.StatusCode), Message: string(answer)}
	_ = json.Unmarshal(answer, &status)
	return nil, &apierrors.StatusError{ErrStatus: status}
}

// Get reads an object.
func (c *Client) Get(ctx context.Context, k *Kind, namespace, name string, into any) error {
	return c.do(ctx, call{method: http.MethodGet, path: path(k, namespace, name), into: into})
}

// Metadata reads the metadata of an object.
func (c *Client) Metadata(ctx context.Context, k *Kind, namespace, name string) (*metav1.PartialObjectMetadata, error) {
	m := &metav1.PartialObjectMetadata{}
	return m, c.do(ctx, call{method: http.MethodGet, path: path(k, namespace, name), accept: asMetadata, into: m})
}

// List reads the objects of a namespace, or of all namespaces for "".
func (c *Client) List(ctx context.Context, k *Kind, namespace string, into any) error {
	return c.do(ctx, call{method: http.MethodGet, path: path(k, namespace, ""), into: into})
}

// ListMetadata reads the metadata of the objects of a namespace.
func (c *Client) ListMetadata(ctx context.Context, k *Kind, namespace string) ([]metav1.PartialObjectMetadata, error) {
	var l metav1.PartialObjectMetadataList
	err := c.do(ctx, call{method: http.MethodGet, path: path(k, namespace, ""), accept: asList, into: &l})
	return l.Items, err
}

// listAll reads the metadata of all objects in pages, and the resourceVersion of the
// list.
func (c *Client) listAll(ctx context.Context, k *Kind) (all []metav1.PartialObjectMetadata, version string, err error) {
	query := url.Values{"limit": {listPage}}
	for {
		var l metav1.PartialObjectMetadataList
		if err := c.do(ctx, call{method: http.MethodGet, path: path(k, "", ""), query: query, accept: asList, into: &l}); err != nil {
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
	answer, err := c.open(ctx, call{
		method: http.MethodGet, path: path(k, "", ""), accept: asPartial,
		query: url.Values{"watch": {"true"}, "allowWatchBookmarks": {"true"}, "resourceVersion": {version}},
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
	err := c.do(ctx, call{
		method: http.MethodGet, path: path(k, "", ""), accept: asList, into: &l,
		query: url.Values{"fieldSelector": {"metadata.name=" + name}},
	})
	return l.Items, err
}

// Create creates an object.
func (c *Client) Create(ctx context.Context, k *Kind, namespace string, obj any) error {
	return c.do(ctx, call{method: http.MethodPost, path: path(k, namespace, ""), body: obj, accept: asMetadata})
}

// Update replaces an object, or a subresource of it. into, unless it is nil, receives
// the response.
func (c *Client) Update(ctx context.Context, k *Kind, namespace, name, subresource string, obj, into any) error {
	p := path(k, namespace, name)
	if subresource != "" {
		p += "/" + subresource
	}
	r := call{method: http.MethodPut, path: p, body: obj, into: into}
	if into == nil {
		r.accept = asMetadata
	}
	return c.do(ctx, r)
}

// Patch changes an object, and returns its metadata.
func (c *Client) Patch(ctx context.Context, k *Kind, namespace, name string, how types.PatchType, patch any) (*metav1.PartialObjectMetadata, error) {
	m := &metav1.PartialObjectMetadata{}
	return m, c.do(ctx, call{method: http.MethodPatch, path: path(k, namespace, name), contentType: string(how), body: patch, accept: asMetadata, into: m})
}

// Apply makes a server-side apply request with force.
func (c *Client) Apply(ctx context.Context, k *Kind, namespace, name, manager string, config any) error {
	return c.do(ctx, call{
		method: http.MethodPatch, path: path(k, namespace, name), contentType: string(types.ApplyPatchType), body: config, accept: asMetadata,
		query: url.Values{"fieldManager": {manager}, "force": {"true"}},
	})
}

// Delete deletes an object.
func (c *Client) Delete(ctx context.Context, k *Kind, namespace, name string, opts *metav1.DeleteOptions) error {
	return c.do(ctx, call{method: http.MethodDelete, path: path(k, namespace, name), body: opts})
}

// DeleteAll deletes all objects of a namespace.
func (c *Client) DeleteAll(ctx context.Context, k *Kind, namespace string, opts *metav1.DeleteOptions) error {
	return c.do(ctx, call{method: http.MethodDelete, path: path(k, namespace, ""), body: opts, accept: asList})
}
