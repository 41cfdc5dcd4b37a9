//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// herdPatience is how long a herd may take to open its watches, lose them when the server
// is started again, and resume them.
const herdPatience = 2 * time.Minute

// herd is what the clients of the herd scenario share.
type herd struct {
	onOpen  func() // all watches are open
	open    atomic.Int64
	resumed atomic.Int64
	back    chan struct{} // closed when all watches are resumed
	start   sync.Once
	version string // that watches begin at; set by start
}

const herdPath = "/api/v1/configmaps"

// keepWatching watches ConfigMaps until the watch was lost and resumed, and until all
// others have come as far. The administrator writes ConfigMaps, so events come.
func (s *storm) keepWatching(ctx context.Context, c *client) {
	s.herd.start.Do(func() { s.herd.version = s.currentVersion(ctx, c) })
	version, isOpen := s.herd.version, false
	var lost time.Time
	isBack := false
	for ctx.Err() == nil {
		version = s.watchOnce(ctx, c, version, func() {
			switch {
			case !isOpen:
				isOpen = true
				if s.herd.open.Add(1) == int64(s.Clients*s.Streams) {
					s.herd.onOpen()
				}
			case !lost.IsZero() && !isBack:
				isBack = true
				s.crowd.note(complete, "", time.Since(lost))
				if s.herd.resumed.Add(1) == int64(s.Clients*s.Streams) {
					close(s.herd.back)
				}
			}
		})
		if isOpen && lost.IsZero() {
			lost = time.Now()
		}
		_ = wait(ctx, rand.N(retryAfterBreak))
	}
	if !isBack {
		s.crowd.note(broken, "watch not resumed", 0)
	}
}

// currentVersion returns the resourceVersion of now.
func (s *storm) currentVersion(ctx context.Context, c *client) string {
	for ctx.Err() == nil {
		var list struct {
			Metadata struct{ ResourceVersion string }
		}
		text, err := c.call(ctx, http.MethodGet, s.URL+herdPath+"?limit=1", "", nil)
		if err == nil && json.Unmarshal(text, &list) == nil {
			return list.Metadata.ResourceVersion
		}
		s.crowd.note(broken, fmt.Sprintf("no resourceVersion: %v", err), 0)
		_ = wait(ctx, retryAfterBreak)
	}
	return ""
}

// watchOnce opens a watch, calls onEvent for each event, and returns the resourceVersion
// to resume at when it ends.
func (s *storm) watchOnce(ctx context.Context, c *client, version string, onEvent func()) string {
	resp, err := c.do(ctx, http.MethodGet, s.URL+herdPath+"?watch=1&allowWatchBookmarks=true&resourceVersion="+version, "", nil, "Accept", mediaJSON)
	if err != nil {
		return version // the server is being started
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusGone:
		return s.currentVersion(ctx, c)
	default:
		s.refused(ctx, ctx, &s.crowd, resp)
		return version
	}
	lines := bufio.NewReaderSize(&countingReader{resp.Body, &s.crowd}, 16<<10)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return version
		}
		if bytes.HasPrefix(line, []byte(`{"type":"ERROR"`)) {
			s.crowd.note(broken, "event "+string(line[:min(len(line), 150)]), 0)
			return s.currentVersion(ctx, c)
		}
		if v := resourceVersion(line); v != "" {
			version = v
		}
		onEvent()
	}
}

// resourceVersion returns the first resourceVersion in an event.
func resourceVersion(line []byte) string {
	_, after, ok := strings.Cut(string(line), `"resourceVersion":"`)
	if !ok {
		return ""
	}
	version, _, _ := strings.Cut(after, `"`)
	return version
}
