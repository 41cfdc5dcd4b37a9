package apiserver

//lint:file-ignore SA1019 kube-apiserver still keeps Endpoints in the keys of servers

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/wire"
)

// ownKey is a key in the store that says that a server is there. It expires with the
// server. Its value is an Endpoints object, as with kube-apiserver.
//
// When a server is replaced on its machine without a gap, two processes have the same key
// for a while. It belongs to the one that was started last: the other one leaves it alone
// from then on, and does not remove it at its end.
type ownKey struct {
	*presence
	store   storage.Backend
	name    string
	started int64 // when this process took the key, in nanoseconds of Unix time
}

// startedAnnotation is the annotation with the start of the process that has a key.
const startedAnnotation = "kelson/started"

func newOwnKey(store storage.Backend, name, what string, log *slog.Logger) *ownKey {
	return &ownKey{newPresence(what, log), store, name, time.Now().UnixNano()}
}

// isTaken reports whether a process that was started later has the key.
func (k *ownKey) isTaken(lease *corev1.Endpoints) bool {
	started, err := strconv.ParseInt(lease.Annotations[startedAnnotation], 10, 64)
	return err == nil && started > k.started
}

// renew writes the key, with what fill sets.
func (k *ownKey) renew(ctx context.Context, ttl time.Duration, fill func(lease *corev1.Endpoints)) error {
	for {
		lease := &corev1.Endpoints{}
		kv, err := k.store.Get(ctx, k.name)
		switch {
		case err == nil:
			if lease = readLease(kv.Value); k.isTaken(lease) {
				return nil
			}
		case !errors.Is(err, storage.ErrNotFound):
			return err
		}
		fill(lease)
		if lease.Annotations == nil {
			lease.Annotations = map[string]string{}
		}
		lease.Annotations[startedAnnotation] = strconv.FormatInt(k.started, 10)
		lease.Generation++ // a value that does not change might not be written
		raw, err := lease.Marshal()
		if err != nil {
			return err
		}
		value := wire.AppendEnvelope(nil, "v1", "Endpoints", raw)
		if kv.ModRevision == 0 {
			_, err = k.store.Create(ctx, k.name, value, ttl)
		} else {
			_, err = k.store.Update(ctx, k.name, value, kv.ModRevision, ttl)
		}
		if !errors.Is(err, storage.ErrExists) && !errors.Is(err, storage.ErrConflict) && !errors.Is(err, storage.ErrNotFound) {
			return err
		}
	}
}

// remove removes the key unless another process has taken it.
func (k *ownKey) remove(ctx context.Context) error {
	for {
		kv, err := k.store.Get(ctx, k.name)
		if err == nil && !k.isTaken(readLease(kv.Value)) {
			_, _, err = k.store.Delete(ctx, kv.Key, kv.ModRevision)
		}
		switch {
		case errors.Is(err, storage.ErrConflict):
			continue // it was renewed meanwhile
		case errors.Is(err, storage.ErrNotFound):
			return nil
		}
		return err
	}
}
