// Command release builds everything that is published of a version, from the sources
// alone: static binaries, checksums, a container image, Debian packages, a software bill of
// materials and a statement of how they were made. Start at main.
//
//	go run ./internal/release -version v0.1.0 -o dist
//
// The files are reproducible: the same sources, version and Go give the same bytes.
// Nothing is taken from the machine but Go and the files of this module; there is no
// daemon, no base image and no packaging tool.
package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// target is an operating system and a processor.
type target struct{ os, arch string }

func (t target) String() string { return t.os + "/" + t.arch }

// MarshalText makes a target a string in JSON.
func (t target) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// program is the name of the binary of a target.
func (t target) program() string {
	name := "kelson-" + t.os + "-" + t.arch
	if t.os == "windows" {
		name += ".exe"
	}
	return name
}

// targets are all that binaries are published for.
func targets() []target {
	return []target{{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}, {"windows", "amd64"}, {"windows", "arm64"}}
}

// release is one version, and where its files go.
type release struct {
	version string    // v0.1.0
	time    time.Time // of the commit: that of all files in archives
	dir     string
	sums    map[string][sha256.Size]byte
}

func main() {
	version := flag.String("version", "v0.1.0", "the version, with a v")
	dir := flag.String("o", "dist", "folder for the files")
	only := flag.String("targets", "", "comma-separated list, such as linux/amd64 (default all)")
	flag.Parse()
	if err := run(*version, *dir, *only); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(version, dir, only string) error {
	chosen := targets()
	if only != "" {
		chosen = slices.DeleteFunc(chosen, func(t target) bool { return !slices.Contains(strings.Split(only, ","), t.String()) })
		if len(chosen) != len(strings.Split(only, ",")) {
			return fmt.Errorf("-targets %s: want some of %v", only, targets())
		}
	}
	at, err := commitTime()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	r := &release{version: version, time: at, dir: dir, sums: map[string][sha256.Size]byte{}}
	pages, err := manPages()
	if err != nil {
		return err
	}
	var info *debug.BuildInfo
	for _, t := range chosen {
		fmt.Println("building", t)
		if err := r.build(t); err != nil {
			return fmt.Errorf("%s: %w", t, err)
		}
		if info, err = r.add(t, pages); err != nil {
			return fmt.Errorf("%s: %w", t, err)
		}
	}
	text, err := r.provenance(info, chosen)
	if err != nil {
		return err
	}
	if err := r.write("kelson.provenance.json", text); err != nil {
		return err
	}
	return r.writeSums()
}

// add writes what is made from the binary of a target, and returns what the binary says
// that it was built from.
func (r *release) add(t target, pages map[string][]byte) (*debug.BuildInfo, error) {
	program, err := os.ReadFile(filepath.Join(r.dir, t.program()))
	if err != nil {
		return nil, err
	}
	r.note(t.program(), program)
	info, err := buildinfo.Read(bytes.NewReader(program))
	if err != nil {
		return nil, err
	}
	text, err := sbom(info, r.version, t, r.time)
	if err != nil {
		return nil, err
	}
	if err := r.write(t.program()+".cdx.json", text); err != nil || t.os != "linux" {
		return info, err
	}
	image, err := image(program, r.version, t, r.time)
	if err != nil {
		return nil, err
	}
	if err := r.write("kelson-"+t.os+"-"+t.arch+".oci.tar", image); err != nil {
		return nil, err
	}
	deb, err := debian(program, pages, r.version, t, r.time)
	if err != nil {
		return nil, err
	}
	return info, r.write(fmt.Sprintf("kelson_%s_%s.deb", strings.TrimPrefix(r.version, "v"), t.arch), deb)
}

// build compiles the program for a target.
func (r *release) build(t target) error {
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=true", "-ldflags=-s -w -buildid= -X main.released="+r.version, "-o", filepath.Join(r.dir, t.program()), "github.com/apikeel/kelson/cmd/kelson")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+t.os, "GOARCH="+t.arch, "GOFLAGS=", "GOAMD64=v1")
	cmd.Stderr = os.Stderr
	return cmd.Run()
}

// manPages returns the pages that the program of this machine writes, by file name.
func manPages() (map[string][]byte, error) {
	temp, err := os.MkdirTemp("", "release-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(temp)
	cmd := exec.Command("go", "run", "github.com/apikeel/kelson/cmd/kelson", "man-pages", temp)
	cmd.Env = append(os.Environ(), "GOOS="+runtime.GOOS, "GOARCH="+runtime.GOARCH)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("man pages: %w: %s", err, out)
	}
	files, err := os.ReadDir(temp)
	if err != nil {
		return nil, err
	}
	pages := map[string][]byte{}
	for _, file := range files {
		if pages[file.Name()], err = os.ReadFile(filepath.Join(temp, file.Name())); err != nil {
			return nil, err
		}
	}
	return pages, nil
}

// commitTime returns the time of the newest commit, which files in archives have, so
// that they do not depend on when they are made.
func commitTime() (time.Time, error) {
	out, err := exec.Command("git", "log", "-1", "--format=%cI").Output()
	if err != nil {
		return time.Time{}, errors.New("git does not know the newest commit: a release is built in a clone of the repository")
	}
	at, err := time.Parse(time.RFC3339, strings.TrimSpace(string(out)))
	return at.UTC(), err
}

func (r *release) write(name string, content []byte) error {
	r.note(name, content)
	return os.WriteFile(filepath.Join(r.dir, name), content, 0o644)
}

func (r *release) note(name string, content []byte) { r.sums[name] = sha256.Sum256(content) }

// writeSums writes SHA256SUMS, in the form that sha256sum --check reads.
func (r *release) writeSums() error {
	var names []string
	for name := range r.sums {
		names = append(names, name)
	}
	slices.Sort(names)
	var text strings.Builder
	for _, name := range names {
		fmt.Fprintf(&text, "%x  %s\n", r.sums[name], name)
	}
	return os.WriteFile(filepath.Join(r.dir, "SHA256SUMS"), []byte(text.String()), 0o644)
}
