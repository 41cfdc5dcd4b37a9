//go:build unix

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A store is restored to a moment of the history of another, whose server goes on.
func TestRestoreAtAMoment(t *testing.T) {
	t.Parallel()
	dir, restored := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "restored")
	s := serve(t, "serve", "--data-dir", dir, "--history", "1h")
	origin, _ := kubeClient(t, dir)
	early := setData(t, origin, "web", "1")
	setData(t, origin, "web", "2")
	setData(t, origin, "late", "1")
	for _, wrong := range []struct{ at, want string }{{"99999999", "newest"}, {"2001-01-01", ""}} {
		r := kelson(t, "snapshot", "restore", "--from", dir, "--at", wrong.at, "--data-dir", restored)
		if wrong.want != "" && (r.code != exitError || !strings.Contains(r.err, wrong.want)) {
			t.Errorf("--at %s: %+v, want an error with %q", wrong.at, r, wrong.want)
		}
		if wrong.want == "" { // a store that has all of its history was empty then
			must(t, "", "snapshot", "save", "--data-dir", restored, filepath.Join(t.TempDir(), "x"))
			if err := os.RemoveAll(restored); err != nil {
				t.Fatal(err)
			}
			continue
		}
		absent(t, restored)
	}
	must(t, "Restored revision "+early, "snapshot", "restore", "--from", dir, "--at", early, "--data-dir", restored)
	if r := kelson(t, "snapshot", "restore", "--from", dir, "--at", early, "--data-dir", restored); r.code != exitError || !strings.Contains(r.err, "there is a store") {
		t.Errorf("a second restore: %+v, want an error", r)
	}
	for _, args := range [][]string{{"--at", early}, {"--from", dir}, {"--from", dir, "--at", early, "file"}, {"--from", dir, "--at", "now"}} {
		if r := kelson(t, append([]string{"snapshot", "restore", "--data-dir", restored + "2"}, args...)...); r.code != exitUsage {
			t.Errorf("restore %v: %+v, want exit code %d", args, r, exitUsage)
		}
	}
	if got := branches(t, dir); len(got) != 0 {
		t.Errorf("there are branches %q, want none", got)
	}
	again := serve(t, "serve", "--data-dir", restored)
	then, _ := kubeClient(t, restored)
	if web, late := dataOf(t, then, "web"), dataOf(t, then, "late"); web != "1" || late != "" {
		t.Errorf("web is %q and late %q, want 1 and nothing", web, late)
	}
	if got := revision(t, setData(t, then, "web", "3")); got < defaultBump {
		t.Errorf("the restored store goes on at %d, want more than %d", got, defaultBump)
	}
	again.stop(t)
	if got := dataOf(t, origin, "web"); got != "2" {
		t.Errorf("the first server has %q, want 2", got)
	}
	s.stop(t)
}
