//go:build linux

package main

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// clientsEnv tells a process that it is the clients of a storm.
const clientsEnv = "KELSON_STORM_CLIENTS"

const (
	// slowRate is how many bytes a second slow readers take.
	slowRate = 10_000
	// slowWindow is how many bytes of an answer slow readers and those who never read
	// take over from the server.
	slowWindow = 64 << 10
	readBuffer = 64 << 10
	// gzipSample is which part of the clients decompress what they get.
	gzipSample = 8
	// retryAfterBreak is how long a client waits after an answer that broke off, and
	// retryImpatiently after a refusal if it does not do as it is told.
	retryAfterBreak  = 100 * time.Millisecond
	retryImpatiently = 10 * time.Millisecond
	// maxReasons is how many reasons are reported.
	maxReasons = 20
)

// order is what the process of the clients is told, in JSON on its standard input.
type order struct {
	URL         string
	Scenario    scenario
	Clients     int
	Streams     int
	Users       int
	FirstUser   int
	Impatient   bool
	Duration    time.Duration
	Drain       time.Duration
	Items       int // that a complete list has
	ObjectBytes int
}

// news is what the process of the clients tells, in JSON on its standard output.
type news struct {
	// Open tells that all watches are open, and the server can be started again.
	Open bool `json:",omitempty"`
	// Answers and Honest come at the end.
	Answers *answers `json:",omitempty"`
	Honest  *answers `json:",omitempty"`
}

// answers says how the answers to one group of clients ended.
type answers struct {
	Complete int
	// Refused are answers 429 and 503 with a Retry-After.
	Refused int
	// Broken are answers that were cut, are malformed or have another status, and
	// connections that failed; Reasons tells of which kind.
	Broken int
	// Unfinished are answers of which clients had a part at the end, and Unanswered are
	// requests of which they had nothing.
	Unfinished, Unanswered int
	// Bytes is what came before the end of the storm, without what came while it was
	// drained.
	Bytes         int64
	Seconds       float64
	Reasons       map[string]int `json:",omitempty"`
	P50, P99, Max float64        // milliseconds for a complete answer
}

// tally collects answers.
type tally struct {
	bytes atomic.Int64
	mu    sync.Mutex // protects what follows
	sum   answers
	took  []float64 // milliseconds
}

// ending is how an answer ended.
type ending int

const (
	complete ending = iota
	refused
	broken
	unfinished
	unanswered
)

func (t *tally) note(how ending, reason string, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch how {
	case complete:
		t.sum.Complete++
		t.took = append(t.took, float64(took.Microseconds())/1000)
	case refused:
		t.sum.Refused++
	case broken:
		t.sum.Broken++
	case unfinished:
		t.sum.Unfinished++
	case unanswered:
		t.sum.Unanswered++
	}
	if reason != "" {
		if t.sum.Reasons == nil {
			t.sum.Reasons = map[string]int{}
		}
		if reason = generalize(reason); t.sum.Reasons[reason] > 0 || len(t.sum.Reasons) < maxReasons {
			t.sum.Reasons[reason]++
		}
	}
}

// digits are what makes errors of the same kind differ: ports, streams and names.
var digits = regexp.MustCompile(`\d+\.\d+\.\d+\.\d+:\d+|stream ID \d+|\d{6,}`)

// generalize makes one of errors of the same kind.
func generalize(reason string) string {
	reason = digits.ReplaceAllString(reason, "…")
	return reason[:min(len(reason), 200)]
}

func (t *tally) result() *answers {
	t.mu.Lock()
	defer t.mu.Unlock()
	sum := t.sum
	sum.P50, sum.P99, sum.Max = percentiles(t.took)
	return &sum
}

// percentiles returns the 50th, the 99th and the largest of some values.
func percentiles(values []float64) (p50, p99, most float64) {
	if len(values) == 0 {
		return 0, 0, 0
	}
	sorted := slices.Sorted(slices.Values(values))
	last := len(sorted) - 1
	return sorted[last/2], sorted[min(last, len(sorted)*99/100)], sorted[last]
}

// clientsMain is the main function of the process of the clients. It ends when all have
// ended, or when its standard input is closed.
func clientsMain(in io.Reader, out io.Writer) int {
	var o order
	decoder := json.NewDecoder(in)
	if err := decoder.Decode(&o); err != nil {
		return 1
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	encoder := json.NewEncoder(out)
	s := newStorm(&o)
	s.herd.onOpen = func() { _ = encoder.Encode(news{Open: true}) }
	s.run(ctx)
	if err := encoder.Encode(news{Answers: s.crowd.result(), Honest: s.honest.result()}); err != nil {
		return 1
	}
	return 0
}

// storm is the clients of a storm.
type storm struct {
	*order
	crowd, honest tally
	began, end    time.Time
	random        string // text in base64 that bodies are cut from
	herd          herd
}

func newStorm(o *order) *storm {
	s := &storm{order: o, herd: herd{onOpen: func() {}, back: make(chan struct{})}}
	if o.Scenario.Do == doWrite {
		s.random = randomText(2 * o.ObjectBytes)
	}
	return s
}

// run runs all clients until the storm has ended and what was under way has too, or until
// drain is over.
func (s *storm) run(ctx context.Context) {
	s.began = time.Now()
	s.end = s.began.Add(s.Duration)
	if s.Scenario.Do == doHerd {
		s.end = s.began.Add(herdPatience)
	}
	stormCtx, stopStorm := context.WithCancel(ctx) // new requests end
	defer stopStorm()
	drainCtx, stopDrain := context.WithDeadline(ctx, s.end.Add(s.Drain))
	defer stopDrain()
	var all sync.WaitGroup
	for i := range s.Clients {
		all.Go(func() { s.client(stormCtx, drainCtx, i) })
	}
	for range s.Scenario.Honest {
		all.Go(func() {
			c := newClient(honestUser, clientOptions{})
			defer c.close()
			usual := s.Scenario
			usual.Do, usual.Read = doList, readAll
			for stormCtx.Err() == nil {
				s.ask(stormCtx, drainCtx, c, &s.honest, usual, 0)
			}
		})
	}
	select {
	case <-ctx.Done():
	case <-s.herd.back:
	case <-time.After(time.Until(s.end)):
	}
	seconds := time.Since(s.began).Seconds()
	for _, t := range []*tally{&s.crowd, &s.honest} {
		t.mu.Lock()
		t.sum.Bytes, t.sum.Seconds = t.bytes.Load(), seconds
		t.mu.Unlock()
	}
	stopStorm()
	all.Wait()
}

// client is one client: its requests, one after the other or some at a time, on its own
// connection.
func (s *storm) client(stormCtx, drainCtx context.Context, i int) {
	user := userName(s.FirstUser + i%s.Users)
	var o clientOptions
	if s.Scenario.Read != readAll {
		o.window = slowWindow
	}
	switch s.Scenario.Do {
	case doConnect:
		s.connects(stormCtx, drainCtx, user, i)
		return
	case doUnread:
		s.crowdConnection(stormCtx, user, crowded{path: "/api/v1/namespaces/" + namespace + "/secrets/" + unreadName})
		return
	case doWatches:
		s.crowdConnection(stormCtx, user, crowded{path: s.Scenario.path() + fromNow, window: crowdedWindow})
		return
	}
	c := newClient(user, o)
	defer c.close()
	var streams sync.WaitGroup
	for stream := range s.Streams {
		streams.Go(func() {
			id := i*s.Streams + stream
			switch s.Scenario.Do {
			case doHerd:
				s.keepWatching(stormCtx, c)
			case doWrite, doEvents, doLeases:
				s.write(stormCtx, drainCtx, c, id)
			default:
				for stormCtx.Err() == nil {
					s.ask(stormCtx, drainCtx, c, &s.crowd, s.Scenario, id)
				}
			}
		})
	}
	streams.Wait()
}

// ask gets one list and waits as a client does that was refused.
func (s *storm) ask(stormCtx, drainCtx context.Context, c *client, t *tally, what scenario, id int) {
	url := s.URL + what.path()
	if what.Query != "" {
		url += "?" + what.Query
	}
	ctx, cancel := context.WithCancel(drainCtx)
	defer cancel()
	hold := func() bool { return false } // lets the answer go on after the storm
	if what.Read != readAll {
		// It would not finish anyway.
		drainCtx, hold = stormCtx, context.AfterFunc(stormCtx, cancel)
		defer hold()
	}
	header := []string{"Accept", what.Accept}
	if what.Gzip {
		header = append(header, "Accept-Encoding", "gzip")
	}
	began := time.Now()
	resp, err := c.do(ctx, http.MethodGet, url, "", nil, header...)
	if err != nil {
		s.failed(stormCtx, drainCtx, t, unanswered, err)
		return
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		s.refused(stormCtx, drainCtx, t, resp)
		return
	}
	if what.Read == readNever && hold() {
		s.neverRead(stormCtx, t, resp.Body, cancel)
		return
	}
	var check bodyCheck
	body := io.Reader(resp.Body)
	if what.Read == readSlowly {
		body = &slowReader{ctx, body}
	}
	body = &countingReader{body, t}
	switch {
	case what.Do == doWatchList:
		check = newInitialEventsCheck(s.Items)
	case what.Accept == mediaProtobuf:
		check = newProtobufCheck(s.Items)
	case resp.Header.Get("Content-Encoding") != "gzip":
		check = newListCheck(s.Items)
	case id%gzipSample != 0:
		check = &gzipCheck{}
	default:
		check = newListCheck(s.Items)
		if body, err = gzip.NewReader(body); err != nil {
			s.failed(stormCtx, drainCtx, t, unfinished, err)
			return
		}
	}
	if err := readThrough(body, check); err != nil {
		s.failed(stormCtx, drainCtx, t, unfinished, err)
		return
	}
	if err := check.finish(); err != nil {
		t.note(broken, "malformed: "+err.Error(), 0)
		_ = wait(stormCtx, retryAfterBreak)
		return
	}
	t.note(complete, "", time.Since(began))
}

// readThrough gives a body to its check.
func readThrough(body io.Reader, check bodyCheck) error {
	buffer := make([]byte, readBuffer)
	for {
		n, err := body.Read(buffer)
		check.write(buffer[:n])
		switch {
		case check.isDone() || err == io.EOF:
			return nil
		case err != nil:
			return err
		}
	}
}

// failed notes an answer that has no end. If the clients themselves have ended it, it is
// not broken.
func (s *storm) failed(stormCtx, drainCtx context.Context, t *tally, otherwise ending, err error) {
	if drainCtx.Err() != nil {
		t.note(otherwise, "", 0)
		return
	}
	t.note(broken, err.Error(), 0)
	_ = wait(stormCtx, retryAfterBreak)
}

// refused notes an answer that is not a list, and waits as long as it says.
func (s *storm) refused(stormCtx, drainCtx context.Context, t *tally, resp *http.Response) {
	text, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		s.failed(stormCtx, drainCtx, t, unfinished, err)
		return
	}
	seconds, err := strconv.Atoi(resp.Header.Get("Retry-After"))
	if resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusServiceUnavailable || err != nil {
		t.note(broken, fmt.Sprintf("status %d: %.100s", resp.StatusCode, text), 0)
		_ = wait(stormCtx, retryAfterBreak)
		return
	}
	t.note(refused, "", 0)
	pause := time.Duration(seconds)*time.Second + rand.N(100*time.Millisecond)
	if s.Impatient {
		pause = retryImpatiently
	}
	_ = wait(stormCtx, pause)
}

// neverRead waits for the end of the storm, and then looks whether the answer was cut
// meanwhile.
func (s *storm) neverRead(stormCtx context.Context, t *tally, body io.Reader, cancel func()) {
	<-stormCtx.Done()
	var cancelled atomic.Bool
	timer := time.AfterFunc(time.Second, func() {
		cancelled.Store(true)
		cancel()
	})
	defer timer.Stop()
	if err := readThrough(body, &gzipCheck{}); err != nil && !cancelled.Load() && !errors.Is(err, context.Canceled) {
		t.note(broken, err.Error(), 0)
		return
	}
	t.note(unfinished, "", 0)
}

// countingReader counts what was read.
type countingReader struct {
	io.Reader
	t *tally
}

func (r *countingReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.t.bytes.Add(int64(n))
	return n, err
}

// slowReader reads slowRate bytes a second.
type slowReader struct {
	ctx context.Context
	io.Reader
}

func (r *slowReader) Read(p []byte) (int, error) {
	const perSecond = 10
	if err := wait(r.ctx, time.Second/perSecond); err != nil {
		return 0, err
	}
	return r.Reader.Read(p[:min(len(p), slowRate/perSecond)])
}

// connects gets one object a second, each time on a new connection.
func (s *storm) connects(stormCtx, drainCtx context.Context, user string, id int) {
	if wait(stormCtx, time.Duration(id)*time.Second/time.Duration(s.Clients)) != nil {
		return
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for stormCtx.Err() == nil {
		c := newClient(user, clientOptions{})
		s.send(stormCtx, drainCtx, c, http.MethodGet, "/api/v1/namespaces/"+namespace+"/configmaps/small-00000", "", nil)
		c.close()
		select {
		case <-tick.C:
		case <-stormCtx.Done():
		}
	}
}

// Objects that each writer changes.
const (
	writerSecrets = 4
	writerLeases  = 10
)

const mergePatch = "application/merge-patch+json"

// write writes objects, one after the other.
func (s *storm) write(stormCtx, drainCtx context.Context, c *client, id int) {
	core := "/api/v1/namespaces/" + writeNamespace
	leases := "/apis/coordination.k8s.io/v1/namespaces/" + writeNamespace + "/leases"
	for n := 0; stormCtx.Err() == nil; {
		name := fmt.Sprintf("storm-%d-%d", id, n)
		var ok bool
		switch s.Scenario.Do {
		case doWrite:
			// The text is base64 of whole groups of four.
			from := rand.IntN(len(s.random)/8) * 4
			value := s.random[from : from+s.ObjectBytes/3*4]
			if n < writerSecrets {
				ok = s.send(stormCtx, drainCtx, c, http.MethodPost, core+"/secrets", mediaJSON,
					[]byte(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"`+name+`"},"data":{"value":"`+value+`"}}`))
				break
			}
			name = fmt.Sprintf("storm-%d-%d", id, n%writerSecrets)
			ok = s.send(stormCtx, drainCtx, c, http.MethodPatch, core+"/secrets/"+name, mergePatch, []byte(`{"data":{"value":"`+value+`"}}`))
		case doEvents:
			now := time.Now().UTC().Format(time.RFC3339)
			ok = s.send(stormCtx, drainCtx, c, http.MethodPost, core+"/events", mediaJSON, fmt.Appendf(nil,
				`{"apiVersion":"v1","kind":"Event","metadata":{"name":%q},"involvedObject":{"kind":"Pod","namespace":%q,"name":"pod"},`+
					`"reason":"BackOff","message":%q,"type":"Warning","source":{"component":"storm"},"firstTimestamp":%q,"lastTimestamp":%q,"count":1}`,
				name, writeNamespace, strings.Repeat("storm ", 100), now, now))
		case doLeases:
			renewed := time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")
			if n < writerLeases {
				ok = s.send(stormCtx, drainCtx, c, http.MethodPost, leases, mediaJSON, fmt.Appendf(nil,
					`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":%q},"spec":{"holderIdentity":"storm","renewTime":%q}}`, name, renewed))
				break
			}
			name = fmt.Sprintf("storm-%d-%d", id, n%writerLeases)
			ok = s.send(stormCtx, drainCtx, c, http.MethodPatch, leases+"/"+name, mergePatch, fmt.Appendf(nil, `{"spec":{"renewTime":%q}}`, renewed))
		}
		if ok {
			n++
		}
	}
}

// send sends a request about one object, and reports whether it was answered completely.
func (s *storm) send(stormCtx, drainCtx context.Context, c *client, method, path, contentType string, body []byte) bool {
	began := time.Now()
	resp, err := c.do(drainCtx, method, s.URL+path, contentType, body, "Accept", s.Scenario.Accept)
	if err != nil {
		s.failed(stormCtx, drainCtx, &s.crowd, unanswered, err)
		return false
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK, http.StatusCreated:
	case http.StatusConflict:
		// An object of which the creation was not answered.
		if method == http.MethodPost {
			_, _ = io.Copy(io.Discard, resp.Body)
			return true
		}
		fallthrough
	default:
		s.refused(stormCtx, drainCtx, &s.crowd, resp)
		return false
	}
	s.crowd.bytes.Add(int64(len(body)))
	check := newObjectCheck()
	if err := readThrough(&countingReader{resp.Body, &s.crowd}, check); err != nil {
		s.failed(stormCtx, drainCtx, &s.crowd, unfinished, err)
		return false
	}
	if err := check.finish(); err != nil {
		s.crowd.note(broken, "malformed: "+err.Error(), 0)
		return false
	}
	s.crowd.note(complete, "", time.Since(began))
	return true
}
