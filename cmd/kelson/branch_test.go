//go:build unix

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/apikeel/kelson/internal/polltest"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/internal/testsize"
)

// kubeClient returns the client of an administrator of a data folder.
func kubeClient(t *testing.T, dataDir string) (*kubernetes.Clientset, *rest.Config) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", controlplane.KubeconfigFile(dataDir))
	if err != nil {
		t.Fatal(err)
	}
	clientFor(t, config).ready()
	return kubernetes.NewForConfigOrDie(config), config
}

// dataOf returns the value of a key of a ConfigMap; empty if it is not there.
func dataOf(t *testing.T, c *kubernetes.Clientset, name string) string {
	t.Helper()
	m, err := c.CoreV1().ConfigMaps("default").Get(t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	return m.Data["v"]
}

func setData(t *testing.T, c *kubernetes.Clientset, name, value string) (revision string) {
	t.Helper()
	api := c.CoreV1().ConfigMaps("default")
	m, err := api.Update(t.Context(), configMap(name, "v", value), metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		m, err = api.Create(t.Context(), configMap(name, "v", value), metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	return m.ResourceVersion
}

// branches returns what is in the folder of branches.
func branches(t *testing.T, dataDir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(controlplane.BranchDir(dataDir, "x")))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// A branch of a running server has its data and takes its tokens, and neither server sees
// what is written to the other.
func TestBranchIsAServerOfItsOwn(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	first := serve(t, "serve", "--data-dir", dir, "--history", "1h")
	origin, originConfig := kubeClient(t, dir)
	early := setData(t, origin, "web", "1")
	nextMillisecond()
	moment := time.Now().Format(time.RFC3339Nano)
	nextMillisecond()
	setData(t, origin, "web", "2")
	setData(t, origin, "late", "1")
	token, err := origin.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if apierrors.IsNotFound(err) { // the controller that makes the account has not been there yet
		polltest.Until(t, "a token", func() bool {
			token, err = origin.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
			return err == nil
		})
	} else if err != nil {
		t.Fatal(err)
	}

	b := serve(t, "branch", "try", "--data-dir", dir)
	if !strings.Contains(b.out, "Branch try of "+dir+" at revision ") || !strings.Contains(b.out, "removed at the end") {
		t.Errorf("branch says %q", b.out)
	}
	copied, config := kubeClient(t, controlplane.BranchDir(dir, "try"))
	if got := dataOf(t, copied, "web"); got != "2" {
		t.Errorf("the branch has %q, want 2", got)
	}
	setData(t, copied, "web", "branch")
	setData(t, copied, "only-branch", "1")
	if err := copied.CoreV1().ConfigMaps("default").Delete(t.Context(), "late", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	setData(t, origin, "only-origin", "1")
	for _, want := range []struct {
		c           *kubernetes.Clientset
		name, value string
	}{{origin, "web", "2"}, {origin, "only-branch", ""}, {origin, "late", "1"}, {copied, "only-origin", ""}, {copied, "web", "branch"}, {copied, "late", ""}} {
		if got := dataOf(t, want.c, want.name); got != want.value {
			t.Errorf("%s: got %q, want %q", want.name, got, want.value)
		}
	}
	// The token and the certificate of the administrator are good for both.
	bearer := rest.AnonymousClientConfig(config)
	bearer.BearerToken = token.Status.Token
	review, err := kubernetes.NewForConfigOrDie(bearer).AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil || review.Status.UserInfo.Username != "system:serviceaccount:default:default" {
		t.Errorf("a token of the first server at the branch: %v, %v; want system:serviceaccount:default:default", review.Status.UserInfo.Username, err)
	}
	elsewhere := rest.CopyConfig(originConfig)
	elsewhere.Host = config.Host
	if got := dataOf(t, kubernetes.NewForConfigOrDie(elsewhere), "web"); got != "branch" {
		t.Errorf("the certificate of the first server at the branch: got %q, want branch", got)
	}
	// Nobody makes a branch through the API.
	if code, text := clientFor(t, originConfig).do(http.MethodPost, "/debug/kelson/branch?name=x", ""); code != http.StatusNotFound {
		t.Errorf("POST to the API: %d, %s; want 404", code, text)
	}
	if r := kelson(t, "branch", "try", "--data-dir", dir); r.code != exitError || !strings.Contains(r.err, "there is a branch try already") {
		t.Errorf("a second branch of the name: %+v, want an error", r)
	}
	b.stop(t)
	if got := branches(t, dir); len(got) != 0 {
		t.Errorf("after the end of the branch there are %q, want none", got)
	}

	// At a revision and at a time, and kept.
	for name, at := range map[string]string{"by-revision": early, "by-time": moment} {
		b := serve(t, "branch", name, "--data-dir", dir, "--at", at, "--keep", "--history", "1h")
		then, _ := kubeClient(t, controlplane.BranchDir(dir, name))
		if web, late := dataOf(t, then, "web"), dataOf(t, then, "late"); web != "1" || late != "" {
			t.Errorf("%s: web is %q and late %q, want 1 and nothing", name, web, late)
		}
		setData(t, then, "web", name)
		b.stop(t)
		again := serve(t, "serve", "--data-dir", controlplane.BranchDir(dir, name))
		then, _ = kubeClient(t, controlplane.BranchDir(dir, name))
		if got := dataOf(t, then, "web"); got != name {
			t.Errorf("a branch that was kept: got %q, want %s", got, name)
		}
		again.stop(t)
	}
	for _, wrong := range []struct{ want, name, at string }{
		{"is not the name of a branch", "../x", ""}, {"is not the name of a branch", ".new-x", ""}, {"is not the name of a branch", strings.Repeat("x", 41), ""},
		{"newest", "x", "99999999"}, {"--at", "x", "yesterday"},
	} {
		args := []string{"branch", wrong.name, "--data-dir", dir}
		if wrong.at != "" {
			args = append(args, "--at", wrong.at)
		}
		if r := kelson(t, args...); r.code == exitOK || !strings.Contains(r.err, wrong.want) {
			t.Errorf("branch %s --at %s: %+v, want an error with %q", wrong.name, wrong.at, r, wrong.want)
		}
	}
	if got := fmt.Sprint(branches(t, dir)); got != "[by-revision by-time]" {
		t.Errorf("there are %s, want those that were kept", got)
	}
	if got := dataOf(t, origin, "web"); got != "2" {
		t.Errorf("in the end the first server has %q, want 2", got)
	}
	first.stop(t)
}

// A branch that goes back further than history says where that begins.
func TestBranchOutsideHistory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	fillFolder(t, dir, 50)
	e, err := controlplane.OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Compact(t.Context(), 40); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	serve(t, "serve", "--data-dir", dir, "--controllers=-*").stop(t) // which keeps no history
	r := kelson(t, "branch", "old", "--data-dir", dir, "--at", "20")
	if r.code != exitError || !strings.Contains(r.err, "history begins with revision") || !strings.Contains(r.err, "--history") {
		t.Errorf("branch --at 20: %+v, want an error that says where history begins", r)
	}
	if got := branches(t, dir); len(got) != 0 {
		t.Errorf("there are %q, want none", got)
	}
	for _, flags := range [][]string{{"--etcd-servers", "http://127.0.0.1:1"}, {"--storage-dsn", "postgres://x@127.0.0.1:1/x"}, {"--storage", "memory"}} {
		r := kelson(t, append([]string{"branch"}, flags...)...)
		if r.code != exitError || !strings.Contains(r.err, "kelson snapshot save") {
			t.Errorf("branch %v: %+v, want an error that says what to do instead", flags, r)
		}
	}
}

// A process that is killed while it makes a branch leaves nothing that harms the next
// start, and the store is what it was.
func TestKilledBranch(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	fillFolder(t, dir, 200)
	want, _, _ := contents(t, dir)
	for range testsize.Pick(2, 6, 30) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(600))*time.Millisecond)
		cmd := command(t, "branch", "--data-dir", dir, "--secure-port", "0", "--at", strconv.Itoa(2+rand.IntN(150)))
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		<-ctx.Done()
		cancel()
		_ = cmd.Process.Signal(syscall.SIGKILL)
		_ = cmd.Wait()
		got, _, _ := contents(t, dir)
		if len(got) != len(want) {
			t.Fatalf("after a branch was killed there are %d keys, want %d", len(got), len(want))
		}
	}
	// Now as if they had been left there yesterday, with one half made.
	folder := filepath.Dir(controlplane.BranchDir(dir, "x"))
	if err := os.MkdirAll(filepath.Join(folder, ".new-123", "store"), 0o700); err != nil {
		t.Fatal(err)
	}
	kept := serve(t, "branch", "kept", "--keep", "--data-dir", dir)
	kept.end(syscall.SIGKILL)
	left := serve(t, "branch", "left", "--data-dir", dir)
	yesterday := time.Now().Add(-24 * time.Hour)
	for _, name := range branches(t, dir) {
		_ = os.Chtimes(filepath.Join(folder, name, "temporary"), yesterday, yesterday)
	}
	s := serve(t, "serve", "--data-dir", dir, "--controllers=-*")
	if got := fmt.Sprint(branches(t, dir)); got != "[kept left]" {
		t.Errorf("while a branch is served, there are %s, want [kept left]", got)
	}
	left.end(syscall.SIGKILL)
	s.stop(t)
	serve(t, "serve", "--data-dir", dir, "--controllers=-*").stop(t)
	if got := fmt.Sprint(branches(t, dir)); got != "[kept]" {
		t.Errorf("after the next start there are %s, want [kept]", got)
	}
}
