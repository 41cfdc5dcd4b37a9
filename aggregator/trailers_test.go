package aggregator_test

import (
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
)

// trailing is a body whose trailers are known at its end.
type trailing struct {
	left    int
	trailer http.Header
}

func (b *trailing) Read(p []byte) (int, error) {
	if b.left--; b.left >= 0 {
		return copy(p, "x"), nil
	}
	for name := range b.trailer {
		b.trailer[name] = []string{"late"}
	}
	return 0, io.EOF
}

// TestTrailersOfRequests: requests for what a backend says about itself, which every
// user may ask for, come with a body and trailers while they are passed on, and the
// backend answers before it has read them. All are answered, and under the race
// detector this finds who shares their memory.
func TestTrailersOfRequests(t *testing.T) {
	const requests, workers = 400, 8
	f := newFixture(t)
	f.register("trailers.example.com", f.backend("trailers.example.com", func(http.ResponseWriter, *http.Request) {}))
	f.waitFor("v1.trailers.example.com", "Passed")
	next := make(chan int, requests)
	for i := range requests {
		next <- i
	}
	close(next)
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for i := range next {
				body := &trailing{left: i % 3}
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.config.Host+"/apis/trailers.example.com/v1", body)
				if err != nil {
					t.Error(err)
					return
				}
				req.Header.Set("Impersonate-User", "nobody")
				req.Header.Set("Impersonate-Group", "system:authenticated")
				req.Trailer = http.Header{}
				for n := range 20 {
					req.Trailer[fmt.Sprintf("X-Trailer-%d", n)] = nil
				}
				body.trailer = req.Trailer
				resp, err := f.http.Do(req)
				if err != nil {
					t.Error(err)
					return
				}
				answer, err := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if err != nil || resp.ProtoMajor != 2 || resp.StatusCode != http.StatusOK {
					t.Errorf("got %s %s, %s and %v, want 200 over HTTP/2", resp.Proto, resp.Status, answer, err)
				}
			}
		})
	}
	all.Wait()
}
