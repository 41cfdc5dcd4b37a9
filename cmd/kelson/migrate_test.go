//go:build unix

package main

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/storage/etcd/etcdtest"
	"github.com/apikeel/kelson/storage/postgres/pgtest"
	"github.com/apikeel/kelson/storage/transfer"
)

// TestMigrate moves a folder into an etcd, resumes that, and moves it back,
// and from there to another folder.
func TestMigrate(t *testing.T) {
	t.Parallel()
	temp := t.TempDir()
	first, second, third := filepath.Join(temp, "first"), filepath.Join(temp, "second"), filepath.Join(temp, "third")
	fillFolder(t, first, 300)
	cluster := etcdtest.Start(t, etcdtest.TLS())
	url := strings.Join(cluster.Endpoints(), ",")
	files := cluster.TLSFiles()
	secure := []string{"--etcd-cafile", files.CA, "--etcd-certfile", files.Cert, "--etcd-keyfile", files.Key}
	migrate := func(args ...string) []string { return append(append([]string{"migrate"}, args...), secure...) }

	r := must(t, "Copied 300 keys", migrate("--from", first, "--to", url)...)
	if !strings.Contains(r.out, "Both are the same") || !strings.Contains(r.out, "list again") {
		t.Errorf("it says %q", r.out)
	}
	if r := kelson(t, migrate("--from", first, "--to", url)...); r.code != exitError || !strings.Contains(r.err, "the target holds 300 keys already") {
		t.Errorf("into an etcd that is not empty: %+v", r)
	}
	client := cluster.Client(t)
	if _, err := client.Delete(t.Context(), "/registry/things/default/c-0100"); err != nil {
		t.Fatal(err)
	}
	must(t, "299 of them were there already", migrate("--from", first, "--to", url, "--resume")...)
	if _, err := client.Put(t.Context(), "/registry/things/default/c-0100", "other"); err != nil {
		t.Fatal(err)
	}
	if r := kelson(t, migrate("--from", first, "--to", url, "--resume")...); r.code != exitError || !strings.Contains(r.err, "c-0100") {
		t.Errorf("resumed into another store: %+v", r)
	}

	must(t, "Copied 300 keys", migrate("--from", url, "--to", second)...)
	must(t, "300 keys", append([]string{"snapshot", "save", "--storage", "etcd", "--etcd-servers", url, filepath.Join(temp, "etcd.snap")}, secure...)...)
	must(t, "Copied 300 keys", "migrate", "--from", second, "--to", third)
	values, _, expiring := contents(t, first)
	values["/registry/things/default/c-0100"] = "other"
	values2, revisions2, expiring2 := contents(t, second)
	values3, revisions3, expiring3 := contents(t, third)
	if !maps.Equal(values, values2) || !maps.Equal(values, values3) || !maps.Equal(revisions2, revisions3) {
		t.Error("what came back is not what went out")
	}
	if !maps.Equal(expiring, expiring2) || !maps.Equal(expiring, expiring3) {
		t.Error("what expires changed on the way")
	}

	// Below another prefix there is another store.
	must(t, "Copied 300 keys", migrate("--from", first, "--to", url, "--etcd-prefix", "other")...)
	resp, err := client.Get(t.Context(), "/other/things/default/c-0101")
	if err != nil || resp.Count != 1 {
		t.Errorf("below another prefix: %v, %v", resp, err)
	}

	// A folder that is served is not copied behind the server's back.
	s := serve(t, "--data-dir", second)
	if r := kelson(t, "migrate", "--from", second, "--to", filepath.Join(temp, "no")); r.code != exitError || !strings.Contains(r.err, "in use") {
		t.Errorf("from a folder in use: %+v", r)
	}
	s.cmd.Process.Kill()
}

func TestMeter(t *testing.T) {
	for terminal, want := range map[bool]string{
		true:  "\r\x1b[Ksaved 0 keys, 0 bytes\r\x1b[Kcopied 5 of 10 keys, 1.5 KiB\r\x1b[K",
		false: "saved 0 keys, 0 bytes\ncopied 5 of 10 keys, 1.5 KiB\n",
	} {
		shown := make(chan string)
		m := &meter{w: writerFunc(func(p []byte) { shown <- string(p) }), verb: "saved", terminal: terminal, quit: make(chan struct{}), done: make(chan struct{})}
		tick := make(chan time.Time)
		go func() {
			defer close(shown)
			defer close(m.done)
			m.show(tick)
		}()
		tick <- time.Time{}
		got := <-shown
		m.set("copied", transfer.Progress{Keys: 5, Total: 10, Bytes: 1536})
		tick <- time.Time{}
		got += <-shown
		go m.stop()
		for text := range shown {
			got += text
		}
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

type writerFunc func([]byte)

func (f writerFunc) Write(p []byte) (int, error) {
	f(p)
	return len(p), nil
}

func TestSize(t *testing.T) {
	for n, want := range map[int64]string{0: "0 bytes", 1023: "1023 bytes", 1024: "1.0 KiB", 5 << 20: "5.0 MiB", 1<<63 - 1: "8.0 EiB"} {
		if got := size(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

// TestMigratePostgres moves a folder into a PostgreSQL, from there into an etcd, back
// into another schema, and from there to a folder; and takes a snapshot on the way.
func TestMigratePostgres(t *testing.T) {
	t.Parallel()
	db := pgtest.Start(t)
	temp := t.TempDir()
	first, last := filepath.Join(temp, "first"), filepath.Join(temp, "last")
	fillFolder(t, first, 300)
	etcd := strings.Join(etcdtest.Start(t).Endpoints(), ",")
	migrate := func(args ...string) []string {
		return append([]string{"migrate", "--storage-allow-nosync"}, args...)
	}

	if r := kelson(t, "migrate", "--from", first, "--to", db.DSN()); r.code != exitError || !strings.Contains(r.err, "fsync=off") {
		t.Errorf("into a database that does not sync: got %+v, want a refusal that names fsync=off", r)
	}
	r := must(t, "Copied 300 keys", migrate("--from", first, "--to", db.DSN())...)
	if !strings.Contains(r.out, "Both are the same") || !strings.Contains(r.out, "list again") {
		t.Errorf("got %q, want that both are the same and that clients must list again", r.out)
	}
	if r := kelson(t, migrate("--from", first, "--to", db.DSN())...); r.code != exitError || !strings.Contains(r.err, "the target holds 300 keys already") {
		t.Errorf("into a database that is not empty: got %+v, want a refusal", r)
	}
	must(t, "300 of them were there already", migrate("--from", first, "--to", db.DSN(), "--resume")...)
	file := filepath.Join(temp, "dsn")
	if err := os.WriteFile(file, []byte(db.DSN()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	must(t, "300 keys", "snapshot", "save", "--storage-dsn-file", file, "--storage-allow-nosync", filepath.Join(temp, "pg.snap"))
	must(t, "Copied 300 keys", migrate("--from", db.DSN(), "--to", etcd)...)
	must(t, "Copied 300 keys", migrate("--from", etcd, "--to", db.DSN(), "--storage-schema", "other")...)
	must(t, "Copied 300 keys", migrate("--from", db.DSN(), "--storage-schema", "other", "--to", last)...)
	values, _, expiring := contents(t, first)
	values2, _, expiring2 := contents(t, last)
	if !maps.Equal(values, values2) || !maps.Equal(expiring, expiring2) {
		t.Error("what came back is not what went out")
	}
}
