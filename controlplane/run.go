package controlplane

import (
	"context"
	"errors"
	"fmt"

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
	err = c.greet(ctx, store)
	if err == nil {
		<-ctx.Done()
		c.Logger.Info("stopping")
	} else if ctx.Err() != nil {
		err = nil
	}
	// The socket goes first: as long as the store is locked it is ours.
	return errors.Join(err, door.close(), store.Close())
}

// greet tells the person who started the server what there is.
func (c *Config) greet(ctx context.Context, store storage.Backend) error {
	keys, revision, err := store.Count(ctx, storage.Root)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.Out, "Kelson keeps its data %s: revision %d, %d keys.\n", c.describe(), revision, keys)
	if err == nil {
		_, err = fmt.Fprintf(c.Out, "The API is not served yet by this version.\nPress Ctrl-C to stop.\n")
	}
	return err
}
