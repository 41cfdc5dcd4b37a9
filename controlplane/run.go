package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"

	"github.com/apikeel/kelson/pki"
	"github.com/apikeel/kelson/storage"
)

// Run opens the store and serves until ctx ends. That is no error.
func (c Config) Run(ctx context.Context) error {
	if err := c.complete(); err != nil {
		return err
	}
	store, err := c.open(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	// A server that others cannot ask is worth more than none: some file
	// systems have no sockets.
	var door *control
	if c.Storage == StorageEngine {
		if door, err = listen(c.DataDir, store, c.Logger); err != nil {
			c.Logger.Warn("no control socket: snapshots can only be taken when this process has ended", "error", err)
		}
	}
	err = c.serve(ctx, store)
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = nil
	}
	// The socket goes first: as long as the store is locked it is ours.
	return errors.Join(err, door.close(), store.Close())
}

// serve answers requests until ctx ends.
func (c *Config) serve(ctx context.Context, store storage.Backend) error {
	authority, err := c.authority()
	if err != nil {
		return err
	}
	server, err := c.Server(ctx, store, authority)
	if err != nil {
		return err
	}
	server.Addr = net.JoinHostPort(c.BindAddress, strconv.Itoa(*c.SecurePort))
	if server.Listen() == nil {
		err = authority.WriteKubeconfig(c.Kubeconfig, server.URL())
		if err == nil {
			err = c.greet(server.URL())
		}
		if err != nil {
			var cancel context.CancelFunc
			ctx, cancel = context.WithCancel(ctx)
			cancel() // Run closes what there is
		}
	}
	return errors.Join(err, server.Run(ctx))
}

// authority returns the certificates, those of the data folder unless nothing
// is kept.
func (c *Config) authority() (*pki.Authority, error) {
	if c.Storage == StorageMemory {
		return pki.New(c.BindAddress)
	}
	return pki.Open(filepath.Join(c.DataDir, "pki"), c.BindAddress)
}

// greet tells the person who started the server what to do next.
func (c *Config) greet(url string) error {
	_, err := fmt.Fprintf(c.Out, `Kelson serves the Kubernetes API at %s
It keeps its data %s. Press Ctrl-C to stop.

In another terminal:
  kubectl --kubeconfig %s get namespaces
`, url, c.describe(), c.Kubeconfig)
	return err
}
