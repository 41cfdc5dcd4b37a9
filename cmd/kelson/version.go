package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	library "github.com/apikeel/kelson"
	"github.com/apikeel/kelson/budget"
	"github.com/spf13/cobra"
)

// versionFlag prints the version instead of starting a server: "true" the short form,
// "raw" all details.
type versionFlag string

// Set implements pflag.Value.
func (f *versionFlag) Set(text string) error {
	if text == "raw" {
		*f = "raw"
		return nil
	}
	served, _, _ := strings.Cut(library.Version().GitVersion, "+")
	if strings.HasPrefix(text, "v") {
		if name := text[:strings.IndexAny(text+"+", "+-")]; name != served {
			return fmt.Errorf("version %q must match major/minor/patch of default version %q", text, served)
		}
		return nil
	}
	on, err := strconv.ParseBool(text)
	if *f = ""; on {
		*f = "true"
	}
	return err
}

// String implements pflag.Value.
func (f *versionFlag) String() string {
	if *f == "" {
		return "false"
	}
	return string(*f)
}

// Type implements pflag.Value.
func (*versionFlag) Type() string { return "version" }

// show prints the version in kube-apiserver's form.
func (f versionFlag) show(w io.Writer) error {
	var err error
	if f == "raw" {
		_, err = fmt.Fprintf(w, "%#v\n", library.Version())
	} else {
		_, err = fmt.Fprintf(w, "Kubernetes %s\n", library.Version())
	}
	return err
}

// newVersion returns 'kelson version'.
func newVersion(s streams) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the version, and what a bug report needs",
		Example: `  kelson version
  kelson version -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := readBuild()
			switch output {
			case "text":
				return b.print(s.out)
			case "json":
				text, err := json.MarshalIndent(b, "", "  ")
				if err == nil {
					_, err = fmt.Fprintf(s.out, "%s\n", text)
				}
				return err
			}
			return usage(cmd, "--output=%s is not one of text and json", output)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "`form` of the answer: text or json")
	return cmd
}

// build is everything about this binary and the machine that a bug report needs.
type build struct {
	Version    string `json:"version"`
	Commit     string `json:"commit,omitempty"`
	CommitTime string `json:"commitTime,omitempty"`
	Modified   bool   `json:"modified"`
	Kubernetes string `json:"kubernetes"`
	Go         string `json:"go"`
	Platform   string `json:"platform"`
	// Settings are the flags of the build: tags, cgo, the race detector.
	Settings map[string]string `json:"settings,omitempty"`
	// Libraries are the versions of those that most of the behaviour comes from.
	Libraries   map[string]string `json:"libraries,omitempty"`
	CPUs        int               `json:"cpus"`
	MemoryBytes int64             `json:"memoryBytes"`
}

// namedLibraries are the dependencies whose version is shown.
func namedLibraries() []string {
	return []string{"github.com/cockroachdb/pebble/v2", "go.etcd.io/etcd/client/v3", "github.com/jackc/pgx/v5", "k8s.io/api", "github.com/google/cel-go"}
}

func readBuild() build {
	b := build{
		Version: bareVersion(), Kubernetes: library.Version().GitVersion, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		Settings: map[string]string{}, Libraries: map[string]string{}, CPUs: runtime.GOMAXPROCS(0), MemoryBytes: budget.Available(),
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	for _, set := range info.Settings {
		switch set.Key {
		case "vcs.revision":
			b.Commit = set.Value
		case "vcs.time":
			b.CommitTime = set.Value
		case "vcs.modified":
			b.Modified = set.Value == "true"
		case "-tags", "-race", "CGO_ENABLED", "GOAMD64", "GOARM64", "GOEXPERIMENT", "-trimpath":
			b.Settings[set.Key] = set.Value
		}
	}
	for _, module := range info.Deps {
		if slices.Contains(namedLibraries(), module.Path) {
			b.Libraries[module.Path] = module.Version
		}
	}
	return b
}

// print writes the line of version, and below it the rest.
func (b build) print(w io.Writer) error {
	var text strings.Builder
	fmt.Fprintln(&text, version())
	fmt.Fprintf(&text, "serves      Kubernetes %s\n", b.Kubernetes)
	if b.CommitTime != "" {
		fmt.Fprintf(&text, "committed   %s\n", b.CommitTime)
	}
	fmt.Fprintf(&text, "machine     %d CPUs, %s of memory\n", b.CPUs, size(b.MemoryBytes))
	for _, part := range []struct {
		title  string
		values map[string]string
	}{{"build", b.Settings}, {"libraries", b.Libraries}} {
		for i, name := range slices.Sorted(maps.Keys(part.values)) {
			title := part.title
			if i > 0 {
				title = ""
			}
			fmt.Fprintf(&text, "%-11s %s %s\n", title, name, part.values[name])
		}
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// released is the version of a release, set by the linker; empty in other builds, which
// have the version that Go derives from the repository.
var released string

// bareVersion returns the version of this binary, such as v1.2.3.
func bareVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return cmp.Or(released, info.Main.Version, "unknown")
	}
	return cmp.Or(released, "unknown")
}

// version returns the version and build information of this binary.
func version() string {
	commit := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, set := range info.Settings {
			switch {
			case set.Key == "vcs.revision":
				commit = ", commit " + set.Value + commit
			case set.Key == "vcs.modified" && set.Value == "true":
				commit += " with changes"
			}
		}
	}
	return fmt.Sprintf("kelson %s (%s %s/%s%s)", bareVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH, commit)
}
