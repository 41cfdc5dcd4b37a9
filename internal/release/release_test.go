package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

var (
	commit = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	linux  = target{"linux", "amd64"}
	pages  = map[string][]byte{"kelson.1": []byte(".TH KELSON\n"), "kelson-serve.1": []byte(".TH KELSON-SERVE\n")}
)

// read returns the files of a tarball, by name, with their headers.
func read(t *testing.T, content []byte) (map[string][]byte, map[string]*tar.Header) {
	t.Helper()
	files, headers := map[string][]byte{}, map[string]*tar.Header{}
	r := tar.NewReader(bytes.NewReader(content))
	for {
		h, err := r.Next()
		if err == io.EOF {
			return files, headers
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
		headers[h.Name] = h
	}
}

func decompress(t *testing.T, content []byte) []byte {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestImageIsWhole: each descriptor of the image has its blob, of its size and hash; the
// program is in the layer, and nobody runs it.
func TestImageIsWhole(t *testing.T) {
	made, err := image([]byte("program"), "v0.1.0", linux, commit)
	if err != nil {
		t.Fatal(err)
	}
	files, _ := read(t, made)
	get := func(d descriptor) []byte {
		t.Helper()
		content, ok := files[blobPath(d)]
		if !ok || len(content) != d.Size || fmt.Sprintf("sha256:%x", sha256.Sum256(content)) != d.Digest {
			t.Fatalf("%s: got %d bytes, %v; want a blob of %d with that hash", d.Digest, len(content), ok, d.Size)
		}
		return content
	}
	var index struct{ Manifests []descriptor }
	if err := json.Unmarshal(files["index.json"], &index); err != nil || len(index.Manifests) != 1 {
		t.Fatalf("index.json: got %s, %v; want one manifest", files["index.json"], err)
	}
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	if err := json.Unmarshal(get(index.Manifests[0]), &manifest); err != nil || len(manifest.Layers) != 1 {
		t.Fatalf("manifest: got %+v, %v; want one layer", manifest, err)
	}
	var config struct {
		Config struct{ User string }
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	if err := json.Unmarshal(get(manifest.Config), &config); err != nil {
		t.Fatal(err)
	}
	layer := decompress(t, get(manifest.Layers[0]))
	if got, want := config.RootFS.DiffIDs, fmt.Sprintf("sha256:%x", sha256.Sum256(layer)); len(got) != 1 || got[0] != want {
		t.Errorf("diff_ids: got %q, want %q", got, want)
	}
	if config.Config.User != "65534:65534" {
		t.Errorf("user: got %q, want nobody", config.Config.User)
	}
	content, headers := read(t, layer)
	if string(content["kelson"]) != "program" || headers["kelson"].Mode != 0o755 || headers["data/"].Uid != nobody {
		t.Errorf("layer: got %v, want the program, and a data folder of nobody's", headers)
	}
	if link := headers["usr/local/bin/kube-apiserver"]; link == nil || link.Typeflag != tar.TypeSymlink || link.Linkname != "/kelson" {
		t.Errorf("kube-apiserver: got %+v, want a link to the program", link)
	}
	var docker []struct{ Config string }
	if err := json.Unmarshal(files["manifest.json"], &docker); err != nil || len(docker) != 1 || files[docker[0].Config] == nil {
		t.Errorf("manifest.json: got %s, %v; want the config to be there", files["manifest.json"], err)
	}
}

// TestArchivesAreReproducible: the same input gives the same bytes.
func TestArchivesAreReproducible(t *testing.T) {
	for name, build := range map[string]func() ([]byte, error){
		"image":  func() ([]byte, error) { return image([]byte("program"), "v0.1.0", linux, commit) },
		"debian": func() ([]byte, error) { return debian([]byte("program"), pages, "v0.1.0", linux, commit) },
	} {
		first, err := build()
		if err != nil {
			t.Fatal(err)
		}
		if second, err := build(); err != nil || !bytes.Equal(first, second) {
			t.Errorf("%s: got other bytes the second time, %v", name, err)
		}
	}
}

// TestDebianPackage: dpkg-deb reads the package.
func TestDebianPackage(t *testing.T) {
	deb, err := debian([]byte("program"), pages, "v0.1.0", target{"linux", "arm64"}, commit)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(deb, []byte("!<arch>\ndebian-binary   1767323045  0     0     100644  4         `\n2.0\n")) {
		t.Errorf("got %q, want the header of a package", deb[:80])
	}
	dpkg, err := exec.LookPath("dpkg-deb")
	if err != nil {
		t.Skip("dpkg-deb is not on PATH, which would read the rest of the package")
	}
	dir := t.TempDir()
	name := filepath.Join(dir, "kelson.deb")
	if err := os.WriteFile(name, deb, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"--info", name}, []string{"Package: kelson", "Version: 0.1.0", "Architecture: arm64", "postinst"}},
		{[]string{"--contents", name}, []string{"-rwxr-xr-x root/root", "./usr/bin/kelson", "./usr/lib/systemd/system/kelson.service", "./usr/share/man/man1/kelson-serve.1.gz"}},
		{[]string{"--extract", name, dir}, nil},
	} {
		out, err := exec.CommandContext(t.Context(), dpkg, c.args...).CombinedOutput()
		if err != nil {
			t.Errorf("dpkg-deb %q: got %v, %s; want success", c.args, err, out)
		}
		for _, want := range c.want {
			if !strings.Contains(string(out), want) {
				t.Errorf("dpkg-deb %q: got %s, want %q in it", c.args, out, want)
			}
		}
	}
	if got, err := os.ReadFile(filepath.Join(dir, "usr/bin/kelson")); err != nil || string(got) != "program" {
		t.Errorf("extracted: got %q, %v; want the program", got, err)
	}
}

// TestScriptsParse: the scripts of the package are those of a shell.
func TestScriptsParse(t *testing.T) {
	for name, script := range map[string][]byte{"postinst": postinst, "prerm": prerm, "postrm": postrm} {
		cmd := exec.CommandContext(t.Context(), "sh", "-n")
		cmd.Stdin = bytes.NewReader(script)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: got %v, %s; want a script that parses", name, err, out)
		}
	}
}

// TestUnitIsValid: systemd knows all that the unit says, if there is one here to ask.
func TestUnitIsValid(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not on PATH, which would verify the unit")
	}
	dir := t.TempDir()
	name := filepath.Join(dir, "kelson.service")
	// The program is not installed here.
	if err := os.WriteFile(name, bytes.ReplaceAll(unit, []byte("/usr/bin/kelson"), []byte("/bin/true")), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", name).CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "kelson.service") {
			t.Errorf("systemd-analyze verify: got %s, %v; want nothing about the unit", line, err)
		}
	}
	// 1.3 is what docs/install.md says. Other versions of systemd weigh other things.
	out, err = exec.CommandContext(t.Context(), analyze, "security", "--offline=true", "--threshold=20", name).CombinedOutput()
	if err != nil && !bytes.Contains(out, []byte("unrecognized option")) { // before systemd 250
		t.Errorf("systemd-analyze security: got %v, %s; want an exposure of at most 2.0", err, out)
	}
}

// TestBillOfMaterials: it has the program and every module that it was built from.
func TestBillOfMaterials(t *testing.T) {
	info := &debug.BuildInfo{GoVersion: "go1.26.0", Main: debug.Module{Path: "github.com/apikeel/kelson"}, Deps: []*debug.Module{
		{Path: "example.com/a", Version: "v1.2.3"}, {Path: "example.com/old", Version: "v1.0.0", Replace: &debug.Module{Path: "example.com/new", Version: "v2.0.0"}},
	}}
	text, err := sbom(info, "v0.1.0", linux, commit)
	if err != nil {
		t.Fatal(err)
	}
	var bom struct {
		BOMFormat  string
		Metadata   struct{ Component component }
		Components []component
	}
	if err := json.Unmarshal(text, &bom); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range bom.Components {
		got = append(got, c.PURL)
	}
	if want := "pkg:golang/std@go1.26.0 pkg:golang/example.com/a@v1.2.3 pkg:golang/example.com/new@v2.0.0"; strings.Join(got, " ") != want {
		t.Errorf("components: got %q, want %q", got, want)
	}
	if bom.BOMFormat != "CycloneDX" || bom.Metadata.Component.Version != "v0.1.0" {
		t.Errorf("got %s, %+v; want CycloneDX of v0.1.0", bom.BOMFormat, bom.Metadata.Component)
	}
}

// TestProvenance: it names every file with its hash, the commit, and the modules.
func TestProvenance(t *testing.T) {
	r := &release{version: "v0.1.0", time: commit, dir: t.TempDir(), sums: map[string][sha256.Size]byte{}}
	if err := r.write("a", []byte("content")); err != nil {
		t.Fatal(err)
	}
	info := &debug.BuildInfo{GoVersion: "go1.26.0", Deps: []*debug.Module{{Path: "example.com/a", Version: "v1.2.3", Sum: "h1:x"}},
		Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "true"}}}
	text, err := r.provenance(info, []target{linux})
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Subject   []resource
		Predicate struct {
			BuildDefinition struct {
				ExternalParameters   struct{ Targets []string }
				InternalParameters   struct{ SourcesModified bool }
				ResolvedDependencies []resource
			}
		}
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("%x", sha256.Sum256([]byte("content"))); len(got.Subject) != 1 || got.Subject[0].Digest["sha256"] != want {
		t.Errorf("subject: got %v, want %s", got.Subject, want)
	}
	made := got.Predicate.BuildDefinition
	if len(made.ExternalParameters.Targets) != 1 || made.ExternalParameters.Targets[0] != "linux/amd64" || !made.InternalParameters.SourcesModified {
		t.Errorf("parameters: got %+v, want linux/amd64 of sources that were modified", made)
	}
	if d := made.ResolvedDependencies; len(d) != 3 || d[0].Digest["gitCommit"] != "abc" || d[2].URI != "pkg:golang/example.com/a@v1.2.3" || d[2].Digest["dirHash"] != "h1:x" {
		t.Errorf("dependencies: got %+v, want the commit, Go and a module", d)
	}
}

// TestBuiltTwice builds a release in two clones, in folders of different names, with an
// empty build cache for one of them, and compares all bytes.
func TestBuiltTwice(t *testing.T) {
	if os.Getenv("KELSON_LONG") == "" {
		t.Skip("builds the program four times; KELSON_LONG=1 runs it")
	}
	root, err := exec.Command("git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		t.Skip("not in a clone of the repository")
	}
	// The same commit for both, even if there is a newer one meanwhile.
	head, err := exec.Command("git", "rev-parse", "HEAD").Output()
	if err != nil {
		t.Fatal(err)
	}
	var sums []string
	for _, folder := range []string{"a", "another/folder"} {
		clone := filepath.Join(t.TempDir(), folder)
		run := func(dir string, args ...string) {
			t.Helper()
			cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
			if cmd.Dir = dir; folder != "a" {
				cmd.Env = append(os.Environ(), "GOCACHE="+filepath.Join(t.TempDir(), "cache"))
			}
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %v: %s", args, err, out)
			}
		}
		run("", "git", "clone", "--quiet", strings.TrimSpace(string(root)), clone)
		run(clone, "git", "checkout", "--quiet", "--detach", strings.TrimSpace(string(head)))
		run(clone, "go", "run", "./internal/release", "-o", "dist", "-targets", "linux/amd64")
		text, err := os.ReadFile(filepath.Join(clone, "dist", "SHA256SUMS"))
		if err != nil {
			t.Fatal(err)
		}
		sums = append(sums, string(text))
	}
	if sums[0] != sums[1] {
		t.Errorf("the second build differs:\n%s\n%s", sums[0], sums[1])
	}
}
