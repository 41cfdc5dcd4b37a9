package webhook

import (
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/apikeel/kelson/trace"
)

// Services are told which trace a call belongs to.
func TestTraceparent(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "from "+r.Header.Get("Traceparent"))
	}))
	defer server.Close()
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	c := &Client{}
	defer c.Close()
	to := &Endpoint{URL: server.URL, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})}
	for _, header := range []string{parent, ""} {
		ctx := t.Context()
		if remote := trace.FromHeader(http.Header{"Traceparent": {header}}); remote != nil {
			ctx = trace.With(ctx, trace.Passed(*remote))
		}
		if answer, err := c.Post(ctx, to, []byte("{}"), nil); err != nil || string(answer) != "from "+header {
			t.Errorf("%q, %v; want %q", answer, err, header)
		}
	}
}
