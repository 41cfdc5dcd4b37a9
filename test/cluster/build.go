package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Versions of what is built.
const (
	kubernetesVersion = "v1.37.1"
	etcdVersion       = "v3.7.3"
)

// build compiles the programs from their modules, in a module that is made for it: they
// would be too large as dependencies of this one.
func build(ctx context.Context, args []string, log io.Writer) error {
	fs := flag.NewFlagSet("build", flag.ContinueOnError)
	fs.SetOutput(log)
	into := fs.String("into", "", "`folder` for the programs; those that it has are not built again")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *into == "" {
		return errors.New("build needs -into")
	}
	target, err := filepath.Abs(*into)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "cluster-build")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	// go runs a command in the folder and returns what it prints.
	run := func(dir string, args ...string) ([]byte, error) {
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Dir = dir
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, log
		err := cmd.Run()
		if err != nil {
			err = fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
		}
		return out.Bytes(), err
	}

	etcd := filepath.Join(work, "etcd")
	kubernetes := filepath.Join(work, "kubernetes")
	if err := errors.Join(os.MkdirAll(etcd, 0o755), os.MkdirAll(kubernetes, 0o755)); err != nil {
		return err
	}
	err = errors.Join(
		os.WriteFile(filepath.Join(etcd, "go.mod"), []byte("module etcd\n\ngo 1.26\n\nrequire go.etcd.io/etcd/server/v3 "+etcdVersion+"\n"), 0o644),
		os.WriteFile(filepath.Join(etcd, "main.go"), []byte("package main\n\nimport (\n\t\"os\"\n\n\t\"go.etcd.io/etcd/server/v3/etcdmain\"\n)\n\nfunc main() { etcdmain.Main(os.Args) }\n"), 0o644))
	if err != nil {
		return err
	}
	text, err := run(work, "mod", "download", "-json", "k8s.io/kubernetes@"+kubernetesVersion)
	if err != nil {
		return err
	}
	var module struct{ GoMod string }
	if err := json.Unmarshal(text, &module); err != nil {
		return err
	}
	goMod, err := os.ReadFile(module.GoMod)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(kubernetes, "go.mod"), []byte(kubernetesModule(string(goMod))), 0o644); err != nil {
		return err
	}

	version := "k8s.io/component-base/version"
	flags := "-s -w -X " + version + ".gitVersion=" + kubernetesVersion + " -X " + version + ".gitMajor=1 -X " + version + ".gitMinor=37"
	for _, program := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		file := filepath.Join(target, program)
		if _, err := os.Stat(file); err == nil {
			continue
		}
		fmt.Fprintln(log, "building", program)
		dir, what := kubernetes, "k8s.io/kubernetes/cmd/"+program
		if program == "etcd" {
			dir, what = etcd, "."
		}
		if _, err := run(dir, "build", "-mod=mod", "-race=false", "-ldflags", flags, "-o", file, what); err != nil {
			return err
		}
	}
	return nil
}

// kubernetesModule returns the go.mod of a module that builds programs of Kubernetes. Its
// own go.mod requires the modules that are developed with it at v0.0.0; they are
// published at the version that belongs to it.
func kubernetesModule(goMod string) string {
	var b strings.Builder
	b.WriteString("module kubernetes\n\ngo 1.26\n\nrequire k8s.io/kubernetes " + kubernetesVersion + "\n\nreplace (\n")
	published := "v0" + strings.TrimPrefix(kubernetesVersion, "v1")
	for line := range strings.Lines(goMod) {
		fields := strings.Fields(line)
		if len(fields) >= 2 && strings.HasPrefix(fields[0], "k8s.io/") && fields[1] == "v0.0.0" {
			fmt.Fprintf(&b, "\t%s => %s %s\n", fields[0], fields[0], published)
		}
	}
	b.WriteString(")\n")
	return b.String()
}
