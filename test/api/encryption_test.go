package api

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/apikeel/kelson/kelsontest"
)

// TestObjectsWhoseKeyIsGone takes the key of a secret out of the file of encryption. The
// secret cannot be read then, although it is in the cache; lists and watches go on; and it
// goes by a delete that ignores that it cannot be read, unless the gate is off.
func TestObjectsWhoseKeyIsGone(t *testing.T) {
	t.Parallel()
	for _, on := range []bool{true, false} {
		t.Run(fmt.Sprintf("AllowUnsafeMalformedObjectDeletion=%v", on), func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			file := filepath.Join(t.TempDir(), "encryption.yaml")
			encryptWith := func(provider string) {
				text := "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  providers:\n" +
					"  - " + provider + ": {keys: [{name: k, secret: MDEyMzQ1Njc4OWFiY2RlZg==}]}\n"
				if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				if err := os.Rename(file+".new", file); err != nil {
					t.Fatal(err)
				}
			}
			encryptWith("aesgcm")
			server := kelsontest.Start(t, kelsontest.Encryption(file), kelsontest.FeatureGates(map[string]bool{"AllowUnsafeMalformedObjectDeletion": on}))
			client, err := kubernetes.NewForConfig(server.Config())
			if err != nil {
				t.Fatal(err)
			}
			secrets := client.CoreV1().Secrets("default")
			create := func(name string) *corev1.Secret {
				t.Helper()
				made, err := secrets.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{"example.com/held"}}}, metav1.CreateOptions{})
				if err != nil {
					t.Fatal(err)
				}
				return made
			}
			old := create("old")
			events, err := secrets.Watch(ctx, metav1.ListOptions{ResourceVersion: old.ResourceVersion})
			if err != nil {
				t.Fatal(err)
			}
			defer events.Stop()
			next := func(want watch.EventType, name string) {
				t.Helper()
				select {
				case ev := <-events.ResultChan():
					if s, ok := ev.Object.(*corev1.Secret); !ok || ev.Type != want || s.Name != name {
						t.Fatalf("got event %v, want %s of %s", ev, want, name)
					}
				case <-ctx.Done():
					t.Fatalf("got no event, want %s of %s", want, name)
				}
			}

			encryptWith("aescbc")
			why := "Internal error occurred: StorageError: corrupt object, Code: 7, Key: /secrets/default/old, ResourceVersion: 0, AdditionalErrorMsg: " +
				"data from the storage is not transformable revision=0: no matching prefix found"
			if !on {
				why = "Internal error occurred: no matching prefix found"
			}
			err = wait.PollUntilContextCancel(ctx, 10*time.Millisecond, true, func(ctx context.Context) (bool, error) {
				_, err = secrets.Get(ctx, "old", metav1.GetOptions{})
				return err != nil, nil
			})
			if err != nil {
				t.Fatal("the secret can be read although its key is gone")
			}
			get := func(want string) {
				t.Helper()
				if _, err := secrets.Get(ctx, "old", metav1.GetOptions{}); err == nil || err.Error() != want {
					t.Errorf("get: got %v, want %s", err, want)
				}
			}
			get(why)
			create("new")
			next(watch.Added, "new")
			if _, err := secrets.Get(ctx, "new", metav1.GetOptions{}); err != nil {
				t.Errorf("get of a new secret: got %v, want none", err)
			}
			if list, err := secrets.List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) != 2 {
				t.Errorf("list: got %v, %v, want two secrets from the cache", list, err)
			}
			if err := secrets.Delete(ctx, "old", metav1.DeleteOptions{}); err == nil || err.Error() != why {
				t.Errorf("delete: got %v, want %s", err, why)
			}
			unsafe := metav1.DeleteOptions{IgnoreStoreReadErrorWithClusterBreakingPotential: new(true)}
			err = secrets.Delete(ctx, "old", unsafe)
			if !on {
				if err == nil || err.Error() != why {
					t.Errorf("unsafe delete with the gate off: got %v, want %s", err, why)
				}
				get(why)
				return
			}
			if err != nil {
				t.Fatalf("unsafe delete: got %v, want none", err)
			}
			next(watch.Deleted, "old")
			get(`secrets "old" not found`)
			if err := secrets.Delete(ctx, "new", unsafe); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), "decodable from storage") {
				t.Errorf("unsafe delete of what can be read: got %v, want a conflict", err)
			}
		})
	}
}
