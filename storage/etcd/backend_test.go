package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/etcd/etcdtest"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open opens a backend on a cluster that is closed when the test ends and does
// not compact by itself.
func open(tb testing.TB, cluster *etcdtest.Cluster, change ...func(*Options)) *Backend {
	tb.Helper()
	opts := Options{Endpoints: cluster.Endpoints(), CompactInterval: -1}
	for _, f := range change {
		f(&opts)
	}
	b, err := Open(tb.Context(), opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := b.Close(); err != nil {
			tb.Errorf("Close: %v", err)
		}
	})
	return b
}

func create(tb testing.TB, b *Backend, key, value string) storage.KeyValue {
	tb.Helper()
	kv, err := b.Create(tb.Context(), key, []byte(value), 0)
	if err != nil {
		tb.Fatal(err)
	}
	return kv
}

func update(tb testing.TB, b *Backend, old storage.KeyValue, value string) storage.KeyValue {
	tb.Helper()
	kv, err := b.Update(tb.Context(), old.Key, []byte(value), old.ModRevision, 0)
	if err != nil {
		tb.Fatal(err)
	}
	return kv
}

func remove(tb testing.TB, b *Backend, old storage.KeyValue) int64 {
	tb.Helper()
	_, revision, err := b.Delete(tb.Context(), old.Key, old.ModRevision)
	if err != nil {
		tb.Fatal(err)
	}
	return revision
}

func wantErr(tb testing.TB, what string, err, want error) {
	tb.Helper()
	if !errors.Is(err, want) {
		tb.Errorf("%s: error %v, want %v", what, err, want)
	}
}

func TestOpenReportsWhatIsWrong(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	garbage := filepath.Join(dir, "garbage.pem")
	if err := os.WriteFile(garbage, []byte("not a certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(dir, "missing.pem")
	secure := []string{"https://127.0.0.1:1"}
	for name, c := range map[string]struct {
		opts Options
		text string
		is   error
	}{
		"no endpoints":     {opts: Options{}, text: "no endpoints"},
		"empty endpoint":   {opts: Options{Endpoints: []string{""}}, text: "empty"},
		"plain with files": {opts: Options{Endpoints: []string{"http://127.0.0.1:1"}, CAFile: garbage}, text: "https://"},
		"plain with TLS":   {opts: Options{Endpoints: []string{"127.0.0.1:1"}, TLS: &tls.Config{}}, text: "https://"},
		"mixed":            {opts: Options{Endpoints: []string{"https://127.0.0.1:1", "http://127.0.0.1:2"}}, text: "all https or none"},
		"key missing":      {opts: Options{Endpoints: secure, CertFile: garbage}, text: "both"},
		"files and TLS":    {opts: Options{Endpoints: secure, TLS: &tls.Config{}, CAFile: garbage}, text: "not both"},
		"CA not there":     {opts: Options{Endpoints: secure, CAFile: missing}, text: missing, is: fs.ErrNotExist},
		"CA garbage":       {opts: Options{Endpoints: secure, CAFile: garbage}, text: garbage},
		"cert not there":   {opts: Options{Endpoints: secure, CertFile: missing, KeyFile: missing}, text: missing, is: fs.ErrNotExist},
		"cert garbage":     {opts: Options{Endpoints: secure, CertFile: garbage, KeyFile: garbage}, text: garbage},
		"nobody there": {
			opts: Options{Endpoints: []string{"http://127.0.0.1:1", "http://127.0.0.1:2"}, DialTimeout: 200 * time.Millisecond},
			text: "http://127.0.0.1:1, http://127.0.0.1:2", is: storage.ErrUnavailable,
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Open(t.Context(), c.opts)
			if err == nil || !strings.Contains(err.Error(), c.text) || (c.is != nil && !errors.Is(err, c.is)) {
				t.Errorf("error %v, want one with %q, wrapping %v", err, c.text, c.is)
			}
			if name == "nobody there" && !strings.Contains(err.Error(), "connection refused") {
				t.Errorf("error %v does not name the cause", err)
			}
		})
	}
}

func TestOutdated(t *testing.T) {
	for version, want := range map[string]bool{
		"3.4.31": true, "3.5.9": true, "3.5.12": true, "3.5.13": false, "3.6.0-rc.1": false, "3.7.3": false, "4.0.0": false, "": false, "main": false,
	} {
		if got := isOutdated(version); got != want {
			t.Errorf("%q: %v", version, got)
		}
	}
}

func TestOpenEndsWithContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Open(ctx, Options{Endpoints: []string{"http://127.0.0.1:1"}})
	wantErr(t, "Open", err, context.Canceled)
}

func TestTLS(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t, etcdtest.TLS())
	files := cluster.TLSFiles()
	b := open(t, cluster, func(o *Options) { o.CAFile, o.CertFile, o.KeyFile = files.CA, files.Cert, files.Key })
	kv := create(t, b, "/registry/a", "1")
	w, err := b.Watch(t.Context(), "/registry/", kv.ModRevision-1)
	if err != nil {
		t.Fatal(err)
	}
	if batch, err := w.Next(t.Context()); err != nil || len(batch.Events) != 1 {
		t.Fatalf("Next: %v, %v", batch, err)
	}

	// Another cluster's authority; a certificate too many is no matter.
	other := etcdtest.Start(t, etcdtest.TLS()).TLSFiles()
	for name, opts := range map[string]Options{
		"wrong CA":             {CAFile: other.CA, CertFile: files.Cert, KeyFile: files.Key},
		"wrong certificate":    {CAFile: files.CA, CertFile: other.Cert, KeyFile: other.Key},
		"no certificate":       {CAFile: files.CA},
		"system's authorities": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts.Endpoints = cluster.Endpoints()
			var err error
			// On a busy machine not even one attempt to connect is over after a second.
			for opts.DialTimeout = time.Second; opts.DialTimeout < time.Minute; opts.DialTimeout *= 4 {
				_, err = Open(t.Context(), opts)
				wantErr(t, "Open", err, storage.ErrUnavailable)
				// A server that refuses our certificate says so and hangs up; on a
				// busy machine the end of the connection can overtake the reason.
				named := err != nil && strings.Contains(err.Error(), "tls: ")
				refused := err != nil && strings.HasSuffix(name, "certificate") &&
					(strings.Contains(err.Error(), "reset by peer") || strings.Contains(err.Error(), "broken pipe") || strings.Contains(err.Error(), "EOF"))
				if named || refused {
					return
				}
			}
			t.Errorf("error %v does not name the cause", err)
		})
	}
}

func TestWrites(t *testing.T) {
	t.Parallel()
	b := open(t, etcdtest.Start(t))
	ctx := t.Context()

	value := []byte("one")
	created, err := b.Create(ctx, "/registry/a", value, 0)
	if err != nil || created.CreateRevision != created.ModRevision || created.ModRevision < 2 {
		t.Fatalf("Create: %+v, %v", created, err)
	}
	value[0] = 'X'
	if string(created.Value) != "one" {
		t.Errorf("value handed out changes with the one passed in: %q", created.Value)
	}
	found, err := b.Create(ctx, "/registry/a", nil, 0)
	wantErr(t, "Create again", err, storage.ErrExists)
	if fmt.Sprint(found) != fmt.Sprint(created) {
		t.Errorf("in the way: %+v, want %+v", found, created)
	}

	updated := update(t, b, created, "two")
	if updated.CreateRevision != created.CreateRevision || updated.ModRevision <= created.ModRevision {
		t.Errorf("Update: %+v after %+v", updated, created)
	}
	for _, guard := range []int64{-1, 0, created.ModRevision, updated.ModRevision + 1} {
		found, err = b.Update(ctx, "/registry/a", nil, guard, 0)
		wantErr(t, fmt.Sprintf("Update at %d", guard), err, storage.ErrConflict)
		if fmt.Sprint(found) != fmt.Sprint(updated) {
			t.Errorf("there: %+v, want %+v", found, updated)
		}
		found, _, err = b.Delete(ctx, "/registry/a", guard)
		wantErr(t, fmt.Sprintf("Delete at %d", guard), err, storage.ErrConflict)
		if fmt.Sprint(found) != fmt.Sprint(updated) {
			t.Errorf("there: %+v, want %+v", found, updated)
		}
	}
	if got, err := b.Get(ctx, "/registry/a"); err != nil || fmt.Sprint(got) != fmt.Sprint(updated) {
		t.Errorf("Get: %+v, %v; want %+v", got, err, updated)
	}

	deleted, revision, err := b.Delete(ctx, "/registry/a", updated.ModRevision)
	if err != nil || fmt.Sprint(deleted) != fmt.Sprint(updated) || revision <= updated.ModRevision {
		t.Errorf("Delete: %+v, %d, %v", deleted, revision, err)
	}
	for _, guard := range []int64{0, updated.ModRevision} {
		_, err = b.Update(ctx, "/registry/a", nil, guard, 0)
		wantErr(t, "Update of nothing", err, storage.ErrNotFound)
		_, _, err = b.Delete(ctx, "/registry/a", guard)
		wantErr(t, "Delete of nothing", err, storage.ErrNotFound)
	}
	_, err = b.Get(ctx, "/registry/a")
	wantErr(t, "Get of nothing", err, storage.ErrNotFound)

	for key, want := range map[string]error{
		"": storage.ErrInvalidKey, "a\x00b": storage.ErrInvalidKey, strings.Repeat("k", storage.MaxKeyBytes+1): storage.ErrTooLarge,
	} {
		_, err := b.Create(ctx, key, nil, 0)
		wantErr(t, "Create", err, want)
		_, err = b.Update(ctx, key, nil, 1, 0)
		wantErr(t, "Update", err, want)
		_, err = b.Update(ctx, key, nil, 0, 0)
		wantErr(t, "Update", err, want)
		_, _, err = b.Delete(ctx, key, 1)
		wantErr(t, "Delete", err, want)
		_, err = b.Get(ctx, key)
		wantErr(t, "Get", err, want)
	}

	now, err := b.Revision(ctx)
	if err != nil || now != revision {
		t.Errorf("Revision: %d, %v; want %d", now, err, revision)
	}
}

func TestLargeValues(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	value := make([]byte, storage.MaxValueBytes)

	strict := open(t, etcdtest.Start(t))
	// 1.7 MB pass the limit of gRPC on the server, but not that of etcd.
	for _, size := range []int{1_700_000, 3 << 20, storage.MaxValueBytes, storage.MaxValueBytes + 1} {
		_, err := strict.Create(ctx, "/registry/a", make([]byte, size), 0)
		wantErr(t, fmt.Sprintf("%d bytes", size), err, storage.ErrTooLarge)
	}

	b := open(t, etcdtest.Start(t, etcdtest.Configure(func(c *embed.Config) { c.MaxRequestBytes = 10 << 20 })))
	kv, err := b.Create(ctx, "/registry/a", value, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = b.Update(ctx, "/registry/a", value, kv.ModRevision, 0); err != nil {
		t.Fatal(err)
	}
	w, err := b.Watch(ctx, "/registry/", kv.ModRevision)
	if err != nil {
		t.Fatal(err)
	}
	batch, err := w.Next(ctx)
	if err != nil || len(batch.Events) != 1 || len(batch.Events[0].KV.Value) != len(value) || len(batch.Events[0].Prev.Value) != len(value) {
		t.Errorf("%d events, %v", len(batch.Events), err)
	}
}

func TestPrefixesDoNotSeeEachOther(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	ctx := t.Context()
	backends := []*Backend{
		open(t, cluster, func(o *Options) { o.Prefix = "/one" }),
		open(t, cluster, func(o *Options) { o.Prefix = "two/../three/four/" }),
	}
	var watchers []storage.Watcher
	for _, b := range backends {
		w, err := b.Watch(ctx, "", 0)
		if err != nil {
			t.Fatal(err)
		}
		watchers = append(watchers, w)
	}
	for i, b := range backends {
		kv := create(t, b, "/registry/a", fmt.Sprint(i))
		if kv.Key != "/registry/a" {
			t.Errorf("created %q", kv.Key)
		}
		update(t, b, kv, fmt.Sprint(i, i))
	}
	for i, b := range backends {
		page, err := b.List(ctx, "", storage.ListOptions{})
		if err != nil || len(page.Items) != 1 || page.Items[0].Key != "/registry/a" || string(page.Items[0].Value) != fmt.Sprint(i, i) {
			t.Errorf("%d: list %+v, %v", i, page, err)
		}
		if n, _, err := b.Count(ctx, "/registry/"); err != nil || n != 1 {
			t.Errorf("%d: count %d, %v", i, n, err)
		}
		for _, e := range collect(t, watchers[i], 2) {
			if e.KV.Key != "/registry/a" || !strings.HasPrefix(string(e.KV.Value), fmt.Sprint(i)) {
				t.Errorf("%d: event %+v", i, e)
			}
		}
	}
	for _, name := range []string{"/one/a", "/three/four/a"} {
		resp, err := cluster.Client(t).Get(ctx, name)
		if err != nil || len(resp.Kvs) != 1 {
			t.Errorf("under its full name: %v, %v", resp, err)
		}
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	b := open(t, etcdtest.Start(t))
	kv := create(t, b, "/registry/a", "1")
	s, err := b.Status(t.Context())
	if err != nil || s.Engine != "etcd" || s.Revision != kv.ModRevision || s.SizeBytes <= 0 || s.ReadOnly != nil || s.CompactRevision != 0 {
		t.Errorf("%+v, %v", s, err)
	}
	update(t, b, kv, "2")
	if err := b.Compact(t.Context(), kv.ModRevision); err != nil {
		t.Fatal(err)
	}
	if s, err = b.Status(t.Context()); err != nil || s.CompactRevision != kv.ModRevision {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestCloseLeavesNothingBehind(t *testing.T) {
	cluster := etcdtest.Start(t)
	// Once it has served a client, etcd starts no more goroutines that stay.
	open(t, cluster).Close()
	before := goleak.IgnoreCurrent()
	b := open(t, cluster, func(o *Options) { o.CompactInterval = time.Hour })
	ctx := t.Context()
	create(t, b, "/registry/a", "1")

	waiting := make(chan error)
	for i := range 3 {
		w, err := b.Watch(ctx, "/registry/", int64(i)*1000)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for {
				if _, err := w.Next(ctx); err != nil {
					waiting <- err
					return
				}
			}
		}()
	}
	for range 3 {
		go func() {
			for i := 0; ; i++ {
				if _, err := b.Revision(ctx); err != nil {
					waiting <- err
					return
				}
			}
		}()
		go func() {
			for i := 0; ; i++ {
				if _, err := b.Create(ctx, fmt.Sprintf("/registry/%p-%d", &i, i), nil, time.Hour); err != nil {
					waiting <- err
					return
				}
			}
		}()
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	for range 9 {
		wantErr(t, "call under way", <-waiting, storage.ErrClosed)
	}

	_, err := b.Get(ctx, "/registry/a")
	wantErr(t, "Get", err, storage.ErrClosed)
	_, err = b.Create(ctx, "/registry/b", nil, 0)
	wantErr(t, "Create", err, storage.ErrClosed)
	_, err = b.Update(ctx, "/registry/b", nil, 0, 0)
	wantErr(t, "Update", err, storage.ErrClosed)
	_, _, err = b.Delete(ctx, "/registry/b", 1)
	wantErr(t, "Delete", err, storage.ErrClosed)
	_, err = b.List(ctx, "/", storage.ListOptions{})
	wantErr(t, "List", err, storage.ErrClosed)
	_, _, err = b.Count(ctx, "/")
	wantErr(t, "Count", err, storage.ErrClosed)
	for _, after := range []int64{0, 1} {
		_, err = b.Watch(ctx, "/", after)
		wantErr(t, "Watch", err, storage.ErrClosed)
	}
	_, err = b.Revision(ctx)
	wantErr(t, "Revision", err, storage.ErrClosed)
	_, err = b.Status(ctx)
	wantErr(t, "Status", err, storage.ErrClosed)
	wantErr(t, "Progress", b.Progress(ctx), storage.ErrClosed)
	wantErr(t, "Compact", b.Compact(ctx, 1), storage.ErrClosed)
	if err := b.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	goleak.VerifyNone(t, before)
}
