package rest

import (
	"context"
	"encoding/binary"
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
	// watchFor is the default of Handler.MinWatch, and forEver what stands for no
	// end.
	watchFor = 30 * time.Minute
	forEver  = 100 * 365 * 24 * time.Hour
	// initialEventsEnd marks the bookmark after the initial events.
	initialEventsEnd = "k8s.io/initial-events-end"
)

// watchTime is how long a watch lasts whose client does not say.
func (h *Handler) watchTime() time.Duration {
	switch least := h.MinWatch; {
	case least < 0:
		return forEver
	case least == 0:
		return watchFor + rand.N(watchFor)
	default:
		return least + rand.N(least)
	}
}

// watch streams events until the client, the time or the server is done.
func (s *scope) watch() error {
	v, err := s.beginWatch()
	if v == nil || err != nil {
		return err
	}
	// What there is is sent here: it takes a large stack, which waiting does not.
	for v.advance() {
		select {
		case <-v.more:
			if time.Now().After(v.end) {
				v.close()
				return nil
			}
		default:
			if !s.req.Continue(v.run) {
				v.run()
			}
			return nil
		}
	}
	v.close()
	return nil
}

// viewer is a watch that has begun. What it needs is here and not on the stack,
// which would stay as large as it once was: watches wait nearly all of the time.
type viewer struct {
	*stream
	end       time.Time
	timer     *time.Timer // for the next bookmark, or the end
	events    *store.Watcher
	more      <-chan struct{} // is closed when there may be more events
	bookmarks bool
	sync      bool // the initial events are not all sent, and their end is waited for
}

// run waits for events and sends them, until the watch is over.
func (v *viewer) run() {
	defer v.close()
	done := v.s.ctx().Done()
	for {
		v.pause()
		select {
		case <-v.more:
		case <-v.timer.C:
			if !v.onTime() {
				return
			}
		case <-done:
			return
		}
		if !v.advance() {
			return
		}
	}
}

// close frees what the watch holds.
func (v *viewer) close() {
	v.timer.Stop()
	v.events.Close()
	v.pause()
}

// onTime sends a bookmark. It reports false at the end.
func (v *viewer) onTime() bool {
	if !time.Now().Before(v.end) {
		return false
	}
	v.timer.Reset(v.nextBookmark())
	if !v.bookmarks || v.sync {
		return true
	}
	v.resume()
	v.bookmark(v.events.Revision(), false)
	return v.send()
}

// beginWatch answers with a stream of events. Nil is one that has ended already.
func (s *scope) beginWatch() (*viewer, error) {
	o, err := s.listOptions(true)
	if err != nil {
		return nil, err
	}
	if _, err := s.included(); err != nil && s.out.view == viewTable {
		return nil, err
	}
	w, err := s.openWatch(&o)
	// These are told in the stream, so that clients treat them like a watch that
	// ended.
	switch {
	case errors.Is(err, store.ErrExpired):
		return nil, s.watchEnds(apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", o.revision, s.objects.Revision())))
	case err != nil && o.initialEvents != nil && apierrors.IsTimeout(err):
		return nil, s.watchEnds(err)
	case err != nil:
		return nil, err
	}
	v := &viewer{events: w, bookmarks: o.bookmarks, sync: o.initialEvents != nil && *o.initialEvents}
	if o.timeout <= 0 {
		o.timeout = s.h.watchTime()
	}
	v.end = time.Now().Add(o.timeout)
	v.timer = time.NewTimer(v.nextBookmark())
	v.stream = s.beginStream()
	if err := v.flush.Flush(); err != nil {
		v.close() // nobody is there any longer
		return nil, nil
	}
	return v, nil
}

// advance sends the events that there are, and reports whether the watch goes on.
func (v *viewer) advance() bool {
	ctx := v.s.ctx()
	if ctx.Err() != nil {
		return false
	}
	events, more, err := v.events.Poll(ctx)
	if err == nil && len(events) == 0 && !v.sync {
		v.more = more
		v.s.req.Started()
		return true
	}
	v.resume()
	if err != nil {
		if ctx.Err() == nil {
			v.error(v.s.watchError(err))
			v.send()
		}
		return false
	}
	v.more = more
	if v.s.out.list && len(events) > 0 {
		return false // an event is not a list
	}
	for _, ev := range events {
		if err := v.event(eventName(ev.Type), ev.Record); err != nil {
			v.error(v.s.translate(err))
			v.send()
			return false
		}
	}
	if v.sync && v.events.Synced() {
		v.sync = false
		if m := v.s.h.Metrics; m != nil {
			m.WatchListed(&v.s.req.Info, time.Since(v.s.req.Arrived()))
		}
		if v.bookmarks {
			v.bookmark(v.events.Revision(), true)
		}
	}
	if !v.send() {
		return false
	}
	if !v.sync {
		v.s.req.Started()
	}
	return true
}

// nextBookmark is when a watcher gets the next bookmark, or ends. The last one
// comes shortly before the end, so that the client goes on from there.
func (v *viewer) nextBookmark() time.Duration {
	left := time.Until(v.end)
	if left > lastBookmark {
		left -= lastBookmark
	}
	return min(bookmarkEvery, left)
}

// watchEnds answers with a stream of one error.
func (s *scope) watchEnds(err error) error {
	st := s.beginStream()
	defer st.free()
	st.error(err)
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
	*pieces
	s     *scope
	flush *http.ResponseController
	count func(bytes int) // nil counts nothing
	// tables is how many events were written as tables: the first has columns.
	tables int
}

// beginStream answers with a stream.
func (s *scope) beginStream() *stream {
	st := &stream{s: s, flush: http.NewResponseController(s.w)}
	st.resume()
	if m := s.h.Metrics; m != nil {
		st.count = m.Watched(s.req.Group, s.req.Version, s.req.Resource)
	}
	s.w.Header().Set("Content-Type", s.out.contentType())
	s.w.WriteHeader(http.StatusOK)
	return st
}

// pause gives the buffer away while there is nothing to write: nearly all
// watches wait nearly all of the time.
func (st *stream) pause() {
	if st.pieces != nil {
		st.free()
		st.pieces = nil
	}
}

// resume takes a buffer, if there is none.
func (st *stream) resume() {
	if st.pieces == nil {
		st.pieces = newPieces(st.s.w)
	}
}

// event appends an event about a record.
func (st *stream) event(name string, rec *store.Record) (err error) {
	s := st.s
	start := len(st.buf)
	if s.out.media == mediaProto {
		it, err := s.protoItem(rec)
		if err != nil {
			return err
		}
		st.buf = s.appendProtoItem(appendProtoFrame(st.buf, name, s.protoItemSize(&it)), &it)
		st.ended(start)
		return nil
	}
	st.buf = append(st.buf, `{"type":"`...)
	st.buf = append(st.buf, name...)
	st.buf = append(st.buf, `","object":`...)
	if s.out.view == viewTable {
		st.buf, err = s.tableObject(st.buf, rec, st.tables == 0)
		st.tables++
	} else {
		st.buf, err = s.object(st.buf, rec)
	}
	if err != nil {
		st.buf = st.buf[:start]
		return err
	}
	st.buf = append(st.buf, "}\n"...)
	st.ended(start)
	return nil
}

// ended counts the event that begins at a place in the buffer.
func (st *stream) ended(start int) {
	if st.count != nil {
		st.count(len(st.buf) - start)
	}
	st.spill()
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

// appendProtoFrame appends a WatchEvent up to the object, whose size is given:
// the type, and a RawExtension that holds the object.
func appendProtoFrame(dst []byte, name string, object int) []byte {
	raw := 1 + uvarintSize(object) + object
	size := 1 + uvarintSize(len(name)) + len(name) + 1 + uvarintSize(raw) + raw
	dst = binary.BigEndian.AppendUint32(dst, uint32(size))
	dst = appendField(dst, 1, []byte(name))
	dst = append(dst, 2<<3|2)
	dst = binary.AppendUvarint(dst, uint64(raw))
	dst = append(dst, 1<<3|2)
	return binary.AppendUvarint(dst, uint64(object))
}

// bookmark appends an object that says only how far the watch is.
func (st *stream) bookmark(revision int64, end bool) {
	obj := st.s.def.HubVersion().New()
	obj.SetResourceVersion(revisionString(revision))
	if end {
		obj.SetAnnotations(map[string]string{initialEventsEnd: "true"})
	}
	if f := st.s.def.Bookmark; f != nil {
		f(obj)
	}
	rec, err := st.s.unstored(obj)
	if err == nil {
		err = st.event("BOOKMARK", rec)
	}
	if err != nil {
		st.s.h.log().Warn("bookmark left out", "resource", st.s.def.Resource, "error", err)
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
		if raw, err := status.Marshal(); err == nil {
			body := appendStatusEnvelope(raw)
			st.buf = append(appendProtoFrame(st.buf, "ERROR", len(body)), body...)
		}
		return
	}
	st.buf = append(st.buf, `{"type":"ERROR","object":`...)
	st.buf = append(appendJSON(st.buf, status), "}\n"...)
}

// send writes what has been gathered and reports whether the client is there.
func (st *stream) send() bool {
	if len(st.buf) == 0 {
		return st.err == nil
	}
	st.pieces.flush()
	return st.err == nil && st.flush.Flush() == nil
}
