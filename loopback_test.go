package kelson

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/apikeel/kelson/request"
)

func TestLoopback(t *testing.T) {
	ended := make(chan struct{})
	s := &Server{Paths: map[string]http.Handler{
		"/who": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			w.WriteHeader(http.StatusTeapot)
			fmt.Fprintf(w, "%s %s %s", request.From(r.Context()).User.Name, r.Method, body)
		}),
		"/stream": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer close(ended)
			for i := 0; r.Context().Err() == nil; i++ {
				if _, err := fmt.Fprintln(w, i); err != nil {
					return
				}
			}
		}),
		"/empty": http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}),
		"/panic": http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("on purpose") }),
		"/half": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, "half")
			panic(http.ErrAbortHandler)
		}),
	}}
	if err := s.PrepareRun(); err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: s.Loopback(request.User{Name: "system:apiserver", Groups: []string{"system:masters"}})}
	read := func(resp *http.Response, err error) (int, string, error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body), err
	}
	if code, body, err := read(client.Post("http://kelson/who", "text/plain", strings.NewReader("hello"))); code != http.StatusTeapot || body != "system:apiserver POST hello" || err != nil {
		t.Errorf("%d %q %v", code, body, err)
	}
	if code, body, err := read(client.Get("http://kelson/empty")); code != http.StatusOK || body != "" || err != nil {
		t.Errorf("%d %q %v", code, body, err)
	}
	if code, _, err := read(client.Get("http://kelson/panic")); code != http.StatusInternalServerError || err != nil {
		t.Errorf("panic: %d %v", code, err)
	}
	if code, body, err := read(client.Get("http://kelson/half")); code != http.StatusOK || body != "half" || err == nil {
		t.Errorf("half an answer: %d %q %v", code, body, err)
	}

	resp, err := client.Get("http://kelson/stream")
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(resp.Body)
	for i := range 10 {
		if !lines.Scan() || lines.Text() != fmt.Sprint(i) {
			t.Fatalf("line %d: %q, %v", i, lines.Text(), lines.Err())
		}
	}
	resp.Body.Close()
	<-ended

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://kelson/empty", nil)
	if resp, err := client.Do(req); err == nil {
		resp.Body.Close() // answered before the end was seen
	}
}
