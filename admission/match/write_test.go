package match

import (
	"errors"
	"reflect"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/admission/admissiontest"
	"github.com/apikeel/kelson/builtin/certificates"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// TestReplaceKeepsFieldsThatAVersionDoesNotHave changes an object in a version without some
// fields of the stored one.
func TestReplaceKeepsFieldsThatAVersionDoesNotHave(t *testing.T) {
	def := certificates.PodRequests(nil)
	for i := range def.Versions {
		def.Versions[i].Off = false
	}
	catalog, err := resource.NewCatalog(resource.Group{Name: def.Group, Resources: []resource.Definition{def}})
	if err != nil {
		t.Fatal(err)
	}
	served, _ := catalog.Lookup(def.Group, "v1beta1", def.Resource)
	obj := &certificatesv1beta1.PodCertificateRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: certificatesv1beta1.PodCertificateRequestSpec{SignerName: "s"},
	}
	//lint:ignore SA1019 clients still use the older form
	obj.Spec.PKIXPublicKey, obj.Spec.ProofOfPossession = []byte("key"), []byte("proof")
	want := obj.DeepCopy()
	want.Labels = map[string]string{"a": "b"}
	w := New(&admission.Attributes{Served: served, Object: obj, Kind: served.GroupVersionKind(), Request: &request.Request{}}, nil)
	for _, form := range w.forms() {
		changed, _, err := form.Objects()
		if err != nil {
			t.Fatal(err)
		}
		changed = changed.DeepCopyObject()
		if _, isV1 := changed.(*certificatesv1.PodCertificateRequest); isV1 != (form.Kind.Version == "v1") {
			t.Fatalf("got %T for %v", changed, form.Kind)
		}
		changed.(metav1.Object).SetLabels(want.Labels)
		if err := form.Replace(changed); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(obj, want) {
			t.Errorf("changed in %s: got %+v, want %+v", form.Kind.Version, obj, want)
		}
	}
}

// heldMemory is an admission.Memory that notes what it is asked for.
type heldMemory struct {
	copies  []int64
	decoded []string
	err     error
}

func (m *heldMemory) HoldPatch(bytes int64) error {
	m.copies = append(m.copies, bytes)
	return m.err
}

func (m *heldMemory) HoldAnswer(int64) error { return m.err }

func (m *heldMemory) Settle(bool) {}

func (m *heldMemory) HoldDecoded(text []byte) error {
	m.decoded = append(m.decoded, string(text))
	return m.err
}

// TestPatchesHoldMemory checks that memory is asked for before a patch makes a large object of a
// small one, and that a refusal is what the client gets.
func TestPatchesHoldMemory(t *testing.T) {
	def := certificates.PodRequests(nil)
	catalog, err := resource.NewCatalog(resource.Group{Name: def.Group, Resources: []resource.Definition{def}})
	if err != nil {
		t.Fatal(err)
	}
	served, _ := catalog.Lookup(def.Group, "v1", def.Resource)
	memory := &heldMemory{}
	w := New(&admission.Attributes{
		Served: served, Object: &certificatesv1.PodCertificateRequest{}, Kind: served.GroupVersionKind(), Request: &request.Request{}, Memory: memory,
	}, nil)
	form := w.forms()[0]
	const text = `{"metadata":{"name":"a","annotations":{"a":"b"}}}`
	patch := func(ops string) jsonpatch.Patch {
		p, err := jsonpatch.DecodePatch([]byte(ops))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	double := `{"op":"copy","from":"/metadata/annotations/a","path":"/metadata/annotations/b"}`
	for ops, want := range map[string]int{`[{"op":"add","path":"/metadata/labels","value":{}}]`: 0, "[" + double + "]": 1} {
		memory.copies = nil
		if _, err := form.Apply([]byte(text), patch(ops)); err != nil || len(memory.copies) != want {
			t.Errorf("%.80s: memory for %d, %v, want %d times", ops, memory.copies, err, want)
		}
	}
	if _, err := form.Decode([]byte(text), false); err != nil || !reflect.DeepEqual(memory.decoded, []string{text}) {
		t.Errorf("decoding: memory for %q, %v", memory.decoded, err)
	}
	memory.err = errors.New("busy")
	if _, err := form.Apply([]byte(text), patch("["+double+"]")); err != memory.err {
		t.Errorf("a patch without memory: got %v", err)
	}
	if _, err := form.Decode([]byte(text), false); err != memory.err {
		t.Errorf("decoding without memory: got %v", err)
	}
}

// TestAFailedConversionIsNotTriedAgain: a conversion may wait for long before it fails, and many policies
// ask for the same form.
func TestAFailedConversionIsNotTriedAgain(t *testing.T) {
	catalog := admissiontest.Catalog()
	tries, failed := 0, errors.New("failed")
	admissiontest.OnConversion(catalog, func() error {
		tries++
		return failed
	})
	w := New(admissiontest.Write(catalog, admission.Create, "v1", "widgets", admissiontest.Widget("w", 5), nil), nil)
	own, beta := w.forms()[0], w.forms()[1]
	for range 2 {
		if _, _, err := beta.Objects(); !errors.Is(err, failed) || tries != 1 {
			t.Errorf("got %v after %d conversions, want %v after one", err, tries, failed)
		}
		if _, _, err := beta.Values(); !errors.Is(err, failed) || tries != 1 {
			t.Errorf("as values: got %v after %d conversions, want %v after one", err, tries, failed)
		}
	}
	failed = nil
	if err := own.Replace(admissiontest.Widget("w", 6)); err != nil {
		t.Fatal(err)
	}
	if object, _, err := beta.Objects(); err != nil || object == nil || tries != 2 {
		t.Errorf("another object: got %v, %v after %d conversions", object, err, tries)
	}
}
