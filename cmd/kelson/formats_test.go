//go:build unix

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"k8s.io/client-go/rest"
)

// A release keeps in testdata/formats what it writes: a data folder, a snapshot, values
// that are encrypted, and a token. Every later one has to read it. To keep that of a new
// release: go test ./cmd/kelson -run TestFormats -keep-formats=v0.2.0
var keepFormats = flag.String("keep-formats", "", "write testdata/formats/`version`.tar.gz")

// What is stored, in the order in which it is made.
var formatObjects = []struct{ collection, name, body string }{
	{"/api/v1/namespaces", "shop", `{"metadata":{"name":"shop","labels":{"team":"red"}}}`},
	{"/api/v1/namespaces/shop/configmaps", "web", `{"metadata":{"name":"web"},"data":{"a":"1","text":"line\nline ü"},"binaryData":{"b":"AAEC/w=="}}`},
	{"/api/v1/namespaces/shop/secrets", "key", `{"metadata":{"name":"key"},"stringData":{"password":"swordfish"}}`},
	{"/api/v1/namespaces/shop/services", "web", `{"metadata":{"name":"web"},"spec":{"type":"NodePort","ports":[{"port":80}]}}`},
	{"/api/v1/namespaces/shop/serviceaccounts", "robot", `{"metadata":{"name":"robot"}}`},
	{"/apis/apps/v1/namespaces/shop/deployments", "web", `{"metadata":{"name":"web"},"spec":{"replicas":3,"selector":{"matchLabels":{"app":"web"}},"template":{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"c","image":"web:1"}]}}}}`},
	{"/apis/rbac.authorization.k8s.io/v1/clusterroles", "reader", `{"metadata":{"name":"reader"},"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]}`},
	{"/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "toys.example.com", `{"metadata":{"name":"toys.example.com"},"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"toys","singular":"toy","kind":"Toy"},
		"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"size":{"type":"integer"}}}}}}}]}}`},
	{"/apis/example.com/v1/namespaces/shop/toys", "ball", `{"apiVersion":"example.com/v1","kind":"Toy","metadata":{"name":"ball"},"spec":{"size":4}}`},
}

const encryptionConfig = `apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - aescbc: {keys: [{name: one, secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=}]}
  - identity: {}
`

func TestFormats(t *testing.T) {
	t.Parallel()
	if *keepFormats != "" {
		writeFormats(t, filepath.Join("testdata", "formats", *keepFormats+".tar.gz"))
	}
	kept, err := filepath.Glob("testdata/formats/*.tar.gz")
	if err != nil || len(kept) == 0 {
		t.Fatalf("got %d files and error %v, want one of each release", len(kept), err)
	}
	for _, file := range kept {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".tar.gz"), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			unpack(t, file, dir)
			in := func(name string) string { return filepath.Join(dir, name) }
			compareFormats(t, in("data"), in("encryption.yaml"), in("objects.json"), read(t, in("token")))
			// The snapshot becomes a new folder, whose keys are others: what is encrypted in
			// it is read, and the token is not known there.
			must(t, "", "snapshot", "restore", "--data-dir", in("restored"), in("backup.snap"))
			compareFormats(t, in("restored"), in("encryption.yaml"), in("objects.json"), "")
		})
	}
}

// compareFormats serves a folder, and compares its objects with those that were kept.
// Token, if it is not empty, has to be that of the account robot.
func compareFormats(t *testing.T, data, encryption, objects, token string) {
	t.Helper()
	s := serve(t, "--data-dir", data, "--encryption-provider-config", encryption)
	c := newClient(t, filepath.Join(data, "kubeconfig"))
	c.ready()
	var want map[string]any
	if err := json.Unmarshal([]byte(read(t, objects)), &want); err != nil {
		t.Fatal(err)
	}
	for path := range want {
		var got any
		if err := json.Unmarshal([]byte(c.get(path)), &got); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want[path]) {
			t.Errorf("%s: got\n%v\nwant\n%v", path, got, want[path])
		}
	}
	if token != "" {
		config := rest.AnonymousClientConfig(c.config)
		config.BearerToken = token
		if _, text := clientFor(t, config).do("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", `{}`); !strings.Contains(text, `"system:serviceaccount:shop:robot"`) {
			t.Errorf("the token is not known: %s", text)
		}
	}
	// It can be written to as well.
	if code, text := c.do("POST", "/api/v1/namespaces/shop/configmaps", `{"metadata":{"name":"new"}}`); code != 201 {
		t.Errorf("create: got %d, %s, want 201", code, text)
	}
	if code := s.end(syscall.SIGTERM); code != exitOK || strings.Contains(s.log.String(), "level=ERROR") {
		t.Errorf("got exit code %d, want 0, and no errors in\n%s", code, s.log.String())
	}
}

// writeFormats makes the file that this version leaves to later ones.
func writeFormats(t *testing.T, file string) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	write := func(name string, content []byte) {
		if err := os.WriteFile(in(name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("encryption.yaml", []byte(encryptionConfig))
	s := serve(t, "--data-dir", in("data"), "--encryption-provider-config", in("encryption.yaml"), "--history", "24h")
	c := newClient(t, in("data/kubeconfig"))
	c.ready()
	for _, o := range formatObjects {
		for { // a kind that was just defined takes a moment
			code, text := c.do("POST", o.collection, o.body)
			if code == 201 {
				break
			}
			if code != 404 {
				t.Fatalf("%s: %d, %s", o.name, code, text)
			}
		}
	}
	// Versions, and a key that is gone.
	for _, change := range []string{`"data":{"a":"2"}`, `"data":{"a":"3","text":"line\nline ü"},"binaryData":{"b":"AAEC/w=="}`} {
		if code, text := c.do("PUT", "/api/v1/namespaces/shop/configmaps/web", `{"metadata":{"name":"web"},`+change+`}`); code != 200 {
			t.Fatalf("%d, %s", code, text)
		}
	}
	c.do("POST", "/api/v1/namespaces/shop/configmaps", `{"metadata":{"name":"gone"}}`)
	c.do("DELETE", "/api/v1/namespaces/shop/configmaps/gone", "")
	_, answer := c.do("POST", "/api/v1/namespaces/shop/serviceaccounts/robot/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"expirationSeconds":4000000000}}`)
	var request struct{ Status struct{ Token string } }
	if err := json.Unmarshal([]byte(answer), &request); err != nil || request.Status.Token == "" {
		t.Fatalf("%v: %s", err, answer)
	}
	write("token", []byte(request.Status.Token))
	objects := map[string]json.RawMessage{}
	for _, o := range formatObjects {
		objects[o.collection+"/"+o.name] = json.RawMessage(c.get(o.collection + "/" + o.name))
	}
	text, err := json.MarshalIndent(objects, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	write("objects.json", text)
	must(t, "", "snapshot", "save", "--data-dir", in("data"), in("backup.snap"))
	s.end(syscall.SIGTERM)
	if err := os.RemoveAll(in("data/control")); err != nil {
		t.Fatal(err)
	}
	pack(t, dir, file)
}

// pack writes the files of a folder into an archive.
func pack(t *testing.T, dir, file string) {
	t.Helper()
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	archive := tar.NewWriter(z)
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if err := archive.WriteHeader(&tar.Header{Name: filepath.ToSlash(name), Mode: 0o600, Size: int64(len(content))}); err != nil {
			return err
		}
		_, err = archive.Write(content)
		return err
	})
	if err := errors.Join(err, archive.Close(), z.Close(), os.MkdirAll(filepath.Dir(file), 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// unpack is the reverse of pack.
func unpack(t *testing.T, file, dir string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for archive := tar.NewReader(z); ; {
		header, err := archive.Next()
		if err == io.EOF {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, filepath.FromSlash(header.Name))
		content, err := io.ReadAll(archive)
		if err := errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o700)); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
