package h2_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/apikeel/kelson/h2"
)

// BenchmarkServer compares this server with that of net/http. Client and server
// share the process, so that the difference between them is what counts.
func BenchmarkServer(b *testing.B) {
	for _, c := range []struct {
		name string
		size int
	}{{"small", 1 << 10}, {"list", 8 << 20}} {
		data := make([]byte, c.size)
		handler := func(w http.ResponseWriter, r *http.Request) {
			for rest := data; len(rest) > 0; {
				n := min(len(rest), 256<<10)
				_, _ = w.Write(rest[:n])
				rest = rest[n:]
			}
		}
		run := func(b *testing.B, ts *httptest.Server) {
			client := ts.Client()
			b.SetBytes(int64(c.size))
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					resp, err := client.Get(ts.URL)
					if err != nil {
						b.Fatal(err)
					}
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			})
		}
		b.Run(c.name+"/h2", func(b *testing.B) {
			s := &h2.Server{MaxStreams: 100, MaxHeaderBytes: 1 << 20, MaxFrame: 256 << 10, StreamWindow: 256 << 10, ConnWindow: 4 << 20}
			run(b, serve(b, s, handler))
		})
		b.Run(c.name+"/net-http", func(b *testing.B) { run(b, serve(b, nil, handler)) })
	}
}
