// Command generate makes the definitions that package openapi embeds: it reads
// the Go source of the API types, with their comments and markers, and writes
// a pack.
//
// It works in two steps, since the generator of kube-openapi writes Go: the
// first generates that code in a folder of its own inside the module, the
// second compiles it and packs what it returns.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"k8s.io/gengo/v2"
	"k8s.io/gengo/v2/generator"
	"k8s.io/kube-openapi/cmd/openapi-gen/args"
	"k8s.io/kube-openapi/pkg/generators"
)

const (
	here = "github.com/apikeel/kelson/openapi/internal/generate"
	// marker is what packages whose types are part of the API carry.
	marker = "+k8s:openapi-gen=true"
)

const packer = `package main

import (
	"log"

	"%[1]s/definitions"
	"%[2]s/render"
)

func main() {
	if err := render.Write(%[3]q, definitions.GetOpenAPIDefinitions); err != nil {
		log.Fatal(err)
	}
}
`

func main() {
	out := flag.String("out", "", "the pack to write")
	dir := flag.String("dir", "", "folder of this command, inside the module")
	flag.Parse()
	log.SetFlags(0)
	if err := run(*dir, *out, flag.Args()); err != nil {
		log.Fatalf("generate: %v", err)
	}
}

func run(dir, out string, patterns []string) error {
	packages, err := marked(patterns)
	if err != nil {
		return err
	}
	out, err = filepath.Abs(out)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp(dir, "work")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)

	pkg := path.Join(here, filepath.Base(work))
	a := args.New()
	a.OutputDir = filepath.Join(work, "definitions")
	a.OutputPkg = path.Join(pkg, "definitions")
	a.OutputFile = "definitions.go"
	a.ReportFilename = filepath.Join(work, "violations.txt")
	targets := func(c *generator.Context) []generator.Target {
		return generators.GetOpenAPITargets(c, a, nil)
	}
	if err := gengo.Execute(generators.NameSystems(), generators.DefaultNameSystem(), targets, gengo.StdBuildTag, packages); err != nil {
		return err
	}

	main := filepath.Join(work, "main.go")
	if err := os.WriteFile(main, fmt.Appendf(nil, packer, pkg, here, out), 0o666); err != nil {
		return err
	}
	cmd := exec.Command("go", "run", main)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}

// marked returns the packages that patterns match and that carry the marker.
func marked(patterns []string) ([]string, error) {
	list := exec.Command("go", append([]string{"list", "-f", `{{.ImportPath}} {{.Dir}}`}, patterns...)...)
	list.Stderr = os.Stderr
	lines, err := list.Output()
	if err != nil {
		return nil, err
	}
	var packages []string
	for line := range strings.Lines(string(lines)) {
		name, dir, _ := strings.Cut(strings.TrimSpace(line), " ")
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			if strings.Contains(string(text), marker) {
				packages = append(packages, name)
				break
			}
		}
	}
	return packages, nil
}
