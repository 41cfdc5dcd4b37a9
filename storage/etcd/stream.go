package etcd

import (
	"bytes"
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

// errUnread ends a stream because the buffer stays full: nobody calls Next.
var errUnread = errors.New("events are not being read")

// errMemberLeft ends a stream because its member does not answer and another one does.
var errMemberLeft = errors.New("the member is avoided")

// run receives events until the watch ends. It opens a new stream, with backoff,
// whenever one breaks.
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
		case !isTemporary(err):
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

// wait returns true when condition holds, which it checks whenever Next has taken
// events, or false when the watch ends or timeout fires.
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

// stream watches from position+1 until an error. It reports whether etcd has created
// the watch.
func (w *watcher) stream() (served bool, err error) {
	// With RequireLeader, a member that is cut off from the cluster ends the stream
	// instead of staying silent.
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(w.ctx))
	var sender sync.WaitGroup
	defer sender.Wait()
	defer cancel()
	m, favor, err := w.b.members.await(ctx)
	if err != nil {
		return false, err
	}
	defer context.AfterFunc(favor, cancel)()
	defer func() {
		if favor.Err() != nil && w.ctx.Err() == nil {
			err = fmt.Errorf("%w: %s", errMemberLeft, m.endpoint)
		}
	}()
	stream, err := pb.NewWatchClient(m.link.client().ActiveConnection()).
		Watch(ctx, grpc.WaitForReady(true), grpc.MaxCallRecvMsgSize(math.MaxInt32))
	if err != nil {
		return false, err
	}
	if err := stream.Send(w.createRequest()); err != nil {
		// Recv returns the reason.
		_, err = stream.Recv()
		return false, err
	}
	// The events of the last revision in a fragment: the next fragment may have more of
	// them.
	var partial []*mvccpb.Event
	for {
		resp, err := stream.Recv()
		switch {
		case err != nil:
			return served, rpctypes.Error(err)
		case w.b.trust.checkCluster(resp.Header) != nil:
			return served, w.b.trust.checkCluster(resp.Header)
		case resp.CompactRevision != 0:
			return served, fmt.Errorf("%w (to %d)", rpctypes.ErrCompacted, resp.CompactRevision)
		case resp.Canceled:
			return served, cancelError(resp.CancelReason)
		case resp.Created:
			if !served {
				sender.Go(func() { w.sendProgressRequests(ctx, stream) })
			}
			served = true
			w.created(resp.Header.GetRevision())
			continue
		case len(resp.Events) == 0 && !resp.Fragment:
			// A progress notification. etcd sends it only after all events up to its
			// revision. The header of a response with events may be ahead of them, so
			// it says nothing.
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

// createRequest asks for events from position+1 on, in fragments: without, up to 1000
// revisions for a watcher that lags come in one message of any size. (Fragmenting takes
// etcd time quadratic in the number of events, which matters only where thousands of
// small events share a few revisions.)
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

// sendProgressRequests requests progress notifications on a stream: whenever Progress
// was called, and every limits.progress.
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
			return // Recv fails too
		}
	}
}

// deliver adds events, which are complete revisions, to the buffer.
func (w *watcher) deliver(ctx context.Context, events []*mvccpb.Event) error {
	out := make([]storage.Event, 0, len(events))
	size, start, last := 0, w.start(), int64(0)
	prefix := []byte(w.b.etcdKey(w.prefix))
	for _, e := range events {
		if e.Kv.ModRevision < start {
			continue
		}
		if !bytes.HasPrefix(e.Kv.Key, prefix) || e.Kv.ModRevision < last {
			return status.Errorf(codes.DataLoss, "etcd has sent an event of %q and revision %d to a watch of %q after revision %d", e.Kv.Key, e.Kv.ModRevision, prefix, last)
		}
		last = e.Kv.ModRevision
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

// previous reads a key as it was before an event. etcd leaves the previous value out of
// the event if it has been compacted, and also if the event overtakes the creation of
// the watch inside the server.
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

// beforeLastRevision returns the number of events before those of the last revision.
func beforeLastRevision(events []*mvccpb.Event) int {
	n := len(events)
	for n > 0 && events[n-1].Kv.ModRevision == events[len(events)-1].Kv.ModRevision {
		n--
	}
	return n
}

// cancelError converts the reason of a canceled watch to an error. etcd sends it as text,
// its own or that of a printed gRPC status.
func cancelError(reason string) error {
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

// isTemporary reports whether a new stream may succeed after this error.
func isTemporary(err error) bool {
	if errors.Is(err, io.EOF) || errors.Is(err, rpctypes.ErrAuthOldRevision) {
		return true
	}
	switch codeOf(err) {
	case codes.OutOfRange, codes.DataLoss, codes.InvalidArgument, codes.PermissionDenied, codes.Unimplemented, codes.Unauthenticated:
		return false
	}
	return true
}
