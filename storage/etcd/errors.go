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

// call is a gRPC interceptor around every attempt of a unary request.
//
// It marks errors of requests that never left this process, which gRPC's status
// code does not tell from those that broke off on the way. And it makes a
// request fail when there is no connection, where etcd's client would have it
// wait for one, for ever if need be.
//
// A request that was canceled or late on the server's side alone would be taken
// by etcd's client for one that can be repeated, even if it is a write.
func call(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	// gRPC sets the peer once a stream to it exists, before anything is sent.
	var p peer.Peer
	err := invoke(ctx, method, req, reply, conn, append(opts, grpc.WaitForReady(false), grpc.Peer(&p))...)
	code := status.Code(err)
	switch {
	case err == nil:
		return nil
	case p.Addr == nil:
		return notSentError{err}
	case ctx.Err() != nil || (code != codes.DeadlineExceeded && code != codes.Canceled):
		return err
	}
	if _, ok := ctx.Deadline(); ok && code == codes.DeadlineExceeded {
		// It is the same one; the server was a moment faster.
		<-ctx.Done()
		return err
	}
	return status.Errorf(codes.Unavailable, "by the server: %v", err)
}

type notSentError struct{ error }

func (e notSentError) Unwrap() error { return e.error }

// notSent reports whether a request has failed for want of a connection.
func notSent(err error) bool {
	return errors.As(err, new(notSentError)) && codeOf(err) == codes.Unavailable
}

// readError says what went wrong with a request that changes no key.
func (b *Backend) readError(ctx context.Context, err error) error {
	if sentinel := definite(err); sentinel != nil {
		return fmt.Errorf("%w: etcd: %w", sentinel, err)
	}
	if ended := b.ended(ctx, err); ended != nil {
		return ended
	}
	switch codeOf(err) {
	case codes.Unavailable, codes.Internal, codes.Unknown, codes.Aborted, codes.Canceled:
		return fmt.Errorf("%w: etcd: %w", storage.ErrUnavailable, err)
	}
	return fmt.Errorf("etcd: %w", err)
}

// writeError says what went wrong with a write. Where it may have been applied
// all the same, ErrUncertain is the only sentinel wrapped, since any other
// promises that it was not.
func (b *Backend) writeError(ctx context.Context, err error) error {
	if sentinel := definite(err); sentinel != nil {
		return fmt.Errorf("%w: etcd: %w", sentinel, err)
	}
	if errors.As(err, new(notSentError)) {
		return b.readError(ctx, err)
	}
	switch codeOf(err) {
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied,
		codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented, codes.Unauthenticated:
		return fmt.Errorf("etcd: %w", err)
	}
	if ended := b.ended(ctx, err); ended != nil && !errors.Is(ended, storage.ErrClosed) {
		return fmt.Errorf("%w: %w", storage.ErrUncertain, ended)
	}
	return fmt.Errorf("%w: etcd: %w", storage.ErrUncertain, err)
}

// definite returns the sentinel for an error that tells that a request was
// refused as a whole, or nil for others. ErrNoSpace is definite except at the
// very moment when space runs out: see afterNoSpace.
func definite(err error) error {
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
	// gRPC, on either side, has no code of its own for messages above a limit.
	if codeOf(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "larger than max") {
		return storage.ErrTooLarge
	}
	return nil
}

// ended returns the reason if a request failed because its context ended or
// the backend was closed.
func (b *Backend) ended(ctx context.Context, err error) error {
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

// codeOf returns the gRPC code of an error from etcd's client, which mostly
// hands out a type of its own for the errors that it knows.
func codeOf(err error) codes.Code {
	var known rpctypes.EtcdError
	if errors.As(err, &known) {
		return known.Code()
	}
	return status.Code(err)
}
