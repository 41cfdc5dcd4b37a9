package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/apikeel/kelson/storage"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// failFast is a gRPC interceptor around every attempt of a unary request.
//
// It marks errors of requests that were never sent (notSentError); gRPC's status code
// does not distinguish them from requests that broke off. It makes a request fail if
// there is no connection, where etcd's client would wait for one without limit. And it
// turns Canceled and DeadlineExceeded that come from the server alone into Unavailable:
// etcd's client would retry such a request, even a write.
func failFast(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	// gRPC sets the peer once a stream exists, before anything is sent.
	var p peer.Peer
	err := invoke(ctx, method, req, reply, conn, append(opts, grpc.WaitForReady(false), grpc.Peer(&p))...)
	code := status.Code(err)
	if _, ok := ctx.Deadline(); ok && code == codes.DeadlineExceeded {
		// The deadline is the client's own; gRPC or the server noticed it a moment
		// earlier.
		<-ctx.Done()
	}
	switch {
	case err == nil:
		return nil
	case p.Addr == nil && code == codes.Canceled && ctx.Err() == nil:
		// The connection was given up before the request was sent.
		return notSentError{status.Errorf(codes.Unavailable, "%v", err)}
	case p.Addr == nil:
		return notSentError{err}
	case ctx.Err() != nil || (code != codes.DeadlineExceeded && code != codes.Canceled):
		return err
	}
	return status.Errorf(codes.Unavailable, "by the server: %v", err)
}

// notSentError wraps the error of a request that was never sent, so it was not applied.
type notSentError struct{ error }

func (e notSentError) Unwrap() error { return e.error }

// isNotSent reports whether a request failed because there was no connection.
func isNotSent(err error) bool {
	return errors.As(err, new(notSentError)) && codeOf(err) == codes.Unavailable
}

// readError maps an error of a request that changes no key to a sentinel.
func (b *Backend) readError(ctx context.Context, err error) error {
	if sentinel := refusalSentinel(err); sentinel != nil {
		return fmt.Errorf("%w: etcd: %w", sentinel, err)
	}
	if ended := b.endReason(ctx, err); ended != nil {
		return ended
	}
	switch codeOf(err) {
	case codes.Unavailable, codes.Internal, codes.Unknown, codes.Aborted, codes.Canceled:
		return fmt.Errorf("%w: etcd: %w", storage.ErrUnavailable, err)
	}
	return fmt.Errorf("etcd: %w", err)
}

// writeError maps an error of a write to a sentinel. If the write may have been
// applied, ErrUncertain is the only sentinel wrapped, since every other one promises
// that it was not.
func (b *Backend) writeError(ctx context.Context, err error) error {
	if sentinel := refusalSentinel(err); sentinel != nil {
		return fmt.Errorf("%w: etcd: %w", sentinel, asSender(err))
	}
	if errors.As(err, new(notSentError)) {
		return b.readError(ctx, err)
	}
	switch codeOf(err) {
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied,
		codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented, codes.Unauthenticated:
		return fmt.Errorf("etcd: %w", err)
	}
	if ended := b.endReason(ctx, err); ended != nil && !errors.Is(ended, storage.ErrClosed) {
		return fmt.Errorf("%w: %w", storage.ErrUncertain, ended)
	}
	return fmt.Errorf("%w: etcd: %w", storage.ErrUncertain, err)
}

// refusalSentinel returns the sentinel for an error by which etcd refused the whole request,
// else nil. ErrNoSpace is definite except for the request that fills the quota: see
// afterNoSpace.
func refusalSentinel(err error) error {
	var known rpctypes.EtcdError
	if !errors.As(err, &known) {
		known, _ = rpctypes.Error(err).(rpctypes.EtcdError)
	}
	switch error(known) {
	case rpctypes.ErrCompacted:
		return storage.ErrCompacted
	case rpctypes.ErrFutureRev:
		return storage.ErrFutureRevision
	case rpctypes.ErrNoSpace:
		return storage.ErrNoSpace
	case rpctypes.ErrRequestTooLarge:
		return storage.ErrTooLarge
	case rpctypes.ErrCorrupt:
		return storage.ErrReadOnly
	case rpctypes.ErrNoLeader, rpctypes.ErrTooManyRequests, rpctypes.ErrNotCapable:
		return storage.ErrUnavailable
	}
	// gRPC has no code of its own for messages that are too large.
	if codeOf(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "larger than max") {
		return storage.ErrTooLarge
	}
	return nil
}

// asSender gives the error of a message that was too large for etcd the words of the
// sender, by which clients of kube-apiserver know it: that has the limit of an etcd by
// default, and does not send such a message.
func asSender(err error) error {
	received, ok := strings.CutPrefix(status.Convert(err).Message(), "grpc: received message ")
	if !ok || codeOf(err) != codes.ResourceExhausted {
		return err
	}
	return status.Error(codes.ResourceExhausted, "trying to send message "+received)
}

// endReason returns the reason if a request failed because its context ended or the backend
// was closed, else nil.
func (b *Backend) endReason(ctx context.Context, err error) error {
	code := codeOf(err)
	switch {
	case errors.Is(err, storage.ErrClosed):
		return storage.ErrClosed
	case code == codes.DeadlineExceeded || errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("etcd: %w", context.DeadlineExceeded)
	case code != codes.Canceled && !errors.Is(err, context.Canceled):
		return nil
	case b.ctx.Err() != nil:
		return storage.ErrClosed
	case ctx.Err() != nil:
		return fmt.Errorf("etcd: %w", ctx.Err())
	}
	return nil
}

// codeOf returns the gRPC code of an error from etcd's client, which wraps the errors
// that it knows in its own type.
func codeOf(err error) codes.Code {
	var known rpctypes.EtcdError
	if errors.As(err, &known) {
		return known.Code()
	}
	return status.Code(err)
}
