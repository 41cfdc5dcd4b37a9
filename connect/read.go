package connect

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// This file serves logs of kubelets.

// maxErrorBody is how many bytes of an error response are read.
const maxErrorBody = 50_000

// Read answers with the text at a location, streaming it as it arrives.
func (c *Connector) Read(w http.ResponseWriter, r *http.Request, to *resource.Location, fail func(error)) {
	req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, to.URL.String(), nil)
	if err != nil {
		fail(fmt.Errorf("failed to construct request for %s, got %w", to.URL, err))
		return
	}
	client := &http.Client{
		Transport:     c.transport(to),
		CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("redirects forbidden") },
	}
	resp, err := client.Do(req)
	if err != nil {
		if strings.Contains(err.Error(), "x509:") {
			c.tlsFailures.Observe(1)
		}
		fail(err)
		return
	}
	defer resp.Body.Close()
	if err := responseError(r, resp); err != nil {
		fail(err)
		return
	}
	if wsstream.IsWebSocketRequest(r) {
		err := wsstream.NewReader(resp.Body, true, wsstream.NewDefaultReaderProtocols()).Copy(w, r)
		if err != nil {
			c.log.V(1).Info("a WebSocket ended", "path", r.URL.Path, "error", err.Error())
		}
		return
	}
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(http.StatusOK)
	control := http.NewResponseController(w)
	_ = control.Flush()
	if !to.Flush {
		_, _ = io.Copy(w, resp.Body)
		return
	}
	_, _ = io.Copy(flushWriter{w, control}, resp.Body)
}

// flushWriter is a writer that flushes every write.
type flushWriter struct {
	w       io.Writer
	control *http.ResponseController
}

func (f flushWriter) Write(b []byte) (int, error) {
	n, err := f.w.Write(b)
	if err == nil {
		err = f.control.Flush()
	}
	return n, err
}

// responseError converts an error response to an API error for the requested resource.
func responseError(r *http.Request, resp *http.Response) error {
	if resp.StatusCode >= http.StatusOK && resp.StatusCode <= http.StatusPartialContent {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	switch resp.StatusCode {
	case http.StatusInternalServerError:
		return apierrors.NewInternalError(errors.New(string(body)))
	case http.StatusBadRequest:
		return apierrors.NewBadRequest(string(body))
	}
	asked := request.From(r.Context())
	what := schema.GroupResource{Group: asked.Group, Resource: asked.Resource + "/" + asked.Subresource}
	return apierrors.NewGenericServerResponse(resp.StatusCode, "", what, asked.Name, string(body), 0, false)
}
