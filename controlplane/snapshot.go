package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/engine"
	"github.com/apikeel/kelson/storage/etcd"
	"github.com/apikeel/kelson/storage/postgres"
	"github.com/apikeel/kelson/storage/transfer"
)

const (
	// startGrace is how long a process that holds the lock of a store is given
	// to open its control socket, or to end.
	startGrace = 2 * time.Second
	startPoll  = 50 * time.Millisecond
)

// Snapshot writes a snapshot of the server's data to w, whether the server is
// running or not. Progress is told as in transfer.Save.
func (c Config) Snapshot(ctx context.Context, w io.Writer, progress func(keys, bytes int64)) (transfer.Summary, error) {
	if err := c.complete(); err != nil {
		return transfer.Summary{}, err
	}
	switch c.Storage {
	case StorageMemory:
		return transfer.Summary{}, errors.New("what a server keeps in memory cannot be saved")
	case StorageEtcd:
		c.Etcd.CompactInterval = -1 // leave that to the servers
		b, err := etcd.Open(ctx, c.Etcd)
		if err != nil {
			return transfer.Summary{}, err
		}
		return saveAndClose(ctx, b, w, progress)
	case StoragePostgres:
		c.Postgres.CompactInterval = -1
		b, err := postgres.Open(ctx, c.Postgres)
		if err != nil {
			return transfer.Summary{}, err
		}
		return saveAndClose(ctx, b, w, progress)
	}
	return c.snapshotFolder(ctx, w, progress)
}

// snapshotFolder saves the store of the data folder.
func (c *Config) snapshotFolder(ctx context.Context, w io.Writer, progress func(keys, bytes int64)) (s transfer.Summary, err error) {
	err = c.withFolder(ctx, http.MethodGet, "/snapshot", func(e *engine.Engine) (err error) {
		s, err = transfer.Save(ctx, e, w, progress)
		return err
	}, func(body io.Reader) (err error) {
		s, err = receive(body, w, progress)
		return err
	})
	return s, err
}

// withFolder opens the store or, if another process has it open, sends that one a request
// and reads its answer. A process that is starting or ending may do neither for a moment.
func (c *Config) withFolder(ctx context.Context, method, path string, open func(*engine.Engine) error, read func(io.Reader) error) error {
	for began := time.Now(); ; {
		e, err := OpenFolder(c.DataDir)
		if err == nil {
			return errors.Join(open(e), e.Close())
		}
		if !errors.Is(err, engine.ErrLocked) {
			return err
		}
		resp, askErr := ask(ctx, method, c.DataDir, path)
		switch {
		case askErr == nil:
			defer resp.Body.Close()
			return read(resp.Body)
		case !nobodyThere(askErr):
			return fmt.Errorf("asking the process that has %s open: %w", c.DataDir, askErr)
		case time.Since(began) > startGrace:
			return fmt.Errorf("%w; that process does not answer: %w", err, askErr)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(startPoll):
		}
	}
}

// nobodyThere tells that no process listens on the control socket.
func nobodyThere(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
}

func saveAndClose(ctx context.Context, b storage.Backend, w io.Writer, progress func(keys, bytes int64)) (transfer.Summary, error) {
	s, err := transfer.Save(ctx, b, w, progress)
	return s, errors.Join(err, b.Close())
}

// receive passes a snapshot on, verifying it on the way.
func receive(body io.Reader, w io.Writer, progress func(keys, bytes int64)) (transfer.Summary, error) {
	out := &countedWriter{Writer: w}
	r, err := transfer.NewReader(io.TeeReader(body, out))
	for err == nil {
		if _, err = r.Next(); err == nil && progress != nil {
			progress(r.Summary().Keys, out.bytes)
		}
	}
	if err != io.EOF {
		return transfer.Summary{}, fmt.Errorf("receiving from the server: %w", err)
	}
	return r.Summary(), nil
}

type countedWriter struct {
	io.Writer
	bytes int64
}

func (w *countedWriter) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	w.bytes += int64(n)
	return n, err
}

// OpenFolder opens the store in a data folder that no server is running on.
// Unlike a server it makes nothing, and it keeps all of the store's history, also what
// Config.History has kept.
func OpenFolder(dataDir string) (*engine.Engine, error) {
	dir := StoreDir(dataDir)
	names, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || (err == nil && len(names) == 0):
		return nil, fmt.Errorf("%w: there is no store in %s", engine.ErrNotStore, dataDir)
	case err != nil:
		return nil, fmt.Errorf("cannot read the data folder: %w", err)
	}
	const never = 100 * 365 * 24 * time.Hour
	return engine.Open(engine.Options{Dir: dir, HistoryAge: never, HistoryCount: math.MaxInt64 / 2, RetainAge: never, RetainBytes: math.MaxInt64})
}
