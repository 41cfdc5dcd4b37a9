package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	library "github.com/apikeel/kelson"
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

// version returns the version and build information of this binary.
func version() string {
	name, commit := "unknown", ""
	if info, ok := debug.ReadBuildInfo(); ok {
		name = info.Main.Version
		for _, set := range info.Settings {
			switch {
			case set.Key == "vcs.revision":
				commit = ", commit " + set.Value + commit
			case set.Key == "vcs.modified" && set.Value == "true":
				commit += " with changes"
			}
		}
	}
	return fmt.Sprintf("kelson %s (%s %s/%s%s)", name, runtime.Version(), runtime.GOOS, runtime.GOARCH, commit)
}
