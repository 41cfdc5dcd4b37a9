package network

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// earlyTries is how often each exchange is tried with each client: what goes
// wrong depends on how far the body has come.
const earlyTries = 2

// exchange is a request with a body whose answer does not depend on the body, or
// not on all of it.
type exchange struct {
	name   string
	status int // of the answer

	Path, Token, ContentType string
	BodyFile                 string
	Chunked                  bool // the length of the body is not told
	Expect                   bool // 100-continue
}

// answer is what a client got.
type answer struct {
	Status int
	Body   string
	Error  string
}

// texts are answers without a Status, by their code.
var texts = map[int]string{
	http.StatusNotFound:        "404 page not found\n",
	http.StatusTooManyRequests: "Too many requests, please try again later.\n",
}

// wrong says what is wrong with the answer to an exchange, "" if nothing is.
func (e *exchange) wrong(a answer) string {
	if a.Error != "" || a.Status != e.status {
		return fmt.Sprintf("got %d and error %q, want %d; body %q", a.Status, a.Error, e.status, a.Body)
	}
	if text, ok := texts[e.status]; ok {
		if a.Body != text {
			return fmt.Sprintf("got body %q, want %q", a.Body, text)
		}
		return ""
	}
	var object struct {
		Kind string
		Code int
	}
	switch err := json.Unmarshal([]byte(a.Body), &object); {
	case err != nil:
		return fmt.Sprintf("got body %q: %v", a.Body, err)
	case e.status < 300 && object.Kind != "ConfigMap" || e.status >= 300 && (object.Kind != "Status" || object.Code != e.status):
		return fmt.Sprintf("got body %q, want a Status with code %d", a.Body, e.status)
	}
	return ""
}

// isEarly reports whether the answer may come before the body has.
func (e *exchange) isEarly() bool {
	return e.status != http.StatusCreated && e.status != http.StatusBadRequest && e.status != http.StatusUnprocessableEntity
}

const collection = "/api/v1/namespaces/default/configmaps"

// exchanges are all kinds of answers with all kinds of bodies.
func exchanges(t *testing.T, c *cluster, crowd string) (all []exchange) {
	t.Helper()
	nobody := c.Token("nobody").BearerToken
	// A body is padded with blanks, which are part of JSON.
	body := func(kind string, size int) string {
		text := map[string]string{
			"object":  `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"generateName":"a-"}`,
			"invalid": `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"Not_A_Name"}`,
			"broken":  `{"kind":"ConfigMap","apiVersion":"v1","metadata":`,
		}[kind]
		content := bytes.Repeat([]byte(" "), max(size, len(text)+1))
		copy(content, text)
		content[len(content)-1] = '}'
		return c.file(t, fmt.Sprintf("body-%s-%d", kind, size), content[:min(size, len(content))])
	}
	const kb, mb = 1 << 10, 1 << 20
	every := []int{0, kb, 64 * kb, 2 * mb, 5 * mb}
	for _, kind := range []struct {
		status                         int
		path, token, contentType, body string
		sizes                          []int
	}{
		{201, collection, c.admin, "application/json", "object", []int{kb, 64 * kb, 2 * mb}},
		{400, collection, c.admin, "application/json", "broken", []int{kb, 64 * kb, 2 * mb}},
		{401, collection, "wrong", "application/json", "object", every},
		{403, collection, nobody, "application/json", "object", every},
		{404, "/nowhere", c.admin, "application/json", "object", every},
		{405, collection + "/name", c.admin, "application/json", "object", every},
		{413, collection, c.admin, "application/json", "object", []int{5 * mb}},
		{415, collection, c.admin, "text/plain", "object", every[1:]},
		{422, collection, c.admin, "application/json", "invalid", []int{kb, 64 * kb, 2 * mb}},
		{429, collection, crowd, "application/json", "object", every},
	} {
		for _, size := range kind.sizes {
			for _, chunked := range []bool{false, true} {
				for _, expect := range []bool{false, true} {
					all = append(all, exchange{
						name:   fmt.Sprintf("%d/%dKB/chunked=%t/expect=%t", kind.status, size/kb, chunked, expect),
						status: kind.status, Path: kind.path, Token: kind.token, ContentType: kind.contentType,
						BodyFile: body(kind.body, size), Chunked: chunked, Expect: expect,
					})
				}
			}
		}
	}
	return all
}

// TestEarlyAnswersArrive sends bodies of all sizes that the server does not want, or
// not all of: every client gets the status and the whole answer, also when it is
// still sending.
func TestEarlyAnswersArrive(t *testing.T) {
	c := start(t)
	all := exchanges(t, c, limitCrowd(t, c))
	for _, client := range []struct {
		name string
		send func(*testing.T, *cluster, []exchange) []answer
	}{
		{"curl-http2", curl("--http2")},
		{"curl-http1.1", curl("--http1.1")},
		{"node-http2", node("http2")},
		{"node-https", node("https")},
		{"go-http2", goClient(true)},
		{"go-http1.1", goClient(false)},
	} {
		t.Run(client.name, func(t *testing.T) {
			failed := map[string]int{}
			last := map[string]string{}
			for range earlyTries {
				answers := client.send(t, c, all)
				if len(answers) != len(all) {
					t.Fatalf("got %d answers, want %d", len(answers), len(all))
				}
				for i, e := range all {
					if wrong := e.wrong(answers[i]); wrong != "" {
						failed[e.name]++
						last[e.name] = wrong
					}
				}
			}
			for _, e := range all {
				if n := failed[e.name]; n > 0 {
					t.Errorf("%s: %d of %d tries failed; %s", e.name, n, earlyTries, last[e.name])
				}
			}
		})
	}
}

// curl sends all exchanges with one process, one after the other.
func curl(version string) func(*testing.T, *cluster, []exchange) []answer {
	return func(t *testing.T, c *cluster, all []exchange) []answer {
		path := program(t, "curl")
		var config strings.Builder
		for i, e := range all {
			body, url := `data-binary = "@`+e.BodyFile+`"`, c.url+e.Path
			expect := ""
			if e.Expect {
				expect = " 100-continue"
			}
			if e.Chunked {
				// A pipe has no length. An upload is a PUT unless it is said otherwise.
				body = `upload-file = "` + pipe(t, c, e.BodyFile, i) + `"`
			}
			if i > 0 {
				config.WriteString("next\n")
			}
			fmt.Fprintf(&config, "silent\nshow-error\nhttp%s\ncacert = %q\nrequest = POST\nurl = %q\n%s\nheader = \"Content-Type: %s\"\nheader = \"Authorization: Bearer %s\"\nheader = \"Expect:%s\"\nmax-time = 20\nexpect100-timeout = 15\noutput = %q\nwrite-out = \"%%{http_code} %%{errormsg}\\n\"\n",
				strings.TrimPrefix(version, "--http"), c.caFile, url, body, e.ContentType, e.Token, expect, filepath.Join(c.dir, "answer-"+strconv.Itoa(i)))
			_ = os.Remove(filepath.Join(c.dir, "answer-"+strconv.Itoa(i)))
		}
		out, _ := run(t, nil, path, "--config", c.file(t, "curl.conf", []byte(config.String())))
		var answers []answer
		for i, line := range strings.Split(strings.TrimRight(out, "\n"), "\n") {
			code, message, _ := strings.Cut(line, " ")
			status, _ := strconv.Atoi(code)
			body, _ := os.ReadFile(filepath.Join(c.dir, "answer-"+strconv.Itoa(i)))
			answers = append(answers, answer{status, string(body), message})
		}
		return answers
	}
}

// node sends all exchanges with one process, several at a time.
func node(module string) func(*testing.T, *cluster, []exchange) []answer {
	return func(t *testing.T, c *cluster, all []exchange) []answer {
		path := program(t, "node")
		jobs, err := json.Marshal(all)
		if err != nil {
			t.Fatal(err)
		}
		out, err := run(t, jobs, path, "testdata/early.cjs", module, c.url, c.caFile)
		if err != nil {
			t.Errorf("node: %v", err)
		}
		var answers []answer
		if err := json.Unmarshal([]byte(out), &answers); err != nil {
			t.Fatalf("node printed %q: %v", out, err)
		}
		return answers
	}
}

// goClient sends all exchanges with Go's client, several at a time.
func goClient(http2 bool) func(*testing.T, *cluster, []exchange) []answer {
	return func(t *testing.T, c *cluster, all []exchange) []answer {
		shared := &http.Client{Transport: c.transport(t, http2), Timeout: patience}
		answers := make([]answer, len(all))
		slots := make(chan struct{}, 4)
		var wg sync.WaitGroup
		for i, e := range all {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				a, client := &answers[i], shared
				if e.status == http.StatusUnauthorized { // which ends the connection
					client = &http.Client{Transport: c.transport(t, http2), Timeout: patience}
				}
				var err error
				if a.Status, a.Body, err = send(client, c.url, &e); err != nil {
					a.Error = err.Error()
				}
			})
		}
		wg.Wait()
		return answers
	}
}

func send(client *http.Client, url string, e *exchange) (status int, body string, err error) {
	content, err := os.ReadFile(e.BodyFile)
	if err != nil {
		return 0, "", err
	}
	var reader io.Reader = bytes.NewReader(content)
	if e.Chunked {
		reader = io.MultiReader(reader) // which nobody knows the length of
	}
	req, err := http.NewRequest(http.MethodPost, url+e.Path, reader)
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Content-Type", e.ContentType)
	req.Header.Set("Authorization", "Bearer "+e.Token)
	if e.Expect {
		req.Header.Set("Expect", "100-continue")
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

// pipe returns the path of a named pipe from which a file can be read once, for
// programs that would tell the length of a file.
func pipe(t *testing.T, c *cluster, file string, i int) string {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(c.dir, "pipe-"+strconv.Itoa(i))
	_ = os.Remove(path)
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if w, err := os.OpenFile(path, os.O_WRONLY, 0); err == nil { // waits for a reader
			_, _ = w.Write(content) // as far as it is read
			_ = w.Close()
		}
	}()
	t.Cleanup(func() {
		// A reader that goes at once, if there was none.
		if r, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0); err == nil {
			defer r.Close()
		}
		<-done
	})
	return path
}
