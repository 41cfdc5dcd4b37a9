package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// serverKind says how a server is started.
type serverKind int

const (
	kelsonProgram serverKind = iota
	kelsonSources
	kubeAPIServer
	runningServer // named by a kubeconfig
)

// spec says which server to measure, as a user has written it.
type spec struct {
	name     string
	kind     serverKind
	path     string
	etcd     string // program, for Kelson on etcd
	postgres string // folder of programs, for Kelson on PostgreSQL
	args     []string
}

// parseSpec reads [NAME=]PATH[,OPTION]….
func parseSpec(text string) (spec, error) {
	parts := strings.Split(text, ",")
	var s spec
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
		s.kind, s.name = kubeAPIServer, "kube-apiserver"
	case info.IsDir() && exists(path, "go.mod"):
		s.kind, s.name = kelsonSources, "kelson"
	case info.IsDir():
		return s, fmt.Errorf("%s has neither kube-apiserver nor go.mod", path)
	case info.Mode()&0o111 != 0:
		s.kind, s.name = kelsonProgram, filepath.Base(path)
	default:
		s.kind, s.name = runningServer, filepath.Base(path)
	}
	if named {
		s.name = name
	}
	if s.path, err = filepath.Abs(path); err != nil {
		return s, err
	}
	for _, option := range parts[1:] {
		key, value, _ := strings.Cut(option, "=")
		switch key {
		case "etcd":
			s.etcd, err = filepath.Abs(value)
		case "postgres":
			s.postgres, err = filepath.Abs(value)
		case "arg":
			s.args = append(s.args, value)
		default:
			return s, fmt.Errorf("option %q of %s is none of etcd, postgres and arg", key, s.name)
		}
		if err != nil {
			return s, err
		}
	}
	if s.etcd != "" && s.postgres != "" {
		return s, errors.New("a server has etcd or PostgreSQL, not both")
	}
	return s, nil
}

func exists(dir, name string) bool {
	_, err := os.Stat(filepath.Join(dir, name))
	return err == nil
}
