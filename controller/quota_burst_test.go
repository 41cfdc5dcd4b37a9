package controller_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/apikeel/kelson/internal/testsize"
	"github.com/apikeel/kelson/kelsontest"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/etcd"
	"github.com/apikeel/kelson/storage/etcd/etcdtest"
	"github.com/apikeel/kelson/storage/postgres"
	"github.com/apikeel/kelson/storage/postgres/pgtest"
)

// However many write at once, to however many servers, there are never more objects than a quota allows,
// and what is deleted can be made again.
func TestQuotaIsNeverExceeded(t *testing.T) {
	t.Run("memory", func(t *testing.T) { burst(t, start(t)) })
	t.Run("disk", func(t *testing.T) { burst(t, start(t, kelsontest.Disk())) })
	open := func(t *testing.T, b storage.Backend, err error) kelsontest.Option {
		t.Helper()
		t.Cleanup(func() { _ = must(b, err)(t).Close() })
		return kelsontest.Backend(must(b, err)(t))
	}
	t.Run("two servers on etcd", func(t *testing.T) {
		members := etcdtest.Start(t)
		server := func() *cluster {
			b, err := etcd.Open(t.Context(), etcd.Options{Endpoints: members.Endpoints(), CompactInterval: -1})
			return start(t, open(t, b, err))
		}
		burst(t, server(), server())
	})
	t.Run("two servers on PostgreSQL", func(t *testing.T) {
		db := pgtest.Start(t)
		server := func() *cluster {
			b, err := postgres.Open(t.Context(), postgres.Options{DSN: db.DSN(), AllowNoSync: true, CompactInterval: -1})
			return start(t, open(t, b, err))
		}
		burst(t, server(), server())
	})
}

// burst lets 64 writers create and delete config maps of a namespace with a quota, and judges every state of
// the namespace by a watch.
func burst(t *testing.T, servers ...*cluster) {
	const hard, writers = 40, 64
	c := servers[0]
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c.namespace("limited")
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "quota"}, Spec: corev1.ResourceQuotaSpec{
		Hard: corev1.ResourceList{"count/configmaps": resource.MustParse(fmt.Sprint(hard))},
	}}
	must(c.CoreV1().ResourceQuotas("limited").Create(ctx, quota, metav1.CreateOptions{}))(t)
	c.until(corev1.SchemeGroupVersion.WithResource("resourcequotas"), "limited", isCounted)

	list := must(c.CoreV1().ConfigMaps("limited").List(ctx, metav1.ListOptions{}))(t)
	events := must(c.CoreV1().ConfigMaps("limited").Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion}))(t)
	defer events.Stop()
	there := map[string]bool{}
	for i := range list.Items {
		there[list.Items[i].Name] = true
	}
	most, last := len(there), make(chan struct{})
	go func() {
		defer close(last)
		for e := range events.ResultChan() {
			m, ok := e.Object.(*corev1.ConfigMap)
			switch {
			case !ok:
				t.Errorf("the watch ended with %v", e.Object)
				return
			case e.Type == watch.Deleted:
				delete(there, m.Name)
			default:
				there[m.Name] = true
			}
			most = max(most, len(there))
			if m.Name == "last" {
				return
			}
		}
	}()

	var created, refused atomic.Int64
	var writing sync.WaitGroup
	rounds := testsize.Pick(3, 12, 200)
	for w := range writers {
		writing.Go(func() {
			maps := servers[w%len(servers)].CoreV1().ConfigMaps("limited")
			for i := range rounds {
				name := fmt.Sprintf("m-%d-%d", w, i)
				_, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
				switch {
				case err == nil:
					created.Add(1)
				case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota"):
					refused.Add(1)
					continue
				default:
					t.Errorf("create: %v", err)
					return
				}
				// Two of three make room, at a moment when others are being counted.
				if (w+i)%3 != 0 {
					if err := maps.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
						t.Errorf("delete: %v", err)
					}
				}
			}
		})
	}
	writing.Wait()
	t.Logf("%d created, %d refused", created.Load(), refused.Load())
	if refused.Load() == 0 {
		t.Error("nothing was refused: the quota was never reached")
	}
	// Everything is deleted, and the whole quota is free again.
	if err := c.CoreV1().ConfigMaps("limited").DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	if len(servers) == 1 || testsize.Long() {
		c.until(corev1.SchemeGroupVersion.WithResource("resourcequotas"), "limited", isFree)
	}
	if err := c.CoreV1().ResourceQuotas("limited").Delete(ctx, "quota", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	must(c.CoreV1().ConfigMaps("limited").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "last"}}, metav1.CreateOptions{}))(t)
	<-last
	if most > hard {
		t.Errorf("there were %d config maps at once, the quota allows %d", most, hard)
	}
}

// isCounted and isFree report whether the quota of burst has been counted, and whether no more than the
// config map that every namespace has is used.
func isCounted(objs map[string]*unstructured.Unstructured) bool { return usedMaps(objs) != "" }

func isFree(objs map[string]*unstructured.Unstructured) bool {
	return usedMaps(objs) == "0" || usedMaps(objs) == "1"
}

func usedMaps(objs map[string]*unstructured.Unstructured) string {
	used, _, _ := unstructured.NestedString(objs["limited/quota"].Object, "status", "used", "count/configmaps")
	return used
}
