package trace

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestHeader(t *testing.T) {
	for text, ok := range map[string]bool{
		parent: true,
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00":       true,
		"01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-later": true,
		"": false,
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more": false,
		"ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01":      false,
		"00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01":      false,
		"00-00000000000000000000000000000000-b7ad6b7169203331-01":      false,
		"00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01":      false,
		"00-0af7651916cd43dd8448eb211c80319-b7ad6b7169203331-01":       false,
		"00-zzf7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01":      false,
		"nonsense": false,
	} {
		h := http.Header{}
		h.Set("traceparent", text)
		h.Set("tracestate", "a=b")
		r := FromHeader(h)
		if (r != nil) != ok {
			t.Errorf("%q: %v", text, r)
			continue
		}
		if r == nil {
			continue
		}
		out := http.Header{}
		Inject(With(t.Context(), Passed(*r)), out)
		if want := "00" + text[2:55]; out.Get("traceparent") != want || out.Get("tracestate") != "a=b" {
			t.Errorf("%q is passed on as %v", text, out)
		}
	}
	out := http.Header{}
	if Inject(t.Context(), out); len(out) > 0 {
		t.Errorf("from nothing: %v", out)
	}
}

func TestSpans(t *testing.T) {
	remote := FromHeader(http.Header{"Traceparent": {parent}})
	unsampled := *remote
	unsampled.Sampled = false
	for name, tt := range map[string]struct {
		ratio   float64
		remote  *Remote
		trusted bool
		kept    bool
		linked  bool
	}{
		"nobody wants it":      {0, nil, false, false, false},
		"all are kept":         {1, nil, false, true, false},
		"a trusted client":     {0, remote, true, true, false},
		"its trace is not":     {1, &unsampled, true, false, false},
		"not a trusted client": {0, remote, false, false, false},
		"but it is chosen":     {1, remote, false, true, true},
	} {
		var got []Data
		tracer := &Tracer{Ratio: tt.ratio, Export: func(d Data) { got = append(got, d) }}
		root := tracer.Root(tt.remote, tt.trusted, "root", Server, time.Now())
		ctx, child := Start(With(t.Context(), root), "child", String("a", "b"))
		child.Event("e")
		_, grandchild := StartClient(ctx, "grandchild")
		grandchild.Fail(context.Canceled)
		for _, s := range []*Span{grandchild, child, root, root} {
			s.End()
			s.Set(Int("late", 1))
		}
		if root.Recording() != tt.kept || (len(got) == 3) != tt.kept {
			t.Errorf("%s: %v, %d spans", name, root.Recording(), len(got))
			continue
		}
		if trusted := tt.remote != nil && tt.trusted; trusted != (tt.remote != nil && root.Trace() == tt.remote.Trace) {
			t.Errorf("%s: the trace is %x", name, root.Trace())
		}
		if !tt.kept {
			continue
		}
		if got[0].Parent != got[1].Span || got[1].Parent != got[2].Span || got[0].Trace != got[2].Trace || !got[0].Failed || got[0].Kind != Client || len(got[1].Events) != 1 {
			t.Errorf("%s: %+v", name, got)
		}
		if (got[2].Link != nil) != tt.linked || got[2].ParentRemote != (tt.remote != nil && tt.trusted) || len(got[2].Attributes) != 0 {
			t.Errorf("%s: %+v", name, got[2])
		}
	}
}

// About as many traces are kept as are wanted.
func TestRatio(t *testing.T) {
	tracer, kept := &Tracer{Ratio: 0.25}, 0
	for range 10_000 {
		if tracer.Root(nil, false, "", Server, time.Time{}).Recording() {
			kept++
		}
	}
	if kept < 2000 || kept > 3000 {
		t.Errorf("%d of 10000 are kept", kept)
	}
}

func TestReadConfig(t *testing.T) {
	const head = "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\n"
	for text, want := range map[string]string{
		"":   "",
		head: "",
		"apiVersion: apiserver.config.k8s.io/v1beta1\nkind: TracingConfiguration\nendpoint: localhost:4317\nsamplingRatePerMillion: 100\n": "",
		head + "endpoint: unix:///run/otel.sock":                     "",
		head + "samplingRatePerMillion: -1":                          "failed to validate tracing configuration: samplingRatePerMillion: Invalid value: -1: sampling rate must be positive",
		head + "samplingRatePerMillion: 1000001\nendpoint: http://x": `failed to validate tracing configuration: [samplingRatePerMillion: Invalid value: 1000001: sampling rate per million must be less than or equal to one million, endpoint: Invalid value: "http://x": unsupported scheme: http.  Options are none, dns, unix, or unix-abstract.  See https://github.com/grpc/grpc/blob/master/doc/naming.md]`,
		head + "foo: 1": `failed to read tracing config: unable to decode tracing configuration data: strict decoding error: unknown field "foo"`,
		"apiVersion: apiserver.k8s.io/v1\nkind: TracingConfiguration\n": `failed to read tracing config: unable to decode tracing configuration data: no kind "TracingConfiguration" is registered for version "apiserver.k8s.io/v1"`,
		head + "endpoint: '%zz'": `failed to validate tracing configuration: endpoint: Invalid value: "dns://%zz": parse "dns://%zz": invalid URL escape "%zz"`,
		"{":                      "failed to read tracing config: unable to decode tracing configuration data: couldn't get version/kind; json parse error: ",
	} {
		file := filepath.Join(t.TempDir(), "tracing.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := ReadConfig(file)
		if (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	if _, err := ReadConfig("/no/file"); err == nil || !strings.HasPrefix(err.Error(), `failed to read tracing config: unable to read tracing configuration from "/no/file": open `) {
		t.Error(err)
	}
}

// BenchmarkOff is what everybody pays.
func BenchmarkOff(b *testing.B) {
	ctx := context.WithValue(b.Context(), contextKey{}, (*Span)(nil))
	b.ReportAllocs()
	for b.Loop() {
		_, span := Start(ctx, "x")
		span.End()
	}
}

// Those who are asked in turn are told of the span that is about asking them.
func TestOutgoing(t *testing.T) {
	var got []Data
	tracer := &Tracer{Ratio: 1, Export: func(d Data) { got = append(got, d) }}
	ctx := With(t.Context(), tracer.Root(nil, false, "root", Server, time.Now()))
	for i, tt := range []struct {
		resp   *http.Response
		err    error
		failed bool
	}{{&http.Response{StatusCode: 200}, nil, false}, {&http.Response{StatusCode: 503}, nil, true}, {nil, context.Canceled, true}} {
		r, _ := http.NewRequest(http.MethodPost, "https://joe:secret@example.com/hook", nil)
		Outgoing(ctx, r).Answered(tt.resp, tt.err)
		remote := FromHeader(r.Header)
		if len(got) != i+1 || remote == nil || remote.Span != got[i].Span || got[i].Kind != Client || got[i].Name != "HTTP POST" || got[i].Failed != tt.failed {
			t.Errorf("%v: %+v", r.Header, got)
		}
		for _, a := range got[i].Attributes {
			if strings.Contains(a.Text, "secret") {
				t.Errorf("%s is told: %s", a.Key, a.Text)
			}
		}
	}
	r, _ := http.NewRequest(http.MethodPost, "https://example.com", nil)
	Outgoing(t.Context(), r).Answered(nil, nil)
	if len(r.Header) > 0 {
		t.Errorf("from nothing: %v", r.Header)
	}
}

// TestOutgoingOfNobody: a request that is made for nobody's is a trace of its own, and what
// is made for one is part of that one's.
func TestOutgoingOfNobody(t *testing.T) {
	var kept []Data
	tracer := &Tracer{Ratio: 1, Export: func(d Data) { kept = append(kept, d) }}
	ask := func(ctx context.Context, tracer *Tracer) string {
		r := httptest.NewRequest(http.MethodPost, "https://example.com/convert", nil)
		tracer.Outgoing(ctx, r).Answered(&http.Response{StatusCode: 200}, nil)
		return r.Header.Get("Traceparent")
	}
	if told := ask(t.Context(), nil); told != "" || len(kept) != 0 {
		t.Errorf("without a tracer: %q, %v", told, kept)
	}
	if told := ask(t.Context(), tracer); !strings.HasSuffix(told, "-01") || len(kept) != 1 || kept[0].Name != "HTTP POST" || kept[0].Kind != Client || kept[0].Parent != (SpanID{}) {
		t.Errorf("on its own: %q, %+v", told, kept)
	}
	if told := ask(t.Context(), &Tracer{}); !strings.HasSuffix(told, "-00") || len(kept) != 1 {
		t.Errorf("not kept: %q, %+v", told, kept)
	}
	root := tracer.Root(nil, false, "root", Server, time.Now())
	ask(With(t.Context(), root), tracer)
	if len(kept) != 2 || kept[1].Trace != root.Trace() || kept[1].Parent == (SpanID{}) {
		t.Errorf("for a request: %+v", kept)
	}
}
