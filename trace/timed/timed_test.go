package timed

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/trace"
)

// TestBoth: what takes time is told to the trace and to the log, and to neither if
// nobody wants to know.
func TestBoth(t *testing.T) {
	if Wanted(t.Context()) {
		t.Error("somebody wants to know of nothing")
	}
	_, nobody := Start(t.Context(), "x", 0)
	nobody.Event("y")
	nobody.End()

	var kept []trace.Data
	tracer := &trace.Tracer{Ratio: 1, Export: func(d trace.Data) { kept = append(kept, d) }}
	req := &request.Request{Info: request.Info{IsResource: true, Verb: request.Create, Resource: "pods", Namespace: "n", Name: "made", Parts: []string{"pods"}}, AuditID: "7"}
	req.Passed = time.Now().Add(-time.Minute)
	ctx := request.With(trace.With(t.Context(), tracer.Root(nil, false, "root", trace.Server, time.Now())), req)
	r := httptest.NewRequest("POST", "/api/v1/namespaces/n/pods", nil)
	attributes := func() []trace.Attribute { return Attributes(r, req, "POST") }
	ctx, verb := Verb(ctx, req, "Create", attributes)
	verb.First("began")
	_, nested := Start(ctx, "Create etcd3", time.Hour, trace.String("key", "/pods/n/made"))
	nested.Event("Txn call succeeded", trace.Int("len", 5))
	nested.End()
	verb.Last("done")
	verb.EndVerb(req)

	if len(kept) != 2 || kept[0].Name != "Create etcd3" || kept[0].Parent != kept[1].Span || kept[1].Name != "Create" || len(kept[1].Events) != 2 {
		t.Errorf("the trace is %+v", kept)
	}
	texts := Text(req, time.Now(), func() uint32 { return 9 }, true, attributes)
	if len(texts) != 1 {
		t.Fatalf("the log is %q", texts)
	}
	for _, want := range []string{
		`Trace[9]: "Create" accept:,audit-id:7,client:192.0.2.1,api-group:,api-version:,name:,subresource:,namespace:n,protocol:HTTP/1.1,resource:pods,scope:resource,url:/api/v1/namespaces/n/pods,user-agent:unknown,verb:POST (`,
		"\nTrace[9]: [\"Create etcd3\" key:/pods/n/made ", "\nTrace[9]:  ---\"Txn call succeeded\" len:5 ", "\nTrace[9]: ---\"done\" ",
	} {
		if !strings.Contains(texts[0], want) {
			t.Errorf("no %s in %s", want, texts[0])
		}
	}
}

// TestWithinLeavesTheSpanToItsOwner: events go into the span of the context, which is not ended.
func TestWithinLeavesTheSpanToItsOwner(t *testing.T) {
	var kept []trace.Data
	tracer := &trace.Tracer{Ratio: 1, Export: func(d trace.Data) { kept = append(kept, d) }}
	ctx := trace.With(t.Context(), tracer.Root(nil, false, "root", trace.Server, time.Now()))
	ctx, owner := trace.Start(ctx, "Create etcd3")
	part := Within(ctx, "Create etcd3", time.Hour)
	part.Event("Txn call succeeded")
	part.End()
	if len(kept) != 0 {
		t.Fatalf("ended: %+v", kept)
	}
	owner.Event("Decode succeeded")
	owner.End()
	if len(kept) != 1 || len(kept[0].Events) != 2 {
		t.Errorf("got %+v, want a span with two events", kept)
	}
}
