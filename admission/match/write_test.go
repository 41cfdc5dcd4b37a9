package match

import (
	"reflect"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/admission"
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
