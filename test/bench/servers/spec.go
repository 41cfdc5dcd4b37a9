// Package servers starts the servers that benchmarks measure, and reads the CPU time and
// memory of their processes. Start at Parse, then Spec.Launch.
package servers

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Kind says how a server is started.
type Kind int

// Kinds of servers.
const (
	KelsonProgram Kind = iota // a program that is Kelson
	KelsonSources             // a folder to build it from
	KubeAPIServer             // a folder with kube-apiserver and etcd
	Kcp                       // a folder with kcp, whose etcd is part of it
	Running                   // a kubeconfig
)

// Spec says which server to measure, as a user has written it.
type Spec struct {
	Name     string
	Kind     Kind
	Path     string
	Etcd     string   // program, for Kelson on etcd
	Postgres string   // folder of programs, for Kelson on PostgreSQL
	Args     []string // more arguments of the server
}

// Parse reads [NAME=]PATH[,OPTION]…. What PATH names says what kind of server it is; the
// options are etcd=PROGRAM, postgres=FOLDER and arg=TEXT.
func Parse(text string) (Spec, error) {
	parts := strings.Split(text, ",")
	var s Spec
	name, path, named := strings.Cut(parts[0], "=")
	if !named {
		name, path = "", parts[0]
	}
	info, err := os.Stat(path)
	if err != nil {
		return s, err
	}
	switch {
	case info.IsDir() && exists(path, "kube-apiserver"):
		if !exists(path, "etcd") {
			return s, fmt.Errorf("%s has kube-apiserver but no etcd", path)
		}
		s.Kind, s.Name = KubeAPIServer, "kube-apiserver"
	case info.IsDir() && exists(path, "kcp"):
		s.Kind, s.Name = Kcp, "kcp"
	case info.IsDir() && exists(path, "go.mod"):
		s.Kind, s.Name = KelsonSources, "kelson"
	case info.IsDir():
		return s, fmt.Errorf("%s has none of kube-apiserver, kcp and go.mod", path)
	case info.Mode()&0o111 != 0:
		s.Kind, s.Name = KelsonProgram, filepath.Base(path)
	default:
		s.Kind, s.Name = Running, filepath.Base(path)
	}
	if named {
		s.Name = name
	}
	if s.Path, err = filepath.Abs(path); err != nil {
		return s, err
	}
	for _, option := range parts[1:] {
		key, value, _ := strings.Cut(option, "=")
		switch key {
		case "etcd":
			s.Etcd, err = filepath.Abs(value)
		case "postgres":
			s.Postgres, err = filepath.Abs(value)
		case "arg":
			s.Args = append(s.Args, value)
		default:
			return s, fmt.Errorf("option %q of %s is none of etcd, postgres and arg", key, s.Name)
		}
		if err != nil {
			return s, err
		}
	}
	if s.Etcd != "" && s.Postgres != "" {
		return s, errors.New("a server has etcd or PostgreSQL, not both")
	}
	return s, nil
}

func exists(dir, name string) bool {
	_, err := os.Stat(filepath.Join(dir, name))
	return err == nil
}
