// Package loopback is the client with which parts of a server use its API: the
// controllers, the aggregator, custom resource definitions. Start at Client.
//
// It knows paths and bodies, not kinds, and goes through a transport that never
// leaves the process. So it has neither hosts nor retries, except for conflicts.
package loopback

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
)

// Media types of bodies.
const (
	JSON     = "application/json"
	Protobuf = "application/vnd.kubernetes.protobuf"
)

const (
	// maxStatus is how many bytes of an error response are read.
	maxStatus = 1 << 20
	// maxConflicts is how often Update is tried after a conflict.
	maxConflicts = 10
)

// Client sends requests to the server that it is part of.
type Client struct {
	// Transport carries requests to the server, as the user that it stands for.
	Transport http.RoundTripper
	// Agent is the User-Agent, from which the field manager is derived.
	Agent string
}

// Call is a request, and how its response is decoded.
type Call struct {
	Method, Path string
	Query        url.Values
	// ContentType is the media type of Body; empty is JSON.
	ContentType string
	// Body is encoded as JSON; nil is none.
	Body any
	// Accept is the Accept header. Empty is JSON, or protobuf if Into can be decoded
	// from it.
	Accept string
	// Into is what the response is decoded into; nil drops it.
	Into any
}

// message is an object that can be decoded from protobuf.
type message interface {
	runtime.Object
	Unmarshal([]byte) error
}

// Do sends a request and decodes the response. The error is an apierrors.StatusError if
// the server refused the request.
func (c *Client) Do(ctx context.Context, r Call) error {
	if _, typed := r.Into.(message); typed && r.Accept == "" {
		r.Accept = Protobuf + "," + JSON // not every aggregated server has protobuf
	}
	answer, err := c.Open(ctx, r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if r.Into == nil {
		_, err = io.Copy(io.Discard, answer.Body)
		return err
	}
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if m, typed := r.Into.(message); typed && strings.HasPrefix(answer.Header.Get("Content-Type"), Protobuf) {
		return decode(body, m)
	}
	return json.Unmarshal(body, r.Into)
}

// decode decodes an object in the protobuf envelope of Kubernetes.
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

// Open sends a request and returns the response to be read, or its error.
func (c *Client) Open(ctx context.Context, r Call) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = json.Marshal(r.Body); err != nil {
			return nil, err
		}
	}
	target := "http://kelson" + r.Path
	if len(r.Query) > 0 {
		target += "?" + r.Query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.Method, target, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", c.Agent)
	if r.Accept == "" {
		r.Accept = JSON
	}
	req.Header.Set("Accept", r.Accept)
	if body != nil {
		if r.ContentType == "" {
			r.ContentType = JSON
		}
		req.Header.Set("Content-Type", r.ContentType)
	}
	resp, err := c.Transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode < http.StatusMultipleChoices {
		return resp, nil
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxStatus))
	if err != nil {
		return nil, err
	}
	return nil, &apierrors.StatusError{ErrStatus: statusOf(resp, answer)}
}

// statusOf returns the Status in the body of an error response, which is in protobuf if
// the request accepts that. A body without one is the message.
func statusOf(resp *http.Response, body []byte) metav1.Status {
	var status metav1.Status
	var err error
	if strings.HasPrefix(resp.Header.Get("Content-Type"), Protobuf) {
		err = decode(body, &status)
	} else {
		err = json.Unmarshal(body, &status)
	}
	if err != nil {
		status = metav1.Status{Message: string(body)}
	}
	status.Code = cmp.Or(status.Code, int32(resp.StatusCode))
	return status
}

// Update reads the object at a path, calls change, and writes the object to the path
// with a suffix such as "/status"; after a conflict it tries again. It writes nothing if
// change leaves the object as it is; an error of change ends it.
func Update[T any](ctx context.Context, c *Client, path, suffix string, change func(*T) error) error {
	var err error
	for range maxConflicts {
		var obj T
		if err = c.Do(ctx, Call{Method: http.MethodGet, Path: path, Accept: JSON, Into: &obj}); err != nil {
			return err
		}
		before, merr := json.Marshal(&obj)
		if merr != nil {
			return merr
		}
		if err = change(&obj); err != nil {
			return err
		}
		after, merr := json.Marshal(&obj)
		if merr != nil {
			return merr
		}
		if bytes.Equal(before, after) {
			return nil
		}
		if err = c.Do(ctx, Call{Method: http.MethodPut, Path: path + suffix, Body: json.RawMessage(after)}); !apierrors.IsConflict(err) {
			return err
		}
	}
	return err
}
