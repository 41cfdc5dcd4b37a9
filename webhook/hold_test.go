package webhook

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/pki"
)

// TestLargeAnswersHoldMemory checks that memory is asked for before a large answer is read, for as much
// as it may have, and that a refusal is told apart from an error of the webhook.
func TestLargeAnswersHoldMemory(t *testing.T) {
	authority, err := pki.New("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	sizes := map[string]int{"/small": smallAnswer - 1, "/large": 2 << 20, "/chunks": 1 << 19, "/many": 2 << 20}
	server := hook(t, authority, "a")
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		size := sizes[r.URL.Path]
		if r.URL.Path == "/large" {
			w.Header().Set("Content-Length", strconv.Itoa(size))
		}
		_, _ = io.WriteString(w, strings.Repeat("x", size))
	})
	var c Client
	defer c.Close()
	busy := errors.New("busy")
	for path, want := range map[string]int64{"/small": 0, "/large": 2 << 20, "/chunks": ordinaryAnswer, "/many": ordinaryAnswer + MaxAnswer} {
		var held int64
		to, size := &Endpoint{URL: server.URL + path, CABundle: authority.CertificatePEM()}, sizes[path]
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
		// A webhook is not to blame for time that was spent waiting for memory.
		ctx, cancel := context.WithCancel(t.Context())
		_, err = c.Post(ctx, to, nil, func(int64) error {
			time.AfterFunc(20*time.Millisecond, cancel)
			<-ctx.Done()
			return nil
		})
		cancel()
		if refused := (*Refusal)(nil); want > 0 && !errors.As(err, &refused) {
			t.Errorf("%s, whose time was over while it waited for memory: got %v, want a refusal", path, err)
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
