//go:build unix

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/engine"
)

// TestFirstMistakesSayWhatToDo has what a new user gets wrong first. Each message says
// what happened and what to do about it, in one line.
func TestFirstMistakesSayWhatToDo(t *testing.T) {
	t.Parallel()
	temp := t.TempDir()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	newer := filepath.Join(temp, "newer")
	if err := os.MkdirAll(controlplane.StoreDir(newer), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(controlplane.StoreDir(newer), "FORMAT"), []byte("kelson-engine 99\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name             string
		args             []string
		code             int
		happened, advice string
	}{
		{"port taken", []string{"--storage", "memory", "--secure-port", port}, exitError, "port " + port + " is in use", "choose another port (0 takes a free one)"},
		{"port taken, by flag", []string{"--storage", "memory", "--secure-port", port}, exitError, "something else listens on 127.0.0.1:" + port, "--secure-port is the flag"},
		{"newer data folder", []string{"--data-dir", newer}, exitError, "has format 99, this version of Kelson knows up to 1", "use a newer version, or restore a snapshot"},
		{"misspelled flag", []string{"--datadir", temp}, exitUsage, "unknown flag: --datadir", "did you mean --data-dir?; see 'kelson --help'"},
		{"misspelled flag of serve", []string{"serve", "--secure-prot", "1"}, exitUsage, "unknown flag: --secure-prot", "did you mean --secure-port?; see 'kelson serve --help'"},
		{"misspelled flag of run", []string{"run", "--crd", "x"}, exitUsage, "unknown flag: --crd", "did you mean --crds?; see 'kelson run --help'"},
		{"unknown flag", []string{"--colour"}, exitUsage, "unknown flag: --colour", "; see 'kelson --help'"},
		{"misspelled command", []string{"serv"}, exitUsage, `there is no command "serv"`, `did you mean "serve"?`},
	} {
		r := kelson(t, c.args...)
		if r.code != c.code || !strings.Contains(r.err, c.happened) || !strings.Contains(r.err, c.advice) || strings.Count(r.err, "\n") != 1 {
			t.Errorf("%s: got exit code %d, %q; want %d, one line with %q and %q", c.name, r.code, r.err, c.code, c.happened, c.advice)
		}
	}
}

// TestFirstStartSaysWhatToType: a start without arguments serves, and says where, where
// the data is, how to stop it, and what to type next.
func TestFirstStartSaysWhatToType(t *testing.T) {
	t.Parallel()
	s := serveExactly(t, "--data-dir", filepath.Join(t.TempDir(), "data"), "--secure-port", "0")
	for _, want := range []string{"serves the Kubernetes API at https://127.0.0.1:", "keeps its data in ", "Press Ctrl-C to stop", "kubectl --kubeconfig "} {
		if !strings.Contains(s.out, want) {
			t.Errorf("first start: got %q, want %q in it", s.out, want)
		}
	}
	s.stop(t)
	if s.log.Len() > 0 {
		t.Errorf("first start: got %q on the standard error, want nothing", s.log.String())
	}
}

// TestExplainHasAdvice has errors that are hard to cause in a test.
func TestExplainHasAdvice(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want string
	}{
		{&os.PathError{Op: "open", Path: "/data/store/LOCK", Err: syscall.EROFS}, "mount the disk for writing, or name another folder with --data-dir"},
		{fmt.Errorf("port 443 may not be used: choose one above 1023: %w", os.NewSyscallError("bind", syscall.EACCES)), "bind: permission denied"},
		{x509.CertificateInvalidError{Reason: x509.Expired, Detail: "current time is before"}, "compare the clock of this machine with that of the server"},
		{fmt.Errorf("%w: use a newer version", engine.ErrNewerFormat), "restore a snapshot that this version has made into another folder"},
	} {
		if got := explain(c.err); !strings.Contains(got, c.want) || strings.Contains(got, "bind:") && strings.Contains(got, "who owns it") {
			t.Errorf("explain(%v): got %q, want %q in it", c.err, got, c.want)
		}
	}
}

// TestFullDiskIsToldOnce: a start that fails in many places since the disk is full says so
// once.
func TestFullDiskIsToldOnce(t *testing.T) {
	t.Parallel()
	full := fmt.Errorf("%w: the disk of data has 0 MiB left; free some space", storage.ErrNoSpace)
	err := fmt.Errorf("post-start hook failed: %v", errors.Join(fmt.Errorf("Namespace default: %w", full), fmt.Errorf("Namespace kube-system: %w", full)))
	if got, want := explain(err), full.Error(); got != want {
		t.Errorf("explain(%q): got %q, want %q", err, got, want)
	}
	if got := explain(storage.ErrNoSpace); got != storage.ErrNoSpace.Error() {
		t.Errorf("explain(%v): got %q", storage.ErrNoSpace, got)
	}
}

// TestClockBeforeCertificates: a server whose authority begins in the future serves, and
// warns that the clock is wrong.
func TestClockBeforeCertificates(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	writeAuthority(t, dir, time.Now().Add(48*time.Hour), time.Now().Add(96*time.Hour))
	s := serve(t, "--data-dir", dir)
	if code := s.end(syscall.SIGTERM); code != exitOK {
		t.Errorf("with certificates of the future: got exit code %d, want %d", code, exitOK)
	}
	if got, want := s.log.String(), "the clock of this machine is wrong"; !strings.Contains(got, want) {
		t.Errorf("with certificates of the future: got %q, want %q in it", got, want)
	}
}

// writeAuthority makes the certificate authority of a data folder, valid as told.
func writeAuthority(t *testing.T, dir string, from, until time.Time) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kelson-ca"}, NotBefore: from, NotAfter: until,
		KeyUsage: x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err == nil {
		err = os.MkdirAll(filepath.Join(dir, "pki"), 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "pki", "ca.crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "pki", "ca.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
