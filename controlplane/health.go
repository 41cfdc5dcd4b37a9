package controlplane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/apikeel/kelson"
)

// storageTimeout bounds how long the store has to say that it is there, unless the
// configuration does.
const storageTimeout = 2 * time.Second

// checks are what must be well for the server to be so. The store has the name
// that clients know it by.
func (a *assembly) checks() []kelson.HealthCheck {
	var checks []kelson.HealthCheck
	for i, p := range a.places.all {
		stored := func(timeout time.Duration) func(ctx context.Context) error {
			return func(ctx context.Context) error { return p.health.check(ctx, cmp.Or(timeout, storageTimeout)) }
		}
		healthy, ready := "etcd", "etcd-readiness"
		if i > 0 {
			healthy, ready = fmt.Sprintf("etcd-override-%d", i-1), fmt.Sprintf("etcd-override-readiness-%d", i-1)
		}
		checks = append(checks,
			kelson.HealthCheck{Name: healthy, Group: "etcd", Check: stored(a.HealthTimeout)},
			kelson.HealthCheck{Name: ready, Group: "etcd-readiness", On: kelson.Readyz, Check: stored(a.ReadyTimeout)})
	}
	if a.encrypted != nil {
		for _, c := range a.encrypted.HealthChecks() {
			// A service for keys does not come back because this server starts again.
			checks = append(checks, kelson.HealthCheck{Name: c.Name, On: kelson.Healthz | kelson.Readyz, Check: c.Check})
		}
	}
	return append(checks, kelson.HealthCheck{Name: "informer-sync", On: kelson.Readyz, Check: func(context.Context) error {
		if a.synced != nil && !a.synced() {
			return errors.New("flow schemas and priority levels have not been read yet")
		}
		return nil
	}})
}

// tellManager tells a service manager when the server is ready, and when it is
// about to end, at the latest when ctx ends.
func tellManager(ctx context.Context, socket string, signals *kelson.Signals, log *slog.Logger) {
	tell := func(state string) {
		if err := notify(socket, state); err != nil {
			log.Warn("the service manager cannot be told", "state", state, "error", err)
		}
	}
	select {
	case <-signals.MuxAndDiscoveryComplete.Happened():
		tell("READY=1")
	case <-signals.ShutdownInitiated.Happened():
	case <-ctx.Done():
	}
	select {
	case <-signals.ShutdownInitiated.Happened():
	case <-ctx.Done():
	}
	tell("STOPPING=1")
}

// notifyWithin is how long a service manager has to take a message.
const notifyWithin = time.Second

// notify sends a message in systemd's protocol. A name that begins with @ is one
// that is in no file system.
func notify(socket, state string) error {
	if rest, ok := strings.CutPrefix(socket, "@"); ok {
		socket = "\x00" + rest
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		return err
	}
	_ = conn.SetWriteDeadline(time.Now().Add(notifyWithin))
	_, err = conn.Write([]byte(state))
	return errors.Join(err, conn.Close())
}
