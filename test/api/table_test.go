package api

import (
	"slices"
	"strings"
	"testing"

	"github.com/apikeel/kelson/internal/polltest"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	storagev1 "k8s.io/api/storage/v1"

	"github.com/apikeel/kelson/kelsontest"
)

// TestTables has rows that depend on each other.
func TestTables(t *testing.T) {
	t.Parallel()
	c := client(t, kelsontest.Start(t, kelsontest.NoControllers()))
	rows := func(path string) (names []string) {
		t.Helper()
		var table metav1.Table
		ok(t, c.Discovery().RESTClient().Get().AbsPath(path).SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Do(t.Context()).Into(&table))
		for _, row := range table.Rows {
			names = append(names, row.Cells[0].(string))
		}
		return names
	}
	schemas := "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas"
	var names []string
	polltest.Until(t, "flow schemas", func() bool {
		names = rows(schemas)
		return slices.Contains(names, "catch-all") && slices.Contains(names, "exempt") && slices.Contains(names, "system-nodes")
	})
	if names[0] != "exempt" || names[len(names)-1] != "catch-all" || slices.IsSorted(names) {
		t.Errorf("flow schemas are not in the order in which they match: %q", names)
	}

	for _, name := range []string{"b", "a", "plain"} {
		class := &storagev1.StorageClass{ObjectMeta: named(name), Provisioner: "example.com/p"}
		if name != "plain" {
			class.Annotations = map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}
		}
		must(c.StorageV1().StorageClasses().Create(t.Context(), class, metav1.CreateOptions{}))(t)
	}
	classes := "/apis/storage.k8s.io/v1/storageclasses"
	a := must(c.StorageV1().StorageClasses().Get(t.Context(), "a", metav1.GetOptions{}))(t)
	b := must(c.StorageV1().StorageClasses().Get(t.Context(), "b", metav1.GetOptions{}))(t)
	if a.CreationTimestamp.Before(&b.CreationTimestamp) {
		t.Fatal("a was made after b")
	}
	// It is the newest default, or the first by name if they were made in the same
	// second, and nobody knows from one object alone.
	if got := rows(classes); !slices.Equal(got, []string{"a (default)", "b", "plain"}) {
		t.Errorf("storage classes: %q", got)
	}
	if got := rows(classes + "/a"); !slices.Equal(got, []string{"a"}) {
		t.Errorf("a storage class: %q", got)
	}

	_, err := c.CertificatesV1().PodCertificateRequests("default").List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.namespace=default"})
	if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "field label not supported: metadata.namespace") {
		t.Errorf("a selector for the namespace: %v", err)
	}
}
