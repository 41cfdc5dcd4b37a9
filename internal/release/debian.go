package main

import (
	"bytes"
	"crypto/md5"
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// The files of the package that are not made.
var (
	//go:embed debian/kelson.service
	unit []byte
	//go:embed debian/default
	environment []byte
	//go:embed debian/postinst
	postinst []byte
	//go:embed debian/prerm
	prerm []byte
	//go:embed debian/postrm
	postrm []byte
	//go:embed debian/copyright
	copyright []byte
)

// debian returns a Debian package: an ar archive of a version, a tarball of control
// files, and a tarball of what is installed.
func debian(program []byte, pages map[string][]byte, version string, t target, at time.Time) ([]byte, error) {
	installed := []file{
		{name: "./usr/bin/kelson", mode: 0o755, content: program},
		{name: "./usr/lib/systemd/system/kelson.service", mode: 0o644, content: unit},
		{name: "./etc/default/kelson", mode: 0o644, content: environment},
		{name: "./usr/share/doc/kelson/copyright", mode: 0o644, content: copyright},
	}
	for _, name := range slices.Sorted(maps.Keys(pages)) {
		page, err := gzipped(pages[name])
		if err != nil {
			return nil, err
		}
		installed = append(installed, file{name: "./usr/share/man/man1/" + name + ".gz", mode: 0o644, content: page})
	}
	size := 0
	var sums strings.Builder
	for _, f := range installed {
		size += len(f.content)
		fmt.Fprintf(&sums, "%x  %s\n", md5.Sum(f.content), strings.TrimPrefix(f.name, "./"))
	}
	control := fmt.Sprintf(`Package: kelson
Version: %s
Architecture: %s
Maintainer: The Kelson authors <kelson@example.invalid>
Installed-Size: %d
Section: net
Priority: optional
Depends: passwd
Description: Kubernetes API server in one process
 Kelson serves the Kubernetes API from a data folder of its own, or from etcd or
 PostgreSQL. This package has the program, its man pages and a systemd unit.
`, strings.TrimPrefix(version, "v"), t.arch, size/1024)
	controlTar, err := tarball(at,
		file{name: "./", mode: 0o755},
		file{name: "./control", mode: 0o644, content: []byte(control)},
		file{name: "./conffiles", mode: 0o644, content: []byte("/etc/default/kelson\n")},
		file{name: "./md5sums", mode: 0o644, content: []byte(sums.String())},
		file{name: "./postinst", mode: 0o755, content: postinst},
		file{name: "./prerm", mode: 0o755, content: prerm},
		file{name: "./postrm", mode: 0o755, content: postrm},
	)
	if err != nil {
		return nil, err
	}
	dataTar, err := tarball(at, withFolders(installed)...)
	if err != nil {
		return nil, err
	}
	if controlTar, err = gzipped(controlTar); err != nil {
		return nil, err
	}
	if dataTar, err = gzipped(dataTar); err != nil {
		return nil, err
	}
	return ar(at, file{name: "debian-binary", content: []byte("2.0\n")}, file{name: "control.tar.gz", content: controlTar}, file{name: "data.tar.gz", content: dataTar}), nil
}

// withFolders puts the folders that files are in before them.
func withFolders(files []file) (all []file) {
	known := map[string]bool{}
	for _, f := range files {
		for i, r := range f.name {
			if folder := f.name[:i+1]; r == '/' && !known[folder] {
				known[folder] = true
				all = append(all, file{name: folder, mode: 0o755})
			}
		}
		all = append(all, f)
	}
	return all
}

// ar returns files as an archive in the format of ar(5).
func ar(at time.Time, files ...file) []byte {
	var out bytes.Buffer
	out.WriteString("!<arch>\n")
	for _, f := range files {
		fmt.Fprintf(&out, "%-16s%-12d%-6d%-6d%-8o%-10d`\n", f.name, at.Unix(), 0, 0, 0o100644, len(f.content))
		out.Write(f.content)
		if len(f.content)%2 == 1 {
			out.WriteByte('\n')
		}
	}
	return out.Bytes()
}
