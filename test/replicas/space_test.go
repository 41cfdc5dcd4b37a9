package replicas

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/internal/testsize"
)

// TestNoSpace fills etcd up to its quota. All servers refuse writes with 507, read on and
// delete, and write again when there is space.
func TestNoSpace(t *testing.T) {
	if !testsize.Long() {
		t.Skip("takes long; set KELSON_LONG=1 to run it")
	}
	f := newFleet(t, func(f *fleet) { f.quota = 48 << 20 })
	ctx := t.Context()
	large := strings.Repeat("x", 900<<10)
	create := func(i int, name, value string) error {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"value": value}}
		_, err := f.client(i).CoreV1().ConfigMaps("default").Create(ctx, cm, metav1.CreateOptions{})
		return err
	}
	refused := func(err error) bool {
		status, ok := err.(apierrors.APIStatus)
		return ok && status.Status().Code == http.StatusInsufficientStorage
	}
	var written []string
	for n := 0; ; n++ {
		if n == 200 {
			t.Fatal("200 large objects fit, want etcd to be full")
		}
		name := fmt.Sprintf("large-%d", n)
		err := create(n%size, name, large)
		if refused(err) {
			break
		}
		if err == nil {
			written = append(written, name)
		}
	}
	for i := range size {
		maps := f.client(i).CoreV1().ConfigMaps("default")
		if err := create(i, fmt.Sprintf("small-%d", i), "x"); !refused(err) {
			t.Errorf("server %d, full: create: got %v, want 507", i, err)
		}
		for _, name := range written[i:] { // servers before this one have deleted the others
			if cm, err := maps.Get(ctx, name, metav1.GetOptions{}); err != nil || len(cm.Data["value"]) != len(large) {
				t.Errorf("server %d, full: get %s: %v", i, name, err)
			}
		}
		if err := maps.Delete(ctx, written[i], metav1.DeleteOptions{}); err != nil {
			t.Errorf("server %d, full: delete: %v", i, err)
		}
	}
	resp, err := f.etcd.Get(ctx, "nothing")
	if err == nil {
		_, err = f.etcd.Compact(ctx, resp.Header.Revision)
	}
	for j := range size {
		if err == nil {
			_, err = f.etcd.Defragment(ctx, "http://"+f.direct[j].addr())
		}
	}
	if err == nil {
		_, err = f.etcd.AlarmDisarm(ctx, &clientv3.AlarmMember{})
	}
	if err != nil {
		t.Fatal(err)
	}
	for i := range size {
		for deadline := time.Now().Add(startTimeout); ; pause(20 * time.Millisecond) {
			err := create(i, fmt.Sprintf("again-%d", i), "x")
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("server %d, with space: create: %v", i, err)
			}
		}
	}
}
