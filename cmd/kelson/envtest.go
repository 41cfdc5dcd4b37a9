package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/apikeel/kelson/controlplane"
	"github.com/spf13/cobra"
)

// Program names that envtest starts, besides kubeName.
const (
	etcdName    = "etcd"
	kubectlName = "kubectl"
)

// newEnvtestAssets creates a folder for KUBEBUILDER_ASSETS.
func newEnvtestAssets(s streams) *cobra.Command {
	var duplicate bool
	var etcd, controllers string
	cmd := &cobra.Command{
		Use:   "envtest-assets DIR",
		Short: "Make a folder that envtest starts Kelson from",
		Long: `Make a folder for KUBEBUILDER_ASSETS, with programs of the names that envtest
starts: kube-apiserver and etcd, which are links to Kelson, and kubectl, if there
is one.

That etcd keeps nothing, and kube-apiserver knows it: the data is in memory, and
unlike those of kube-apiserver its namespaces end when they are deleted, and
dependents follow their owners.`,
		Example: `  kelson envtest-assets bin/kelson
  KUBEBUILDER_ASSETS=$PWD/bin/kelson go test ./...`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage(cmd, "give one DIR, not %d", len(args))
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			dir, err := filepath.Abs(args[0])
			if err != nil {
				return err
			}
			self, err := os.Executable()
			if err != nil {
				return err
			}
			place := link
			if duplicate {
				place = copyFile
			}
			if err := assets(dir, self, etcd, controllers, place); err != nil {
				return err
			}
			_, err = fmt.Fprintf(s.out, "export KUBEBUILDER_ASSETS=%s\n", dir)
			return err
		},
	}
	cmd.Flags().BoolVar(&duplicate, "copy", false, "copy the program instead of linking to it")
	cmd.Flags().StringVar(&etcd, "etcd", "", "`program` of a real etcd, to keep the data in")
	cmd.Flags().StringVar(&controllers, "controllers", "", "`names` of controllers that run, as 'kelson serve' has them (default namespace,garbagecollector)")
	return cmd
}

// assets fills the folder.
func assets(dir, self, etcd, controllers string, place func(from, to string) error) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	programs := map[string]string{kubeName: self, etcdName: self, kubectlName: self}
	if found, err := exec.LookPath(kubectlName); err == nil {
		if programs[kubectlName], err = filepath.Abs(found); err != nil {
			return err
		}
	}
	if etcd != "" {
		var err error
		if programs[etcdName], err = filepath.Abs(etcd); err != nil {
			return err
		}
		// An etcd that keeps data could belong to a cluster whose controllers run
		// elsewhere. In a test they do not.
		if controllers == "" {
			controllers = "namespace,garbagecollector"
		}
	}
	if controllers != "" {
		delete(programs, kubeName)
		if err := script(filepath.Join(dir, kubeName), self, controllers); err != nil {
			return err
		}
	}
	for name, program := range programs {
		path := filepath.Join(dir, name)
		if same(program, path) {
			continue // found in this folder
		}
		if err := replace(path, func(to string) error { return place(program, to) }); err != nil {
			return err
		}
	}
	return nil
}

// same reports whether two paths are the same file.
func same(a, b string) bool {
	x, errX := os.Lstat(a)
	y, errY := os.Lstat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}

// script writes a shell script that starts kube-apiserver with controllers.
func script(path, self, controllers string) error {
	quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
	text := fmt.Sprintf("#!/bin/sh\nexec %s %s --controllers=%s --leader-elect=false \"$@\"\n", quote(self), kubeName, quote(controllers))
	return replace(path, func(to string) error { return os.WriteFile(to, []byte(text), 0o755) })
}

// replace writes a file atomically, also over one that is running.
func replace(path string, write func(to string) error) error {
	next := fmt.Sprintf("%s.%d", path, os.Getpid())
	if err := write(next); err != nil {
		return errors.Join(err, os.RemoveAll(next))
	}
	return os.Rename(next, path)
}

func link(from, to string) error { return os.Symlink(from, to) }

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// namespaceDelay gives tests that were written for envtest time to finish a namespace
// themselves, as they did because envtest has no controllers.
const namespaceDelay = 2 * time.Second

// envtestControllers selects the controllers for a server beside an idle etcd: those
// that finish namespaces and collect garbage. Controllers that create objects stay off,
// since tests count objects, and dependents of owners that do not exist are kept.
func envtestControllers(config *controlplane.Config, chosen bool) {
	config.NamespaceDelay, config.InventedOwners = namespaceDelay, true
	if !chosen {
		config.Controllers = []string{"namespace", "garbagecollector"}
	}
}

// newIdleEtcd is a stand-in for etcd, for programs that start one beside an API server
// that needs none.
func newIdleEtcd() *cobra.Command {
	var clients []string
	cmd := &cobra.Command{
		Use:    etcdName,
		Short:  "Answer as an etcd that is well, and keep nothing",
		Hidden: true,
		Args:   cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return idle(cmd.Context(), clients)
		},
		// Other flags of etcd are ignored.
		FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true},
	}
	cmd.Flags().StringSliceVar(&clients, "listen-client-urls", []string{"http://localhost:2379"}, "`URLs` to listen on")
	return cmd
}

// idle serves etcd's health endpoint on some addresses.
func idle(ctx context.Context, clients []string) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(idleHeader, "true")
		_, _ = io.WriteString(w, `{"health":"true","reason":""}`)
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, len(clients))
	for _, client := range clients {
		address, err := url.Parse(client)
		if err != nil {
			return err
		}
		if address.Scheme != "http" {
			return fmt.Errorf("%s: an etcd that keeps nothing is reached over http only", client)
		}
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address.Host)
		if err != nil {
			return errors.Join(err, server.Close())
		}
		go func() { ended <- server.Serve(listener) }()
	}
	select {
	case <-ctx.Done():
		return server.Close()
	case err := <-ended:
		return errors.Join(err, server.Close())
	}
}

// newNoKubectl is a stand-in for kubectl where envtest expects one.
func newNoKubectl() *cobra.Command {
	return &cobra.Command{
		Use:                kubectlName,
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("there is no kubectl here: install it, and run 'kelson envtest-assets' again with it in PATH")
		},
	}
}
