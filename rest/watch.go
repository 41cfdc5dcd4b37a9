package rest

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/store"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// bookmarkEvery is how often a watcher that wants bookmarks gets one.
	bookmarkEvery = time.Minute
	// lastBookmark is how long before its end a watch sends one more.
	lastBookmark = 2 * time.Second
	// watchFor is how long a watch lasts whose client does not say, at least;
	// at most it is twice as long, so that not all end at the same time.
	watchFor = 30 * time.Minute
	// initialEventsEnd marks the bookmark after the initial events.
	initialEventsEnd = "k8s.io/initial-events-end"
)

// watch streams events until the client, the time or the server is done.
func (s *scope) watch() error {
	o, err := s.listOptions(true)
	if err != nil {
		return err
	}
	w, err := s.openWatch(&o)
	if errors.Is(err, store.ErrExpired) {
		// Told in the stream, so that clients treat it like a watch that ended.
		return s.watchExpired(o.revision)
	}
	if err != nil {
		return err
	}
	defer w.Close()
	timeout := o.timeout
	if timeout <= 0 {
		timeout = watchFor + rand.N(watchFor)
	}
	ctx, cancel := context.WithTimeout(s.ctx(), timeout)
	defer cancel()

	st := &stream{s: s, flush: http.NewResponseController(s.w)}
	s.w.Header().Set("Content-Type", s.out.contentType())
	s.w.WriteHeader(http.StatusOK)
	if err := st.flush.Flush(); err != nil {
		return nil
	}
	sync := o.initialEvents != nil && *o.initialEvents
	// The last bookmark comes shortly before the end, so that the client goes on
	// from there.
	bookmark := time.NewTimer(min(bookmarkEvery, max(timeout-lastBookmark, 0)))
	defer bookmark.Stop()
	for ctx.Err() == nil {
		events, more, err := w.Poll(ctx)
		if err != nil {
			if ctx.Err() == nil {
				st.error(s.watchError(err))
				st.send()
			}
			return nil
		}
		for _, ev := range events {
			if err := st.event(ev); err != nil {
				st.error(s.translate(err))
				st.send()
				return nil
			}
		}
		if sync && w.Synced() {
			sync = false
			if o.bookmarks {
				st.bookmark(w.Revision(), true)
			}
		}
		if !st.send() {
			return nil
		}
		select {
		case <-more:
		case <-bookmark.C:
			if o.bookmarks && !sync {
				st.bookmark(w.Revision(), false)
				if !st.send() {
					return nil
				}
			}
			next := bookmarkEvery
			if deadline, ok := ctx.Deadline(); ok {
				if left := time.Until(deadline) - lastBookmark; left > 0 {
					next = min(next, left)
				}
			}
			bookmark.Reset(next)
		case <-ctx.Done():
		}
	}
	return nil
}

// watchExpired answers a watch from a revision that is not kept any more.
func (s *scope) watchExpired(revision int64) error {
	st := &stream{s: s, flush: http.NewResponseController(s.w)}
	s.w.Header().Set("Content-Type", s.out.contentType())
	s.w.WriteHeader(http.StatusOK)
	st.error(apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", revision, s.h.Store.Revision())))
	st.send()
	return nil
}

// openWatch begins a watch where the request wants it to.
func (s *scope) openWatch(o *listOptions) (*store.Watcher, error) {
	prefix := s.listPrefix()
	match := s.match(o, prefix)
	initial := o.revisionText == "" || o.revision == 0
	if o.initialEvents != nil {
		initial = *o.initialEvents
	} else if o.revision != 0 {
		initial = false
	}
	if !initial && o.revision != 0 {
		return s.objects.Watch(s.ctx(), o.revision, match)
	}
	read := store.Read{AtLeast: o.revision, Any: o.revisionText == "0"}
	snap, err := fresh(s, read, func(ctx context.Context) (*store.Snapshot, error) { return s.objects.Snapshot(ctx, read) })
	if err != nil {
		return nil, err
	}
	return s.objects.WatchFrom(s.ctx(), snap, prefix, initial, match)
}

// watchError says in the words of the API why a watch cannot go on.
func (s *scope) watchError(err error) error {
	if errors.Is(err, store.ErrExpired) || errors.Is(err, storage.ErrCompacted) {
		return apierrors.NewResourceExpired(err.Error())
	}
	return s.translate(err)
}

// stream writes events. They are gathered and sent together.
type stream struct {
	s     *scope
	flush *http.ResponseController
	buf   []byte
	obj   []byte
}

func (st *stream) event(ev store.Event) error {
	var err error
	if st.obj, err = st.s.object(st.obj[:0], ev.Record); err != nil {
		return err
	}
	st.frame(eventName(ev.Type), st.obj)
	return nil
}

func eventName(t store.EventType) string {
	switch t {
	case store.Added:
		return "ADDED"
	case store.Modified:
		return "MODIFIED"
	}
	return "DELETED"
}

// frame appends an event of any kind.
func (st *stream) frame(name string, object []byte) {
	if st.s.out.media != mediaProto {
		st.buf = append(st.buf, `{"type":"`...)
		st.buf = append(st.buf, name...)
		st.buf = append(st.buf, `","object":`...)
		st.buf = append(st.buf, object...)
		st.buf = append(st.buf, "}\n"...)
		return
	}
	// A WatchEvent: the type, and a RawExtension that holds the object.
	raw := 1 + uvarintSize(len(object)) + len(object)
	size := 1 + uvarintSize(len(name)) + len(name) + 1 + uvarintSize(raw) + raw
	st.buf = binary.BigEndian.AppendUint32(st.buf, uint32(size))
	st.buf = appendField(st.buf, 1, []byte(name))
	st.buf = append(st.buf, 2<<3|2)
	st.buf = binary.AppendUvarint(st.buf, uint64(raw))
	st.buf = appendField(st.buf, 1, object)
}

// bookmark appends an object that says only how far the watch is.
func (st *stream) bookmark(revision int64, end bool) {
	obj := st.s.served.Version.New()
	obj.SetResourceVersion(revisionString(revision))
	if end {
		obj.SetAnnotations(map[string]string{initialEventsEnd: "true"})
	}
	rec, err := st.s.bookmarkRecord(obj)
	if err != nil {
		return
	}
	if st.obj, err = st.s.object(st.obj[:0], rec); err == nil {
		st.frame("BOOKMARK", st.obj)
	}
}

// error appends an event that ends the watch with a Status.
func (st *stream) error(err error) {
	var known apierrors.APIStatus
	if !errors.As(err, &known) {
		known = apierrors.NewInternalError(err)
	}
	status := known.Status()
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	if st.s.out.media == mediaProto {
		raw, err := status.Marshal()
		if err == nil {
			st.frame("ERROR", appendStatusEnvelope(raw))
		}
		return
	}
	if b, err := json.Marshal(status); err == nil {
		st.frame("ERROR", b)
	}
}

// send writes what has been gathered and reports whether the client is there.
func (st *stream) send() bool {
	if len(st.buf) == 0 {
		return true
	}
	_, err := st.s.w.Write(st.buf)
	if cap(st.buf) > 1<<20 {
		st.buf, st.obj = nil, nil
	}
	st.buf = st.buf[:0]
	return err == nil && st.flush.Flush() == nil
}
