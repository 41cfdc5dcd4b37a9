package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/apikeel/kelson/storage"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// errUnread ends a stream whose events nobody takes.
var errUnread = errors.New("events are not being read")

// run receives events, over as many streams as it takes, until the watch ends.
func (w *watcher) run() {
	backoff := w.limits.backoff
	for w.ctx.Err() == nil {
		served, err := w.stream()
		switch {
		case w.ctx.Err() != nil:
			return
		case errors.Is(err, errUnread):
			w.b.log.Debug("watch suspended, its events are not being read", "prefix", w.prefix, "revision", w.start()-1)
			w.wait(w.drained, nil)
			continue
		case !temporary(err):
			w.fail(w.b.readError(w.ctx, err))
			return
		}
		if served {
			backoff = w.limits.backoff
		}
		w.b.log.Info("watch interrupted, resuming", "prefix", w.prefix, "revision", w.start()-1, "error", err)
		select {
		case <-w.ctx.Done():
		case <-time.After(backoff/2 + rand.N(backoff/2+1)):
		}
		backoff = min(2*backoff, w.limits.maxBackoff)
	}
}

// wait returns true when a condition on the buffer holds, checked whenever Next
// has taken from it, or false when the watch or the time is over.
func (w *watcher) wait(condition func() bool, timeout <-chan time.Time) bool {
	for !condition() {
		select {
		case <-w.room:
		case <-w.ctx.Done():
			return false
		case <-timeout:
			return false
		}
	}
	return true
}

// stream watches from the position on until something goes wrong. It reports
// whether etcd has served the watch at all.
func (w *watcher) stream() (served bool, err error) {
	// A member cut off from the rest ends the stream instead of staying silent.
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(w.ctx))
	var sender sync.WaitGroup
	defer sender.Wait()
	defer cancel()
	stream, err := pb.NewWatchClient(w.b.client.ActiveConnection()).
		Watch(ctx, grpc.WaitForReady(true), grpc.MaxCallRecvMsgSize(math.MaxInt32))
	if err != nil {
		return false, err
	}
	if err := stream.Send(w.createRequest()); err != nil {
		// Recv has the reason.
		_, err = stream.Recv()
		return false, err
	}
	// Events of the revision that the last fragment ended in, more of which
	// may be in the next one.
	var partial []*mvccpb.Event
	for {
		resp, err := stream.Recv()
		switch {
		case err != nil:
			return served, rpctypes.Error(err)
		case resp.CompactRevision != 0:
			return served, fmt.Errorf("%w (to %d)", rpctypes.ErrCompacted, resp.CompactRevision)
		case resp.Canceled:
			return served, canceled(resp.CancelReason)
		case resp.Created:
			if !served {
				sender.Go(func() { w.sendProgressRequests(ctx, stream) })
			}
			served = true
			w.created(resp.Header.GetRevision())
			continue
		case len(resp.Events) == 0 && !resp.Fragment:
			// A progress notification. etcd sends it only when it has sent all
			// events up to the revision; with events, the revision in the
			// header may be ahead of them.
			w.advance(nil, 0, resp.Header.GetRevision())
			continue
		}
		events := append(partial, resp.Events...)
		complete := len(events)
		if resp.Fragment {
			complete = beforeLastRevision(events)
		}
		if err := w.deliver(ctx, events[:complete]); err != nil {
			return served, err
		}
		partial = append([]*mvccpb.Event(nil), events[complete:]...)
		timeout := time.NewTimer(w.limits.patience)
		ok := w.wait(func() bool { return !w.full() }, timeout.C)
		timeout.Stop()
		if !ok {
			return served, errUnread
		}
	}
}

// createRequest asks for events from the position on. In fragments: without,
// what etcd has to say to a watcher that lags, up to 1000 revisions, comes in
// one message of any size. (Splitting takes it a time quadratic in the number of
// events, which hurts only where thousands of small ones share few revisions.)
func (w *watcher) createRequest() *pb.WatchRequest {
	key, end := w.b.keyRange(w.prefix)
	return &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{
		Key:            []byte(key),
		RangeEnd:       []byte(end),
		StartRevision:  w.start(),
		PrevKv:         true,
		ProgressNotify: true,
		Fragment:       true,
	}}}
}

// sendProgressRequests asks etcd for progress on a stream whenever the watcher
// was told to, and now and then.
func (w *watcher) sendProgressRequests(ctx context.Context, stream pb.Watch_WatchClient) {
	ticker := time.NewTicker(w.limits.progress)
	defer ticker.Stop()
	req := &pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}}
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.progress:
		case <-ticker.C:
		}
		if err := stream.Send(req); err != nil {
			return // Recv fails, too
		}
	}
}

// deliver puts events, which make up whole revisions, into the buffer.
func (w *watcher) deliver(ctx context.Context, events []*mvccpb.Event) error {
	out := make([]storage.Event, 0, len(events))
	size, start := 0, w.start()
	for _, e := range events {
		if e.Kv.ModRevision < start {
			continue
		}
		event, err := w.event(ctx, e)
		if err != nil {
			return err
		}
		size += len(event.KV.Key) + len(event.KV.Value) + len(event.Prev.Value)
		out = append(out, event)
	}
	if len(out) > 0 {
		w.advance(out, size, out[len(out)-1].KV.ModRevision)
	}
	return nil
}

func (w *watcher) event(ctx context.Context, e *mvccpb.Event) (storage.Event, error) {
	event := storage.Event{KV: w.b.keyValue(e.Kv)}
	if e.Type == mvccpb.Event_PUT && e.Kv.CreateRevision == e.Kv.ModRevision {
		event.Op = storage.Created
		return event, nil
	}
	prev := e.PrevKv
	if prev == nil {
		var err error
		if prev, err = w.previous(ctx, e.Kv); err != nil {
			return storage.Event{}, err
		}
	}
	event.Op, event.Prev = storage.Updated, w.b.keyValue(prev)
	if e.Type == mvccpb.Event_DELETE {
		event.Op = storage.Deleted
		event.KV.Value, event.KV.CreateRevision = nil, prev.CreateRevision
	}
	return event, nil
}

// previous reads a key as it stood before an event. etcd leaves it out of the
// event when it has been compacted, but also when an event overtakes the
// creation of the watch inside the server.
func (w *watcher) previous(ctx context.Context, kv *mvccpb.KeyValue) (*mvccpb.KeyValue, error) {
	resp, err := w.b.kv.Get(ctx, string(kv.Key), clientv3.WithRev(kv.ModRevision-1))
	if err != nil {
		return nil, fmt.Errorf("value of %q before revision %d: %w", kv.Key, kv.ModRevision, err)
	}
	if len(resp.Kvs) == 0 {
		return nil, fmt.Errorf("value of %q before revision %d: %w", kv.Key, kv.ModRevision, rpctypes.ErrCompacted)
	}
	return resp.Kvs[0], nil
}

// beforeLastRevision returns how many events come before the last revision.
func beforeLastRevision(events []*mvccpb.Event) int {
	n := len(events)
	for n > 0 && events[n-1].Kv.ModRevision == events[len(events)-1].Kv.ModRevision {
		n--
	}
	return n
}

// canceled returns the error that etcd gave as the reason to end a watch. It is
// sent as text, in the words of etcd or as gRPC prints it.
func canceled(reason string) error {
	_, desc, found := strings.Cut(reason, "desc = ")
	if !found {
		desc = reason
	}
	err := rpctypes.Error(errors.New(desc))
	if _, known := err.(rpctypes.EtcdError); known {
		return err
	}
	return status.Error(codes.Unavailable, "etcd canceled the watch: "+reason)
}

// temporary reports whether a stream that ended like this may work again.
func temporary(err error) bool {
	if errors.Is(err, io.EOF) || errors.Is(err, rpctypes.ErrAuthOldRevision) {
		return true
	}
	switch codeOf(err) {
	case codes.OutOfRange, codes.InvalidArgument, codes.PermissionDenied, codes.Unimplemented, codes.Unauthenticated:
		return false
	}
	return true
}
