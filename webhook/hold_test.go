package webhook

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/apikeel/kelson/pki"
)

// TestLargeAnswersHoldMemory checks that memory is asked for before a large answer is read, for as much
// as it may have, and that a refusal is told apart from an error of the webhook.
func TestLargeAnswersHoldMemory(t *testing.T) {
	authority, err := pki.New("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	server := hook(t, authority, "a")
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		size := smallAnswer - 1
		if r.URL.Path != "/small" {
			size = 1 << 20
		}
		if r.URL.Path == "/large" {
			w.Header().Set("Content-Length", strconv.Itoa(size))
		}
		_, _ = io.WriteString(w, strings.Repeat("x", size))
	})
	var c Client
	defer c.Close()
	busy := errors.New("busy")
	for path, want := range map[string]int64{"/small": 0, "/large": 1 << 20, "/chunks": MaxAnswer} {
		var held int64
		to := &Endpoint{URL: server.URL + path, CABundle: authority.CertificatePEM()}
		size := smallAnswer - 1
		if path != "/small" {
			size = 1 << 20
		}
		answer, err := c.Post(t.Context(), to, nil, func(bytes int64) error {
			held += bytes
			return nil
		})
		if err != nil || len(answer) != size || held != want {
			t.Errorf("%s: got %d bytes, %v, and asked for %d, want %d bytes and to ask for %d", path, len(answer), err, held, size, want)
		}
		_, err = c.Post(t.Context(), to, nil, func(int64) error { return busy })
		if refused := (*Refusal)(nil); want > 0 && (!errors.As(err, &refused) || !errors.Is(err, busy)) {
			t.Errorf("%s without memory: got %v", path, err)
		}
	}
}

// TestHolding checks that what an answer holds is given back, once.
func TestHolding(t *testing.T) {
	var held int64
	c := Client{Hold: func(_ context.Context, bytes int64) (func(), error) {
		held += bytes
		return func() { held -= bytes }, nil
	}}
	hold, release := c.Holding(t.Context(), 6)
	if err := hold(100); err != nil || held != 600 {
		t.Errorf("%d bytes are held, %v, want 600", held, err)
	}
	if release(); held != 0 {
		t.Errorf("%d bytes are held afterwards", held)
	}
	_, release = c.Holding(t.Context(), 6)
	release() // nothing was held
	hold, release = new(Client).Holding(t.Context(), 6)
	if err := hold(100); err != nil {
		t.Error(err)
	}
	release()
}
