package webhook

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/client-go/rest"
)

// TestReviewClient: an answer may have MaxAnswer bytes, and not one more.
func TestReviewClient(t *testing.T) {
	size := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(make([]byte, size))
	}))
	defer server.Close()
	client, err := ReviewClient(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	for _, size = range []int{0, 10, MaxAnswer, MaxAnswer + 1} {
		answer, err := client.Post().Body([]byte("{}")).Do(t.Context()).Raw()
		if large := size > MaxAnswer; large != errors.Is(err, ErrTooLarge) || !large && len(answer) != size {
			t.Errorf("of %d bytes: %d, %v", size, len(answer), err)
		}
	}
}
