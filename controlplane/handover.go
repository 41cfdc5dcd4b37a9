package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/engine"
)

// How often, and for how long, a process looks whether the one that it replaces has let go
// of the store.
const (
	handoverEvery  = 2 * time.Millisecond
	handoverWithin = 2 * time.Minute
)

// addr returns where the server listens.
func (c *Config) addr() string { return net.JoinHostPort(c.BindAddress, strconv.Itoa(*c.SecurePort)) }

// takeOver opens the embedded store while another process has it, which ends for that.
// With --permit-port-sharing both have the port: connections that come meanwhile wait for
// this process, and none is refused. What can fail, or takes time, and does not need the
// store comes before the other process is told to end.
func (c *Config) takeOver(ctx context.Context) (storage.Backend, error) {
	if err := c.CheckFiles(ctx, true); err != nil {
		return nil, err
	}
	if *c.SecurePort != 0 {
		var err error
		if c.listener, err = c.Serving.Listen(c.addr()); err != nil {
			return nil, err
		}
	}
	store, err := c.awaitStore(ctx)
	if err != nil && c.listener != nil {
		err = errors.Join(err, c.listener.Close())
	}
	return store, err
}

// awaitStore tells the process that has the store to end, and opens the store when it has.
func (c *Config) awaitStore(ctx context.Context) (storage.Backend, error) {
	resp, err := ask(ctx, http.MethodPost, c.DataDir, "/handover")
	if err != nil {
		return nil, fmt.Errorf("the data folder %s is in use by another process, which does not hand it over: %w", c.DataDir, err)
	}
	_ = resp.Body.Close()
	c.Logger.Info("another process has the data folder, and ends for this one")
	tick := time.NewTicker(handoverEvery)
	defer tick.Stop()
	for end := time.Now().Add(handoverWithin); ; {
		store, err := c.open(ctx)
		if !errors.Is(err, engine.ErrLocked) || time.Now().After(end) {
			return store, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
