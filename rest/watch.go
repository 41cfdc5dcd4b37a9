package rest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/store"
	"github.com/apikeel/kelson/wire"
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
	for v.sendReady() {
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

// activeWatch is a watch that has begun. Its state is here and not on the stack, which
// would stay as large as it once was: watches wait nearly all of the time.
type activeWatch struct {
	*stream
	end       time.Time
	timer     *time.Timer // for the next bookmark, or the end
	events    *store.Watcher
	more      <-chan struct{} // is closed when there may be more events
	bookmarks bool
	sync      bool // the initial events are not all sent, and their end is waited for
	// endInitial gives back what the initial events hold, which was waited for before the
	// first of them was sent; nil if they are all sent.
	endInitial func()
	// ahead has the bytes of initial events that are out of memory; nil unless there are
	// initial events. selected says that selectors chose them.
	ahead    *wire.ReadAhead
	selected bool
}

// run waits for events and sends them, until the watch is over.
func (v *activeWatch) run() {
	defer v.close()
	done := v.s.ctx().Done()
	for {
		v.pause()
		select {
		case <-v.more:
		case <-v.timer.C:
			if !v.onTimer() {
				return
			}
		case <-done:
			return
		}
		if !v.sendReady() {
			return
		}
	}
}

// close frees what the watch holds.
func (v *activeWatch) close() {
	v.timer.Stop()
	v.events.Close()
	v.stream.close()
	v.freeInitial()
}

// freeInitial gives back what the initial events hold.
func (v *activeWatch) freeInitial() {
	if v.ahead != nil {
		v.ahead.Done()
		v.ahead = nil
	}
	if v.endInitial != nil {
		v.endInitial()
		v.endInitial = nil
	}
}

// onTimer sends a bookmark. It reports false at the end.
func (v *activeWatch) onTimer() bool {
	if !time.Now().Before(v.end) {
		return false
	}
	v.timer.Reset(v.nextBookmark())
	if !v.bookmarks || v.sync {
		return true
	}
	if !v.sendReady() { // which brings its revision up to now
		return false
	}
	v.resume()
	v.bookmark(v.events.Revision(), false)
	return v.send()
}

// beginWatch answers with a stream of events. Nil is one that has ended already.
func (s *scope) beginWatch() (*activeWatch, error) {
	o, err := s.listOptions(true)
	if err != nil {
		return nil, err
	}
	if err := s.readInclude(); err != nil {
		return nil, err
	}
	w, err := s.openWatch(&o)
	// These are told in the stream, so that clients treat them like a watch that
	// ended.
	expired := errors.Is(err, store.ErrExpired)
	if s.enc.Format.Media == wire.YAML && (err == nil || expired) { // a stream of documents has no frames
		if w != nil {
			w.Close()
		}
		return nil, errNotAcceptable(s.streamTypes())
	}
	switch {
	case expired:
		return nil, s.respondWatchError(apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", o.revision, s.objects.Revision())))
	case err != nil && o.initialEvents != nil && apierrors.IsTimeout(err):
		return nil, s.respondWatchError(err)
	case err != nil:
		return nil, err
	}
	v := &activeWatch{events: w, bookmarks: o.bookmarks, sync: o.initialEvents != nil && *o.initialEvents, selected: o.selects()}
	if !w.Synced() {
		// A client that has to wait too long is refused now: later it would have a part.
		if v.endInitial, err = s.holdList(nil, s.objects.Largest(), false); err != nil {
			w.Close()
			return nil, err
		}
	}
	if o.timeout <= 0 {
		o.timeout = s.h.watchTime()
	}
	v.end = time.Now().Add(o.timeout)
	v.timer = time.NewTimer(v.nextBookmark())
	if v.stream = s.beginStream(v.sync && o.bookmarks && !s.h.NoWatchCompression); v.stream == nil {
		v.timer.Stop()
		w.Close()
		v.freeInitial()
		return nil, nil
	}
	if err := v.flush.Flush(); err != nil {
		v.close() // nobody is there any longer
		return nil, nil
	}
	return v, nil
}

// sendReady sends the events that there are, and reports whether the watch goes on.
func (v *activeWatch) sendReady() bool {
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
	v.s.enc.Now = v.s.req.Now() // ages in tables count until now, not until the watch began
	if v.s.enc.Format.List && len(events) > 0 {
		return false // an event is not a list
	}
	free, err := v.holdEvents(events)
	if err != nil {
		v.error(v.s.translate(err))
		v.send()
		return false
	}
	defer free()
	record := v.readAhead(events)
	for i, ev := range events {
		if err := v.event(eventType(ev.Type), record(i)); err != nil {
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
	if v.events.Synced() {
		v.freeInitial()
	}
	if !v.sync {
		v.s.req.Started()
	}
	return true
}

// readAhead returns a function that returns the record of an event by its index. Bytes of
// initial events that are out of memory are read many at a time.
func (v *activeWatch) readAhead(events []store.Event) func(i int) *store.Record {
	if v.endInitial == nil {
		return func(i int) *store.Record { return events[i].Record }
	}
	p := &wire.Page{Revision: v.events.Revision(), Selected: v.selected, Records: make([]*store.Record, len(events))}
	for i, ev := range events {
		p.Records[i] = ev.Record
	}
	if v.ahead == nil {
		v.ahead = v.s.enc.ReadAhead(p)
	} else {
		v.ahead.Reset(p)
	}
	return v.ahead.Record
}

// holdEvents waits until events may be encoded and written, if one of them is large or
// they are many. The returned function gives back what they hold.
func (v *activeWatch) holdEvents(events []store.Event) (free func(), err error) {
	largest := 0
	for _, ev := range events {
		largest = max(largest, ev.Record.StoredSize())
	}
	if !isLong(len(events), largest) {
		return func() {}, nil
	}
	giveBack := func() {}
	if v.endInitial == nil {
		if giveBack, err = v.s.holdAnswer(largest, 0); err != nil {
			return nil, err
		}
	}
	v.s.nextTurn()
	v.Yield = v.s.nextTurn
	return func() {
		v.Yield = nil
		v.s.req.EndTurn()
		giveBack()
	}, nil
}

// nextBookmark is when a watcher gets the next bookmark, or ends. The last one
// comes shortly before the end, so that the client goes on from there.
func (v *activeWatch) nextBookmark() time.Duration {
	left := time.Until(v.end)
	if left > lastBookmark {
		left -= lastBookmark
	}
	return min(bookmarkEvery, left)
}

// respondWatchError answers with a stream of one error.
func (s *scope) respondWatchError(err error) error {
	st := s.beginStream(false)
	if st == nil {
		return nil
	}
	defer st.close()
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
		w, err := s.objects.Watch(s.ctx(), o.revision, match)
		return s.narrow(w, o), err
	}
	read := store.Read{AtLeast: o.revision, Any: o.revisionText == "0"}
	snap, err := waitForRevision(s, read, func(ctx context.Context) (*store.Snapshot, error) { return s.objects.Snapshot(ctx, read) })
	if err != nil {
		return nil, err
	}
	w, err := s.objects.WatchFrom(s.ctx(), snap, prefix, initial, match)
	return s.narrow(w, o), err
}

// narrow tells a watcher what the request is about, if that is less than all objects.
func (s *scope) narrow(w *store.Watcher, o *listOptions) *store.Watcher {
	if w == nil {
		return nil
	}
	name, named := o.fields.RequiresExactMatch("metadata.name")
	switch wanted := o.equalities(s.def); {
	case named && (s.req.Namespace != "" || !s.def.Namespaced):
		w.About(store.Topic{Key: s.objects.Key(s.req.Namespace, name)})
	case len(wanted) > 0:
		w.About(store.Topic{Equals: wanted[len(wanted)-1]}) // a field, if there is one
	case s.req.Namespace != "" && s.def.Namespaced:
		w.About(store.Topic{Namespace: s.req.Namespace})
	}
	return w
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
	*wire.Writer // nil while there is nothing to write
	s            *scope
	enc          wire.EventEncoder
	flush        *http.ResponseController
	gzip         *wire.GzipWriter // nil if the stream is not compressed
	count        func(bytes int)  // nil counts nothing
}

// beginStream answers with a stream, compressed if that is wanted and the client accepts
// it. It returns nil if the request was answered otherwise.
func (s *scope) beginStream(compress bool) *stream {
	if request.IsWebSocket(s.r) && !s.upgradeWatch() {
		return nil
	}
	st := &stream{s: s, enc: wire.EventEncoder{Encoder: &s.enc}, flush: http.NewResponseController(s.w)}
	if m := s.h.Metrics; m != nil {
		st.count = m.Watched(s.req.Group, s.req.Version, s.req.Resource)
	}
	s.w.Header().Set("Content-Type", s.enc.Format.ContentType())
	if compress && !request.IsWebSocket(s.r) && request.AcceptsGzip(s.r) {
		// Every write is compressed by itself, so that a watch that waits holds nothing.
		st.gzip = beginGzip(s.w, http.StatusOK)
	} else {
		s.w.WriteHeader(http.StatusOK)
	}
	st.resume()
	return st
}

// close frees the buffer, and closes a WebSocket.
func (st *stream) close() {
	st.pause()
	if st.gzip != nil {
		_ = st.gzip.Close()
	}
	if m, ok := st.s.w.(*messages); ok {
		m.close()
	}
}

// pause gives the buffer away while there is nothing to write: nearly all
// watches wait nearly all of the time.
func (st *stream) pause() {
	if st.Writer != nil {
		st.Free()
		st.Writer = nil
	}
}

// resume takes a buffer, if there is none.
func (st *stream) resume() {
	switch {
	case st.Writer != nil:
	case st.gzip != nil:
		st.Writer = wire.NewWriter(st.gzip)
	default:
		st.Writer = wire.NewWriter(st.s.w)
	}
}

// event appends an event about a record.
func (st *stream) event(event wire.EventType, rec *store.Record) (err error) {
	start := len(st.Buf)
	st.Buf, err = st.enc.AppendEvent(st.Buf, event, rec)
	if err == nil {
		st.ended(start)
	}
	return err
}

// ended counts the event that begins at a place in the buffer.
func (st *stream) ended(start int) {
	if st.count != nil {
		st.count(len(st.Buf) - start)
	}
	st.Spill()
}

func eventType(t store.EventType) wire.EventType {
	switch t {
	case store.Added:
		return wire.Added
	case store.Modified:
		return wire.Modified
	}
	return wire.Deleted
}

// bookmark appends an event that says only how far the watch is.
func (st *stream) bookmark(revision int64, endsInitial bool) {
	start := len(st.Buf)
	var err error
	if st.Buf, err = st.enc.AppendBookmark(st.Buf, revision, endsInitial); err != nil {
		st.s.h.log().Warn("bookmark left out", "resource", st.s.def.Resource, "error", err)
		return
	}
	st.ended(start)
}

// error appends an event that ends the watch with a Status.
func (st *stream) error(err error) {
	var known apierrors.APIStatus
	if !errors.As(err, &known) {
		known = apierrors.NewInternalError(err)
	}
	status := known.Status()
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	if st.Buf, err = st.enc.AppendError(st.Buf, &status); err != nil {
		st.s.h.log().Warn("end of a watch without its reason", "resource", st.s.def.Resource, "reason", status.Message, "error", err)
	}
}

// send writes what has been gathered and reports whether the client is there.
func (st *stream) send() bool {
	if len(st.Buf) == 0 {
		return st.Err() == nil
	}
	st.Flush()
	return st.Err() == nil && st.flush.Flush() == nil
}
