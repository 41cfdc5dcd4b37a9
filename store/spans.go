package store

import (
	"context"
	"fmt"
	"path"
	"reflect"
	"strings"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/trace"
)

// The spans of writes. They have the names, attributes and events that kube-apiserver has for
// etcd, whatever the store is. The backend adds what happens in it to the span of its context.
const (
	CreateSpan = "Create etcd3"
	UpdateSpan = "GuaranteedUpdate etcd3"
)

// startSpan begins the span of a write. It is nil if the request is not traced.
func (r *Resource) startSpan(ctx context.Context, name, key string) (context.Context, *trace.Span) {
	if !trace.From(ctx).Recording() {
		return ctx, nil
	}
	return trace.Start(ctx, name, SpanAttributes(ctx, key, r.def.Group, r.def.Resource)...)
}

// SpanAttributes are the attributes of the span of a read or a write of a key.
func SpanAttributes(ctx context.Context, key, group, resource string) []trace.Attribute {
	return []trace.Attribute{
		trace.String("audit-id", request.From(ctx).LoggedID()),
		trace.String("key", strings.TrimPrefix(key, strings.TrimSuffix(storage.Root, "/"))),
		trace.String("group", group), trace.String("resource", resource),
	}
}

// encodeWithin is prepare with its events in a span, which may be nil.
func (r *Resource) encodeWithin(span *trace.Span, key string, obj resource.Object) (rec *Record, stored []byte, err error) {
	if span == nil {
		return r.prepare(key, obj)
	}
	span.Event("About to Encode")
	if rec, stored, err = r.prepare(key, obj); err != nil {
		span.Event("Encode failed", trace.Int("len", int64(len(stored))), trace.String("err", err.Error()))
		return rec, stored, err
	}
	span.Event("Encode succeeded", trace.Int("len", int64(len(stored))))
	return rec, stored, nil
}

// committed is the record of a write, with its event in a span, which may be nil.
func committed(span *trace.Span, rec *Record, revision int64, stored []byte) *Record {
	rec = rec.Committed(revision, stored)
	if span != nil {
		span.Event("Decode succeeded", trace.Int("len", int64(len(stored))))
	}
	return rec
}

// setType adds the type of an object to a span, which may be nil: the name that kube-apiserver's internal
// type has, such as *core.Node.
func setType(span *trace.Span, obj resource.Object) {
	if span == nil || obj == nil {
		return
	}
	name := fmt.Sprintf("%T", obj)
	if t := reflect.TypeOf(obj); t.Kind() == reflect.Pointer {
		dir, version := path.Split(t.Elem().PkgPath())
		if len(version) > 1 && version[0] == 'v' && version[1] >= '0' && version[1] <= '9' {
			name = "*" + path.Base(dir) + "." + t.Elem().Name()
		}
	}
	span.Set(trace.String("type", name))
}
