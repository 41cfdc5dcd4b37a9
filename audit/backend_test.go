package audit

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apikeel/kelson/internal/requesttest"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestValidate(t *testing.T) {
	tests := []struct {
		change func(c *Config)
		want   string
	}{
		{func(*Config) {}, ""},
		{func(c *Config) { c.Log.Path, c.Log.Batch.Mode = "", "x" }, ""},
		{func(c *Config) { c.Log.Batch.Mode = "x" }, `invalid audit log mode x, allowed modes are "batch,blocking,blocking-strict"`},
		{func(c *Config) { c.Webhook.Batch.BufferSize = 0 }, "invalid audit batch webhook buffer size 0, must be a positive number"},
		{func(c *Config) { c.Webhook.Batch.Mode, c.Webhook.Batch.BufferSize = ModeBlocking, 0 }, ""},
		{func(c *Config) { c.Webhook.Batch.MaxSize = -1 }, "invalid audit batch webhook max batch size -1, must be a positive number"},
		{func(c *Config) { c.Webhook.Batch.ThrottleQPS = 0 }, "invalid audit batch webhook throttle QPS 0, must be a positive number"},
		{func(c *Config) { c.Webhook.Batch.ThrottleBurst = 0 }, "invalid audit batch webhook throttle burst 0, must be a positive number"},
		{func(c *Config) { c.Log.Truncate.MaxEventSize = 0 }, "invalid audit truncate log max event size 0, must be a positive number"},
		{func(c *Config) { c.Log.Truncate.MaxBatchSize = 1 }, "invalid audit truncate log max batch size 1, must be greater than max event size (102400)"},
		{func(c *Config) { c.Log.Version = "audit.k8s.io/v1beta1" }, `invalid group version, allowed versions are ["audit.k8s.io/v1"]`},
		{func(c *Config) { c.Log.Format = "xml" }, `invalid audit log format xml, allowed formats are "legacy,json"`},
		{func(c *Config) { c.Log.MaxAge, c.Log.MaxSize = -1, -2 }, "--audit-log-maxage -1 can't be a negative number\n--audit-log-maxsize -2 can't be a negative number"},
	}
	for _, tt := range tests {
		c := DefaultConfig()
		c.Log.Path, c.Webhook.ConfigFile = "x", "y"
		tt.change(&c)
		got := ""
		if err := c.Validate(); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

// emit makes the events of one request and reports whether it may be served.
func emit(l *Log, object string) bool {
	hr, req := asked("POST", "/api/v1/namespaces/n/secrets")
	r := l.Record()
	r.Begin(hr, req)
	if !r.Received() {
		return false
	}
	if object != "" {
		r.SentObject(nil, func() ([]byte, error) { return json.Marshal(object) })
	}
	r.Answer(201)
	r.Complete(nil)
	return true
}

func TestModes(t *testing.T) {
	for mode, want := range map[string]struct {
		served   bool
		dropped  int64
		rejected int64
	}{
		ModeBlocking:       {true, 2, 0},
		ModeBlockingStrict: {false, 1, 1},
		ModeBatch:          {true, 2, 0},
	} {
		var log strings.Builder
		l, out := open(t, everything, func(c *Config) {
			c.Log.Batch.Mode, c.Logger = mode, slog.New(slog.NewTextHandler(&log, nil))
		})
		if !emit(l, "") || l.Close(context.Background()) != nil {
			t.Errorf("%s: refused", mode)
		}
		if got := len(out.events(t)); got != 2 {
			t.Errorf("%s: %d events", mode, got)
		}

		l, out = open(t, everything, func(c *Config) {
			c.Log.Batch.Mode, c.Logger = mode, slog.New(slog.NewTextHandler(&log, nil))
		})
		out.fail = errors.New("disk full")
		served := emit(l, "")
		if err := l.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if s := l.Stats(); served != want.served || s.Dropped["log"] != want.dropped || s.Rejected != want.rejected {
			t.Errorf("%s: served %v, %+v", mode, served, s)
		}
		if !strings.Contains(log.String(), "disk full") {
			t.Errorf("%s: the loss is not logged", mode)
		}
	}
}

func TestTruncate(t *testing.T) {
	l, out := open(t, everything, func(c *Config) {
		c.Log.Truncate = TruncateConfig{Enabled: true, MaxEventSize: 1200, MaxBatchSize: 1200}
	})
	emit(l, "small")
	emit(l, strings.Repeat("x", 2000))
	events := out.events(t)
	if len(events) != 4 || string(events[1].RequestObject) != `"small"` || events[1].Annotations != nil {
		t.Fatalf("got %+v", events)
	}
	if events[3].RequestObject != nil || events[3].Annotations["audit.k8s.io/truncated"] != "true" {
		t.Errorf("got %+v", events[3])
	}

	l, out = open(t, everything, func(c *Config) {
		c.Log.Truncate = TruncateConfig{Enabled: true, MaxEventSize: 100, MaxBatchSize: 100}
	})
	if !emit(l, "x") || out.String() != "" || l.Stats().Dropped["log"] != 2 {
		t.Errorf("%s, %+v", out, l.Stats())
	}
}

// receiver is a webhook of the test's own.
type receiver struct {
	*httptest.Server
	mu      sync.Mutex
	batches [][]Event
	bodies  []string
	heads   []*http.Request
	fail    int           // how many more requests fail
	hold    chan struct{} // if set, requests wait for it
	entered chan struct{} // if set, told of each request
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, hr *http.Request) {
	body, _ := io.ReadAll(hr.Body)
	if r.entered != nil {
		select {
		case r.entered <- struct{}{}:
		default: // a request that is tried again, of which nobody wants to know
		}
	}
	if r.hold != nil {
		<-r.hold
	}
	var list struct{ Items []Event }
	_ = json.Unmarshal(body, &list)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.heads = append(r.heads, hr)
	if r.fail > 0 {
		r.fail--
		http.Error(w, "not now", http.StatusServiceUnavailable)
		return
	}
	r.batches = append(r.batches, list.Items)
	r.bodies = append(r.bodies, string(body))
}

// config returns a kubeconfig for the receiver.
func (r *receiver) config(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	ca := filepath.Join(dir, "ca.crt")
	if err := os.WriteFile(ca, pemOf(r.Certificate().Raw), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "webhook.conf")
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],
"clusters":[{"name":"c","cluster":{"server":"%s/audit","certificate-authority":"ca.crt"}}],"users":[{"name":"u","user":{"token":"hush"}}]}`, r.URL)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func receive(t *testing.T, change func(*receiver)) *receiver {
	r := &receiver{}
	if change != nil {
		change(r)
	}
	r.Server = httptest.NewTLSServer(r)
	t.Cleanup(r.Close)
	return r
}

func openHook(t *testing.T, r *receiver, change func(*WebhookConfig)) *Log {
	t.Helper()
	l, _ := open(t, everything, func(c *Config) {
		c.Log.Path, c.Webhook.ConfigFile, c.Webhook.InitialBackoff = "", r.config(t), time.Millisecond
		c.Webhook.Batch.ThrottleEnable = false
		if change != nil {
			change(&c.Webhook)
		}
	})
	return l
}

func sizes(batches [][]Event) (n []int) {
	for _, batch := range batches {
		n = append(n, len(batch))
	}
	slices.Sort(n)
	return n
}

func TestWebhook(t *testing.T) {
	r := receive(t, nil)
	l := openHook(t, r, func(c *WebhookConfig) { c.Batch.MaxSize = 4 })
	for range 5 {
		emit(l, "x")
	}
	// Closing sends what waits, without waiting for more.
	if err := l.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := sizes(r.batches); !slices.Equal(got, []int{2, 4, 4}) {
		t.Errorf("batches of %d", got)
	}
	head := r.heads[0]
	if head.URL.String() != "/audit?timeout=30s" || head.Method != "POST" || head.Header.Get("Content-Type") != "application/json" || head.Header.Get("Authorization") != "Bearer hush" {
		t.Errorf("got %s %s %v", head.Method, head.URL, head.Header)
	}
	if !strings.HasPrefix(r.bodies[0], `{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":[{"level":"RequestResponse",`) {
		t.Errorf("got %s", r.bodies[0])
	}
	emit(l, "late")
	if got := l.Stats().Dropped["webhook"]; got != 2 {
		t.Errorf("%d events are dropped after the end", got)
	}
}

func TestWebhookWaits(t *testing.T) {
	r := receive(t, func(r *receiver) { r.entered = make(chan struct{}, 9) })
	l := openHook(t, r, func(c *WebhookConfig) { c.Batch.MaxWait = time.Millisecond })
	emit(l, "")
	<-r.entered // nobody closes it: the time is over
}

// TestWebhookEndsArrival: a request that waits for a webhook says so, so that it keeps no other out.
func TestWebhookEndsArrival(t *testing.T) {
	for mode, want := range map[string]int64{ModeBatch: 0, ModeBlocking: 1} {
		r := receive(t, func(r *receiver) { r.entered, r.hold = make(chan struct{}, 1), make(chan struct{}) })
		l := openHook(t, r, func(c *WebhookConfig) { c.Batch.Mode, c.Batch.MaxWait = mode, time.Millisecond })
		var ended requesttest.EndedArrivals
		hr, req := asked("POST", "/api/v1/namespaces/n/secrets")
		req.Arrival = &ended
		record := l.Record()
		record.Begin(hr, req)
		received := make(chan bool)
		go func() { received <- record.Received() }()
		<-r.entered
		if ended.Load() != want {
			t.Errorf("%s: the webhook is asked when %d arrivals have ended, want %d", mode, ended.Load(), want)
		}
		close(r.hold)
		<-received
	}
}

func TestWebhookRetries(t *testing.T) {
	r := receive(t, func(r *receiver) { r.fail = 4 })
	l := openHook(t, r, func(c *WebhookConfig) { c.Batch.Mode = ModeBlockingStrict })
	if !emit(l, "") {
		t.Error("it is not tried often enough")
	}
	if len(r.heads) != 6 || len(r.batches) != 2 {
		t.Errorf("%d requests, %d batches", len(r.heads), len(r.batches))
	}
	r.fail = 5
	if emit(l, "") || l.Stats().Dropped["webhook"] != 1 || l.Stats().Rejected != 1 {
		t.Errorf("got %+v", l.Stats())
	}
}

func TestBatchSize(t *testing.T) {
	r := receive(t, nil)
	l := openHook(t, r, func(c *WebhookConfig) {
		c.Truncate = TruncateConfig{Enabled: true, MaxEventSize: 2000, MaxBatchSize: 2000}
	})
	for range 3 {
		emit(l, strings.Repeat("x", 1000))
	}
	if err := l.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	total := 0
	for i, batch := range r.batches {
		total += len(batch)
		if len(r.bodies[i]) > 2200 {
			t.Errorf("a batch has %d bytes", len(r.bodies[i]))
		}
	}
	if total != 6 {
		t.Errorf("%d events", total)
	}
}

// A receiver that hangs costs no request anything, and bounded memory.
func TestBackPressure(t *testing.T) {
	r := receive(t, func(r *receiver) { r.hold, r.entered = make(chan struct{}), make(chan struct{}, maxSends) })
	l := openHook(t, r, func(c *WebhookConfig) { c.Batch.MaxSize, c.Batch.BufferSize = 1, 10 })
	for range maxSends / 2 {
		emit(l, "")
		<-r.entered
		<-r.entered
	}
	for range 100 {
		emit(l, "")
	}
	// The batches that are on their way, the one that waits to go, the buffer.
	if dropped := l.Stats().Dropped["webhook"]; dropped < 200-10-1-1 || dropped > 200-10 {
		t.Errorf("%d events are dropped", dropped)
	}

	// It is given up when there is no time left.
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := l.Close(ctx); err != nil {
		t.Error(err)
	}
	if s := l.Stats(); s.Dropped["webhook"] != s.Events {
		t.Errorf("not all that is lost is counted: %+v", s)
	}
	close(r.hold)
}

// Large events that wait take bounded memory too.
func TestBackPressureOfLargeEvents(t *testing.T) {
	r := receive(t, func(r *receiver) { r.hold, r.entered = make(chan struct{}), make(chan struct{}, maxSends) })
	l := openHook(t, r, func(c *WebhookConfig) { c.Batch.MaxSize = 1 })
	large := strings.Repeat("x", maxQueued/8)
	for range 20 {
		emit(l, large)
	}
	queue, dropped := l.backends[0].queue, l.Stats().Dropped["webhook"]
	if bytes := queue.bytes.Load(); bytes < maxQueued/2 || bytes > maxQueued || dropped < 12 || dropped > 33 {
		t.Errorf("%d bytes wait, and %d events are dropped", bytes, dropped)
	}
	close(r.hold)
	if err := l.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := queue.bytes.Load(); got != 0 {
		t.Errorf("%d bytes are counted after the end", got)
	}
}

func TestWebhookErrors(t *testing.T) {
	c := DefaultConfig()
	c.PolicyFile, c.Webhook.ConfigFile = policyFile(t, everything), filepath.Join(t.TempDir(), "none")
	if _, err := New(c); err == nil || !strings.HasPrefix(err.Error(), "initializing audit webhook: ") {
		t.Errorf("got %v", err)
	}
	c.Webhook.ConfigFile, c.PolicyFile = "", c.Webhook.ConfigFile
	if _, err := New(c); err == nil || !strings.HasPrefix(err.Error(), "loading audit policy file: failed to read file path") {
		t.Errorf("got %v", err)
	}
}

// Both backends get every event.
func TestBoth(t *testing.T) {
	r := receive(t, nil)
	l, out := open(t, everything, func(c *Config) { c.Webhook.ConfigFile = r.config(t) })
	emit(l, "x")
	if err := l.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if len(out.events(t)) != 2 || len(r.batches) != 1 || len(r.batches[0]) != 2 {
		t.Errorf("%d and %v", len(out.events(t)), sizes(r.batches))
	}
}

func pemOf(der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}) }

// TestLongRequestsAreNotLost: an event whose URI, user, lists or annotations are larger than the
// limit is written without their ends; one that cannot be is counted, and refuses the request in
// the mode blocking-strict.
func TestLongRequestsAreNotLost(t *testing.T) {
	long := strings.Repeat("x", 200<<10)
	many := slices.Repeat([]string{long[:1000]}, 500)
	for name, event := range map[string]*Event{
		"uri":         {Level: LevelMetadata, RequestURI: "/api?fieldSelector=" + long},
		"user":        {Level: LevelRequest, User: authenticationv1.UserInfo{Username: long, Groups: many, Extra: map[string]authenticationv1.ExtraValue{long: many}}},
		"addresses":   {Level: LevelMetadata, SourceIPs: many},
		"annotations": {Level: LevelMetadata, Annotations: map[string]string{"a": long, long: "b"}},
		"everything":  {Level: LevelMetadata, RequestURI: strings.Repeat("\x01", 200<<10), ObjectRef: &ObjectReference{Name: long}, ResponseStatus: &metav1.Status{Message: long}, Verb: long},
	} {
		event.AuditID, event.Stage = "id", StageRequestReceived
		body, err := event.encode()
		if err != nil {
			t.Fatal(err)
		}
		var sent []entry
		send := func(_ context.Context, all []entry) error {
			sent = append(sent, all...)
			return nil
		}
		config := TruncateConfig{Enabled: true, MaxEventSize: 100 << 10, MaxBatchSize: 10 << 20}
		b := newBackend("log", BatchConfig{Mode: ModeBlockingStrict}, config, 1, send, func() error { return nil }, slog.New(slog.DiscardHandler))
		if !b.put(entry{event, body}) || len(sent) != 1 || sent[0].size() > config.MaxEventSize || sent[0].event.AuditID != "id" || sent[0].event.Annotations[truncatedKey] != "true" {
			t.Errorf("%s: got %d events, want one that fits and says that it is truncated", name, len(sent))
		}
		b.truncate.MaxEventSize = 100
		if b.put(entry{event, body}) || b.dropped.Load() != 1 {
			t.Errorf("%s: an event that cannot be written is not counted (%d), or its request goes on", name, b.dropped.Load())
		}
	}
}
