package rest

import (
	"encoding/json"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/wire"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// listable checks that a list can be read in every format.
func listable(t *testing.T, h *Handler, path, after string) {
	t.Helper()
	for _, accept := range []string{wire.TypeJSON, wire.TypeYAML, wire.TypeProtobuf, wire.TypeCBOR, "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"} {
		a := doCBOR(t, h, "GET", path, "", "Accept", accept)
		isText := accept != wire.TypeProtobuf && accept != wire.TypeCBOR
		if a.code != 200 || isText && !utf8.ValidString(a.body) || accept == wire.TypeJSON && !json.Valid([]byte(a.body)) {
			t.Errorf("after %s the list as %s is: %d %.200q", after, accept, a.code, a.body)
		}
	}
}

// TestRawJSONIsUTF8 sends raw JSON with a byte that is not UTF-8, which is replaced as in
// strings, or refused in protobuf.
func TestRawJSONIsUTF8(t *testing.T) {
	h, _ := serve(t, func(def *resource.Definition) {
		def.Versions[0].New = func() resource.Object { return new(appsv1.ControllerRevision) }
		def.Versions[0].NewList = func() runtime.Object { return new(appsv1.ControllerRevisionList) }
	})
	const bad = "{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"a\"},\"data\":{\"k\":\"\xff\xfe\"},\"revision\":1}"
	for _, c := range []struct{ method, path, body, contentType string }{
		{"POST", "", bad, wire.TypeJSON}, {"PUT", "/a", bad, wire.TypeJSON}, {"POST", "", bad, wire.TypeYAML},
		{"PATCH", "/a", "{\"data\":{\"k\":\"\xff\"}}", "application/merge-patch+json"}, {"PATCH", "/a", "{\"data\":{\"k\":\"\xff\"}}", "application/strategic-merge-patch+json"},
		{"PATCH", "/a", "[{\"op\":\"add\",\"path\":\"/data\",\"value\":{\"k\":\"\xff\"}}]", "application/json-patch+json"},
	} {
		a := do(t, h, c.method, configMaps+c.path, c.body, "Content-Type", c.contentType)
		if a.code >= 500 {
			t.Errorf("%s %s: got %d %s", c.method, c.contentType, a.code, a.body)
		}
		listable(t, h, configMaps, c.method+" "+c.contentType)
	}
	for _, raw := range []string{"{\"a\":\"\xff\"}", "{", "", "x"} {
		revision := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Data: runtime.RawExtension{Raw: []byte(raw)}}
		body, err := revision.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		a := do(t, h, "POST", configMaps, string(wire.AppendEnvelope(nil, "v1", "ConfigMap", body)), "Content-Type", wire.TypeProtobuf)
		if a.code != 400 {
			t.Errorf("%q in protobuf: got %d %s, want 400", raw, a.code, a.body)
		}
		listable(t, h, configMaps, raw+" in protobuf")
	}
}

// TestTimesCanBeWritten sends times that RFC 3339 has no form for.
func TestTimesCanBeWritten(t *testing.T) {
	h, _ := serve(t, func(def *resource.Definition) {
		def.Versions[0].New = func() resource.Object { return new(coordinationv1.Lease) }
		def.Versions[0].NewList = func() runtime.Object { return new(coordinationv1.LeaseList) }
	})
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: time.Date(126756924, 1, 1, 0, 0, 0, 0, time.UTC)}}}
	raw, err := lease.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	do(t, h, "POST", configMaps, `{"metadata":{"name":"b"}}`)
	for _, c := range []struct{ method, path, body, contentType string }{
		{"POST", "", string(wire.AppendEnvelope(nil, "v1", "ConfigMap", raw)), wire.TypeProtobuf},
		{"POST", "", `{"metadata":{"name":"a"},"spec":{"renewTime":"9999-12-31T23:59:59.000000-01:00"}}`, wire.TypeJSON},
		{"PUT", "/b", "metadata: {name: b}\nspec: {renewTime: \"9999-12-31T23:59:59.000000-01:00\"}\n", wire.TypeYAML},
		{"PATCH", "/b", `{"spec":{"acquireTime":"0000-01-01T00:00:00.000000+01:00"}}`, "application/merge-patch+json"},
		{"PATCH", "/b", `{"spec":{"acquireTime":"0000-01-01T00:00:00.000000+01:00"}}`, "application/strategic-merge-patch+json"},
	} {
		if a := do(t, h, c.method, configMaps+c.path, c.body, "Content-Type", c.contentType); a.code != 400 {
			t.Errorf("%s as %s: got %d %s, want 400", c.method, c.contentType, a.code, a.body)
		}
		listable(t, h, configMaps, c.method+" "+c.contentType)
	}
}
