package network

import (
	"bufio"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/kelsontest"
)

// TestNode has Node's http2 client do what browsers and gRPC libraries do and Go's
// client does not. testdata/session.cjs has a function for each.
func TestNode(t *testing.T) {
	path := program(t, "node")
	// As in production, a token that is known is not looked up for every request: a
	// request that is cancelled during that is one of a stranger, who is sent away.
	c := start(t, kelsontest.Configure(func(config *controlplane.Config) { config.Authentication.TokenSuccessTTL = patience }))
	for _, scenario := range []string{"concurrentGets", "pausedWatch", "abortedUploads", "pings", "changedSettings"} {
		t.Run(scenario, func(t *testing.T) {
			out, err := run(t, nil, path, "testdata/session.cjs", scenario, c.url, c.caFile, c.admin)
			if err != nil || out != "ok\n" {
				t.Errorf("got %q and %v, want ok", out, err)
			}
		})
	}
}

// TestNodeAtShutdown stops a server that Node has requests with: it hears GOAWAY,
// what it has asked for is answered, its watch ends, and so does the connection.
func TestNodeAtShutdown(t *testing.T) {
	path := program(t, "node")
	c := start(t)
	release := make(chan struct{})
	held := c.On(kelsontest.Rule{Verb: "get", Resource: "namespaces"}, kelsontest.Hold(release))
	cmd := exec.CommandContext(t.Context(), path, "testdata/session.cjs", "shutdown", c.url, c.caFile, c.admin)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var complaints strings.Builder
	cmd.Stderr = &complaints
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	want := func(text string) {
		t.Helper()
		if line, err := lines.ReadString('\n'); line != text+"\n" {
			t.Fatalf("got %q and %v, want %q; %s", line, err, text, complaints.String())
		}
	}
	want("watching")
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); held.Hits() == 0; <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("the request that is held has not come")
		}
	}
	stopped := make(chan error, 1)
	go func() { stopped <- c.Close() }()
	want("goaway 0")
	close(release)
	want("answer 200")
	want("watch ended")
	want("closed")
	if rest, _ := io.ReadAll(lines); len(rest) > 0 {
		t.Errorf("got %q at the end, want nothing", rest)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("node: %v: %s", err, complaints.String())
	}
	if err := <-stopped; err != nil {
		t.Errorf("stop: %v", err)
	}
}
