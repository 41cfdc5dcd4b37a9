package controller

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// agent is who controllers say they are. The owner of fields is named after
	// it, and tools know to leave those of this name alone.
	agent = "kube-controller-manager"

	asJSON     = "application/json"
	asMetadata = asJSON + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	asList     = asJSON + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

	// maxStatus bounds what is read of an answer that is an error.
	maxStatus = 1 << 20
)

// Client is a client of the API that can do what controllers need, over a
// transport that knows who asks. Errors are those of apimachinery.
type Client struct {
	Transport http.RoundTripper
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

// call is a request and what becomes of the answer.
type call struct {
	method, path string
	query        url.Values
	contentType  string
	body         any // encoded as JSON, nil for none
	accept       string
	into         any // decoded from JSON, nil if nobody wants it
}

func (c *Client) do(ctx context.Context, r call) error {
	var body []byte
	if r.body != nil {
		var err error
		if body, err = json.Marshal(r.body); err != nil {
			return err
		}
	}
	target := "http://kelson" + r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.method, target, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", agent)
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
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		answer, err := io.ReadAll(io.LimitReader(resp.Body, maxStatus))
		if err != nil {
			return err
		}
		status := metav1.Status{Code: int32(resp.StatusCode), Message: string(answer)}
		_ = json.Unmarshal(answer, &status)
		return &apierrors.StatusError{ErrStatus: status}
	}
	if r.into == nil {
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	}
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	return json.Unmarshal(answer, r.into)
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

// List reads the objects of a namespace, or of all of them.
func (c *Client) List(ctx context.Context, k *Kind, namespace string, into any) error {
	return c.do(ctx, call{method: http.MethodGet, path: path(k, namespace, ""), into: into})
}

// ListMetadata reads the metadata of the objects of a namespace.
func (c *Client) ListMetadata(ctx context.Context, k *Kind, namespace string) ([]metav1.PartialObjectMetadata, error) {
	var l metav1.PartialObjectMetadataList
	err := c.do(ctx, call{method: http.MethodGet, path: path(k, namespace, ""), accept: asList, into: &l})
	return l.Items, err
}

// ListNamed reads the metadata of the objects of a name in all namespaces.
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
	return c.do(ctx, call{method: http.MethodPost, path: path(k, namespace, ""), body: obj})
}

// Update replaces an object, or with a subresource a part of it. into gets the
// result, unless it is nil.
func (c *Client) Update(ctx context.Context, k *Kind, namespace, name, subresource string, obj, into any) error {
	p := path(k, namespace, name)
	if subresource != "" {
		p += "/" + subresource
	}
	return c.do(ctx, call{method: http.MethodPut, path: p, body: obj, into: into})
}

// Patch changes an object.
func (c *Client) Patch(ctx context.Context, k *Kind, namespace, name string, how types.PatchType, patch any) error {
	return c.do(ctx, call{method: http.MethodPatch, path: path(k, namespace, name), contentType: string(how), body: patch, accept: asMetadata})
}

// Apply applies a configuration with force.
func (c *Client) Apply(ctx context.Context, k *Kind, namespace, name, manager string, config any) error {
	return c.do(ctx, call{
		method: http.MethodPatch, path: path(k, namespace, name), contentType: string(types.ApplyPatchType), body: config,
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
