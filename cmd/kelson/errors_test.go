//go:build unix

package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/apikeel/kelson/controlplane"
)

// TestErrors has everything that people get wrong, or finds broken.
func TestErrors(t *testing.T) {
	t.Parallel()
	temp := t.TempDir()
	in := func(elem ...string) string { return filepath.Join(append([]string{temp}, elem...)...) }
	write := func(text string, elem ...string) string {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(in(elem...)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(in(elem...), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return in(elem...)
	}
	fillFolder(t, in("data"), 5)
	good := in("good.snap")
	must(t, "5 keys", "snapshot", "save", "--data-dir", in("data"), good)
	snapshot, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	write("kelson-engine 99\n", "newer", "store", "FORMAT")
	write("x", "other", "store", "photo.jpg")
	text := write("not a snapshot", "text")
	cut := write(string(snapshot[:len(snapshot)-40]), "cut.snap")
	if !strings.Contains(string(snapshot), "c-0004") {
		t.Fatal("there is no key to change in the snapshot")
	}
	changed := write(strings.Replace(string(snapshot), "c-0004", "c-0x04", 1), "changed.snap")
	noEtcd := []string{"--etcd-servers", "http://127.0.0.1:1", "--etcd-dial-timeout", "300ms"}

	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"serv"}, exitUsage, `no command "serv"; did you mean "serve"?`},
		{[]string{"serve", "x"}, exitUsage, `"x" is one argument too many`},
		{[]string{"--colour"}, exitUsage, "unknown flag: --colour; see 'kelson --help'"},
		{[]string{"snapshot"}, exitUsage, "see 'kelson snapshot --help'"},
		{[]string{"snapshot", "save"}, exitUsage, "give one FILE, not 0; see 'kelson snapshot save --help'"},
		{[]string{"snapshot", "verify", "a", "b"}, exitUsage, "give one FILE, not 2"},

		{[]string{"serve", "--storage", "mysql"}, exitError, `unknown storage "mysql"`},
		{[]string{"serve", "--storage", "etcd"}, exitError, "no etcd servers are given"},
		{append([]string{"serve"}, noEtcd...), exitError, "no answer from http://127.0.0.1:1 within 300ms"},
		{append([]string{"serve"}, noEtcd...), exitError, "is etcd running there"},
		{[]string{"serve", "--data-dir", in("newer")}, exitError, "has format 99"},
		{[]string{"serve", "--data-dir", in("other")}, exitError, "not a data folder of Kelson: " + in("other", "store") + " contains photo.jpg"},
		{[]string{"serve", "--data-dir", text}, exitError, "cannot make the data folder " + text},
		{[]string{"serve", "--data-dir", in("new"), "--bind-address", "localhost"}, exitUsage, `failed to parse IP: "localhost"`},
		{[]string{"serve", "--data-dir", in("data"), "--bind-address", "192.0.2.1", "--secure-port", "0"}, exitError, "this machine has no address 192.0.2.1"},
		{[]string{"serve", "--data-dir", in("new"), "--secure-port", "65536"}, exitError, "65536 is not a port"},
		{[]string{"serve", "--data-dir", in("new"), "--secure-port", "https"}, exitUsage, `invalid argument "https" for "--secure-port"`},
		{[]string{"serve", "--data-dir", in("data"), "--secure-port", "0", "--write-kubeconfig", in("text", "file")}, exitError, "folder for the kubeconfig: "},
		{[]string{"kubeconfig", "--data-dir", in("nothing")}, exitError, in("nothing") + " has no kubeconfig yet: it is written when the server listens; start it with 'kelson serve --data-dir " + in("nothing") + "'"},
		{[]string{"kubeconfig", "x"}, exitUsage, `"x" is one argument too many; see 'kelson kubeconfig --help'`},

		{[]string{"snapshot", "save", "--data-dir", in("data"), good}, exitError, good + " exists; choose another name, or replace it with --force"},
		{[]string{"snapshot", "save", "--data-dir", in("data"), "--force", os.DevNull}, exitError, "not a file"},
		{[]string{"snapshot", "save", "--data-dir", in("data"), in("no", "such")}, exitError, "no such file or directory; check the path"},
		{[]string{"snapshot", "save", "--data-dir", in("nothing"), in("a.snap")}, exitError, "there is no store in " + in("nothing")},
		{[]string{"snapshot", "save", "--data-dir", in("other"), in("a.snap")}, exitError, "not a data folder"},
		{[]string{"snapshot", "save", "--data-dir", in("newer"), in("a.snap")}, exitError, "use a newer version"},
		{append([]string{"snapshot", "save", in("a.snap")}, noEtcd...), exitError, "no answer"},

		{[]string{"snapshot", "restore", "--data-dir", in("data"), good}, exitError, "there is a store in " + in("data") + " already"},
		{[]string{"snapshot", "restore", "--data-dir", in("new"), text}, exitError, "not a snapshot of Kelson"},
		{[]string{"snapshot", "restore", "--data-dir", in("new"), cut}, exitError, "damaged"},
		{[]string{"snapshot", "restore", "--data-dir", in("new"), in("absent")}, exitError, "no such file"},
		{[]string{"snapshot", "restore", "--data-dir", in("new"), "--bump-revision", "-1", good}, exitError, "cannot go back"},
		{[]string{"snapshot", "restore", "--data-dir", filepath.Join(text, "new"), good}, exitError, "not a directory"},

		{[]string{"snapshot", "verify", text}, exitError, text + `: not a snapshot of Kelson: it begins with "not a snapsh"; give a file`},
		{[]string{"snapshot", "verify", cut}, exitError, "is not complete; use another copy"},
		{[]string{"snapshot", "verify", changed}, exitError, "damaged"},
		{[]string{"snapshot", "verify", temp}, exitError, "is a directory"},

		{[]string{"migrate", "--from", in("data")}, exitUsage, "--to is missing"},
		{[]string{"migrate", "--to", in("new")}, exitUsage, "--from is missing"},
		{[]string{"migrate", "--from", in("data"), "--to", "localhost:2379"}, exitUsage, "begins with http://"},
		{[]string{"migrate", "--from", in("data"), "--to", "etcd://localhost"}, exitUsage, "begins with http://"},
		{[]string{"migrate", "--from", in("data"), "--to", in("new"), "--resume"}, exitUsage, "--resume is for a copy to etcd"},
		{[]string{"migrate", "--from", in("data"), "--to", in("data")}, exitError, "is not empty"},
		{[]string{"migrate", "--from", in("nothing"), "--to", in("new")}, exitError, "--from: not a data folder"},
		{[]string{"migrate", "--from", in("data"), "--to", "http://127.0.0.1:1", "--etcd-dial-timeout", "300ms"}, exitError, "--to: etcd: no answer"},
	} {
		t.Run(strings.ReplaceAll(strings.Join(c.args, " "), temp, ""), func(t *testing.T) {
			r := kelson(t, c.args...)
			if r.code != c.code || !strings.Contains(r.err, c.want) {
				t.Errorf("exit code %d, %q; want %d, %q", r.code, r.err, c.code, c.want)
			}
			if !strings.HasPrefix(r.err, "kelson: ") || strings.Count(r.err, "\n") != 1 || r.out != "" {
				t.Errorf("not one line: %q, %q", r.err, r.out)
			}
		})
	}
	for _, name := range []string{"new", "nothing", "a.snap", "a.snap.partial", "good.snap.partial"} {
		if _, err := os.Stat(in(name)); err == nil {
			t.Errorf("%s was left behind", name)
		}
	}
	must(t, " keys", "snapshot", "save", "--data-dir", in("data"), "--force", good)
}

// TestUnwritableFolder has a folder of somebody else's. The superuser, who can
// write to all of them, becomes somebody else for it.
func TestUnwritableFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fillFolder(t, dir, 1)
	empty := filepath.Join(dir, "empty")
	if err := os.Mkdir(empty, 0o555); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ dir, want string }{
		{empty, "cannot make the data folder " + controlplane.StoreDir(empty)},
		{dir, "permission denied"},
	} {
		cmd := command(t, "serve", "--data-dir", c.dir)
		if os.Geteuid() == 0 {
			letEnter(t, dir, cmd.Path)
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		} else if c.dir == dir {
			continue // it is ours
		}
		r := finish(t, cmd)
		if r.code != exitError || !strings.Contains(r.err, c.want) || !strings.Contains(r.err, "permission denied; check who owns it") {
			t.Errorf("%+v", r)
		}
	}
}

// letEnter makes folders that tests use reachable for others.
func letEnter(t *testing.T, paths ...string) {
	t.Helper()
	for _, path := range paths {
		for dir := filepath.Dir(path); dir != os.TempDir() && len(dir) > 1; dir = filepath.Dir(dir) {
			info, err := os.Stat(dir)
			if err == nil && info.Mode()&0o011 == 0 {
				err = os.Chmod(dir, info.Mode().Perm()|0o011)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}
