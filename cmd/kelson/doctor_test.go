//go:build unix

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/controlplane"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// diagnosis is what 'kelson doctor -o json' prints.
type diagnosis struct {
	Healthy  bool
	Version  string
	Findings []finding
}

// examine runs 'kelson doctor -o json' on a data folder.
func examine(t *testing.T, code int, dir string, args ...string) diagnosis {
	t.Helper()
	r := kelson(t, append([]string{"doctor", "-o", "json", "--data-dir", dir, "--secure-port", "0"}, args...)...)
	var d diagnosis
	if err := json.Unmarshal([]byte(r.out), &d); err != nil || r.code != code {
		t.Fatalf("kelson doctor %q: got exit code %d, %v, %q, %q; want %d and JSON", args, r.code, err, r.out, r.err, code)
	}
	if d.Healthy != (code == exitOK) {
		t.Errorf("kelson doctor %q: got healthy %v with exit code %d", args, d.Healthy, code)
	}
	return d
}

// has reports whether a check has a finding with a text, and with a remedy unless all is
// well.
func (d diagnosis) has(check, result, text string) bool {
	for _, f := range d.Findings {
		if f.Check == check && f.Result == result && strings.Contains(f.Message, text) && (f.Remedy == "") == (result == healthy) {
			return true
		}
	}
	return false
}

func (d diagnosis) want(t *testing.T, check, result, text string) {
	t.Helper()
	if !d.has(check, result, text) {
		t.Errorf("kelson doctor: got %+v, want %s of %s with %q", d.Findings, result, check, text)
	}
}

// TestDoctorOfAnotherUser: root is not told that the port of a service is taken, since that
// is probably the service.
func TestDoctorOfAnotherUser(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs root, to have a folder of another user")
	}
	dir := t.TempDir()
	store := controlplane.StoreDir(dir)
	if err := errors.Join(os.MkdirAll(store, 0o700), os.Chown(store, 65534, 65534), os.Chown(dir, 65534, 65534)); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	d := examine(t, exitOK, dir, "--secure-port", fmt.Sprint(l.Addr().(*net.TCPAddr).Port))
	d.want(t, "store", warning, "another user")
	d.want(t, "port", warning, "address already in use")
}

// TestDoctorFindsNothing: a data folder that is well is said to be, while its server
// runs and after.
func TestDoctorFindsNothing(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	s := serve(t, "--data-dir", dir)
	newClient(t, controlplane.KubeconfigFile(dir)).ready()
	d := examine(t, exitOK, dir)
	d.want(t, "data folder", healthy, "can be written to")
	d.want(t, "store", healthy, "all read by the server that is running")
	d.want(t, "certificates", healthy, "the first ends on "+time.Now().UTC().AddDate(1, 0, 0).Format("2006"))
	d.want(t, "clock", healthy, time.Now().UTC().Format("2006-01-"))
	d.want(t, "server", healthy, "is ready")
	s.stop(t)
	d = examine(t, exitOK, dir)
	d.want(t, "store", healthy, " keys, ")
	d.want(t, "port", healthy, "127.0.0.1:0 is free")
	if d.has("store", healthy, "running") {
		t.Errorf("after the end of the server: got %+v, want none that runs", d.Findings)
	}

	r := kelson(t, "doctor", "--data-dir", dir, "--secure-port", "0")
	if r.code != exitOK || !strings.Contains(r.out, "ok        store ") {
		t.Errorf("kelson doctor: got exit code %d, %q, want text", r.code, r.out)
	}
}

// TestDoctorFindsFaults breaks a data folder in all ways that the doctor knows.
func TestDoctorFindsFaults(t *testing.T) {
	t.Parallel()
	temp := t.TempDir()
	in := func(elem ...string) string { return filepath.Join(append([]string{temp}, elem...)...) }
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}

	examine(t, exitOK, in("absent")).want(t, "data folder", warning, "no server has used it yet")

	do(os.WriteFile(in("file"), nil, 0o600))
	examine(t, exitError, in("file")).want(t, "data folder", problem, "is not a folder")

	do(os.MkdirAll(controlplane.StoreDir(in("newer")), 0o700))
	do(os.WriteFile(filepath.Join(controlplane.StoreDir(in("newer")), "FORMAT"), []byte("kelson-engine 99\n"), 0o600))
	examine(t, exitError, in("newer")).want(t, "store", problem, "has format 99")

	do(os.MkdirAll(in("open"), 0o700))
	do(os.Chmod(in("open"), 0o777))
	examine(t, exitError, in("open")).want(t, "data folder", problem, "writable by all")

	now := time.Now()
	writeAuthority(t, in("ended"), now.Add(-48*time.Hour), now.Add(-24*time.Hour))
	examine(t, exitError, in("ended")).want(t, "certificates", problem, "ca.crt ended on")
	writeAuthority(t, in("ending"), now.Add(-48*time.Hour), now.Add(24*time.Hour))
	examine(t, exitOK, in("ending")).want(t, "certificates", warning, "ca.crt ends on")
	writeAuthority(t, in("early"), now.Add(24*time.Hour), now.Add(48*time.Hour))
	examine(t, exitError, in("early")).want(t, "certificates", problem, "is not valid before")
	do(os.Chmod(in("ending", "pki", "ca.key"), 0o644))
	examine(t, exitError, in("ending")).want(t, "certificates", problem, "others can read the key in")
	do(os.WriteFile(in("early", "pki", "ca.crt"), []byte("no certificate"), 0o644))
	examine(t, exitError, in("early")).want(t, "certificates", problem, "there is no certificate in")

	do(os.MkdirAll(in("future"), 0o700))
	do(os.WriteFile(in("future", "note"), nil, 0o600))
	do(os.Chtimes(in("future", "note"), now.Add(time.Hour), now.Add(time.Hour)))
	examine(t, exitError, in("future")).want(t, "clock", problem, "it is wrong")

	taken, err := net.Listen("tcp", "127.0.0.1:0")
	do(err)
	defer taken.Close()
	port := fmt.Sprint(taken.Addr().(*net.TCPAddr).Port)
	examine(t, exitError, in("absent"), "--secure-port", port).want(t, "port", problem, "address already in use")

	examine(t, exitError, in("absent"), "--etcd-servers", "http://127.0.0.1:1", "--etcd-dial-timeout", "300ms").want(t, "store", problem, "no answer")

	if r := kelson(t, "doctor", "-o", "xml"); r.code != exitUsage || !strings.Contains(r.err, "--output=xml is not one of text and json") {
		t.Errorf("kelson doctor -o xml: got exit code %d, %q; want %d", r.code, r.err, exitUsage)
	}
}

// TestVersionHasWhatBugReportsNeed: the first line is as it was, the rest is in both forms.
func TestVersionHasWhatBugReportsNeed(t *testing.T) {
	t.Parallel()
	text := must(t, "kelson ", "version").out
	first, rest, _ := strings.Cut(text, "\n")
	if first != version() {
		t.Errorf("kelson version: got the first line %q, want %q", first, version())
	}
	for _, want := range []string{"serves      Kubernetes v1.37", "machine     ", " CPUs, "} {
		if !strings.Contains(rest, want) {
			t.Errorf("kelson version: got %q, want %q in it", rest, want)
		}
	}
	var b build
	if err := json.Unmarshal([]byte(must(t, "{", "version", "-o", "json").out), &b); err != nil {
		t.Fatal(err)
	}
	if b.Go == "" || b.Platform == "" || b.CPUs < 1 || b.MemoryBytes <= 0 || !strings.HasPrefix(b.Kubernetes, "v1.37") {
		t.Errorf("kelson version -o json: got %+v, want all fields", b)
	}
	if r := kelson(t, "version", "-o", "xml"); r.code != exitUsage {
		t.Errorf("kelson version -o xml: got exit code %d, want %d", r.code, exitUsage)
	}
}

// TestManPagesHaveAllFlags: each command that the help shows has a page, with all flags
// that its help shows.
func TestManPagesHaveAllFlags(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "man")
	must(t, "", "man-pages", dir)
	pages := 0
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		page := read(t, filepath.Join(dir, pageName(cmd)+".1"))
		pages++
		if !strings.Contains(page, roff(cmd.Short)) {
			t.Errorf("man page of %s: got no %q", cmd.CommandPath(), cmd.Short)
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && !strings.Contains(page, roff("--"+f.Name)+`\fR`) {
				t.Errorf("man page of %s: got no --%s", cmd.CommandPath(), f.Name)
			}
		})
		for _, sub := range cmd.Commands() {
			if sub.IsAvailableCommand() && sub.Name() != "help" {
				walk(sub)
			}
		}
	}
	walk(newCommand(streams{}))
	files, err := os.ReadDir(dir)
	// Cobra adds 'completion' with its shells when a command line is executed.
	if err != nil || pages < 10 || len(files) < pages {
		t.Errorf("man pages: got %d files, %v; want one for each of %d commands", len(files), err, pages)
	}
}

// TestCompletion: the script of each shell is printed, and completes commands and flags.
func TestCompletion(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		must(t, "kelson", "completion", shell)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"sna"}, "snapshot\tSave all data"},
		{[]string{"snapshot", ""}, "restore\t"},
		{[]string{"serve", "--data-d"}, "--data-dir\t"},
	} {
		must(t, c.want, append([]string{"__complete"}, c.args...)...)
	}
}

// TestDamagedStoreIsRefusedAndSalvaged: a wrong bit in the log of a store is found by the
// server and the doctor, and 'kelson doctor --salvage' writes the store to another folder.
func TestDamagedStoreIsRefusedAndSalvaged(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	s := serve(t, "--data-dir", dir)
	newClient(t, controlplane.KubeconfigFile(dir)).ready()
	s.stop(t)
	logs, err := filepath.Glob(filepath.Join(controlplane.StoreDir(dir), "db", "*.log"))
	if err != nil || len(logs) == 0 {
		t.Fatalf("got the logs %v, %v, want one or more", logs, err)
	}
	file := logs[len(logs)-1]
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	content[100] ^= 4
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}

	name := filepath.Base(file)
	examine(t, exitError, dir).want(t, "store", problem, name)
	if r := kelson(t, "serve", "--data-dir", dir, "--secure-port", "0"); r.code == exitOK || !strings.Contains(r.err, name) || !strings.Contains(r.err, "--salvage") {
		t.Errorf("kelson serve: got exit code %d, %q; want an error with %s", r.code, r.err, name)
	}
	to := filepath.Join(t.TempDir(), "new")
	if r := kelson(t, "doctor", "--data-dir", dir, "--salvage", to); r.code != exitOK || !strings.Contains(r.out, "Nothing is lost.") {
		t.Errorf("kelson doctor --salvage: got exit code %d, %q, %q; want nothing lost", r.code, r.out, r.err)
	}
	examine(t, exitOK, to).want(t, "store", healthy, "all read")
}
