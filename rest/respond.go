package rest

import (
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/internal/yamltext"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/store"
	"github.com/apikeel/kelson/wire"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// This file is the HTTP around what package wire encodes: status codes, headers, and
// which error a client is told of when an object cannot be encoded.

// respond answers with a record.
func (s *scope) respond(code int, rec *store.Record) error {
	if s.enc.Format.List {
		return errWrongList(s, false)
	}
	s.span.Event(aboutToWrite)
	clock := s.clock()
	if err := s.readInclude(); err != nil {
		return err
	}
	// What a writer holds for its body is for the answer, too, unless a small body has made a
	// large object.
	if !s.enc.ForWriter || int64(rec.StoredSize()) > s.forBody+budget.Small {
		free, err := s.holdRecord(rec)
		if err != nil {
			return err
		}
		defer free()
	}
	buf := answers.Get().(*[]byte)
	defer answers.Put(buf)
	body, err := s.enc.AppendObject((*buf)[:0], rec)
	if err != nil {
		return err
	}
	if cap(body) <= maxAnswer {
		*buf = body
	}
	if s.enc.Format.Shape == wire.ShapeTable {
		clock.stop(request.Transform)
	}
	s.auditAnswer(rec)
	if err := s.write(code, body); err != nil {
		return err
	}
	clock.stop(request.Serialize)
	s.span.Last(writingDone)
	return nil
}

// answers are buffers for the body of an answer, which is written before they are used
// again, and maxAnswer the capacity of the largest that is kept.
var answers = sync.Pool{New: func() any { return new([]byte) }}

const maxAnswer = 64 << 10

// respondWritten answers with a record that an object has just been written to.
func (s *scope) respondWritten(code int, rec *store.Record, obj resource.Object) error {
	if err := s.enc.NoteWritten(rec, obj); err != nil {
		return err
	}
	s.enc.ForWriter = true
	return writeConversionError(s.respond(code, rec))
}

// respondObject answers with an object of the hub version that is not in the
// store: a dry run.
func (s *scope) respondObject(code int, obj resource.Object) error {
	rec, err := s.enc.Unstored(obj)
	if err != nil {
		return writeConversionError(err)
	}
	return writeConversionError(s.respond(code, rec))
}

// respondOther answers with an object of another kind: a projection, or the
// result of an action.
func (s *scope) respondOther(code int, apiVersion, kind string, obj any) error {
	s.span.Event(aboutToWrite)
	defer s.span.Last(writingDone)
	clock := s.clock()
	defer clock.stop(request.Serialize)
	s.auditOther(obj)
	body, err := s.enc.AppendAny(nil, apiVersion, kind, obj)
	switch {
	case errors.Is(err, wire.ErrNotEncodable):
		return errNotAcceptable(s.acceptedTypes())
	case err != nil:
		return err
	}
	return s.write(code, body)
}

// respondStatus answers with a Status of success.
func (s *scope) respondStatus(code int, status *metav1.Status) {
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	s.span.Event(aboutToWrite)
	clock := s.clock()
	auditStatus(s.req, status)
	s.releaseSeats(0)
	writeStatus(s.w, s.enc.Format, code, status)
	clock.stop(request.Serialize)
	s.span.Last(writingDone)
}

// write sends a body that the encoder has made. The error is that of YAML that would need too
// much memory.
func (s *scope) write(code int, body []byte) error {
	body, err := s.enc.Format.Render(body)
	if yamltext.IsRefusal(err) {
		return err
	}
	if err != nil { // YAML that has a key that is too long
		code, s.enc.Format.Pretty = http.StatusInternalServerError, false
		writeStatus(s.w, s.enc.Format, code, &metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
			Status:   metav1.StatusFailure, Message: err.Error(), Code: int32(code),
		})
		return nil
	}
	s.w.Header().Set("Content-Type", s.enc.Format.ContentType())
	if len(body) >= wire.MinGzip && s.acceptsGzip() {
		z := beginGzip(s.w, code)
		_, _ = z.Write(body)
		_ = z.Close()
		return nil
	}
	s.w.WriteHeader(code)
	s.releaseSeats(len(body))
	_, _ = s.w.Write(body)
	return nil
}

// unsentOverhead is what a request takes that waits for its client, beside what is left of
// its response: a stack, and the buffers of a connection.
const unsentOverhead = 64 << 10

// crowdedWrite is how long a client has to take a small response when as many as there may be
// wait for theirs to do so. It is no time for one whose window has room.
const crowdedWrite = time.Second

// releaseSeats returns the seats of a request whose response is complete but for a number
// of bytes that are left to be written. If they are few, a client that does not read them
// takes no seat from others, as long as there are not too many such clients; then it has little
// time.
func (s *scope) releaseSeats(left int) {
	if left > budget.Small || s.unsent > 0 {
		return
	}
	if memory := s.h.Memory; memory != nil {
		if !memory.Unsent.Take(left + unsentOverhead) {
			// Writers without a network behind them support no deadlines.
			_ = http.NewResponseController(s.w).SetWriteDeadline(time.Now().Add(crowdedWrite))
			return
		}
		s.unsent = left + unsentOverhead
	}
	s.req.Started()
}

func (s *scope) acceptsGzip() bool { return !s.h.NoCompression && request.AcceptsGzip(s.r) }

// beginGzip writes the header of a compressed answer and returns where its body goes.
func beginGzip(w http.ResponseWriter, code int) *wire.GzipWriter {
	h := w.Header()
	h.Set("Content-Encoding", "gzip")
	h.Add("Vary", "Accept-Encoding")
	h.Del("Content-Length")
	w.WriteHeader(code)
	return wire.NewGzipWriter(w)
}

// readInclude reads what a client that wants a table wants in its rows.
func (s *scope) readInclude() error {
	if s.enc.Format.Shape != wire.ShapeTable {
		return nil
	}
	if s.req.Audit != nil {
		s.enc.Decode = s.decode // which tells how long it takes
	}
	switch v := s.req.Query.Get("includeObject"); v {
	case "", "Metadata":
		s.enc.Include = wire.IncludeMetadata
	case "None":
		s.enc.Include = wire.IncludeNone
	case "Object":
		s.enc.Include = wire.IncludeObject
	default:
		return apierrors.NewBadRequest(fmt.Sprintf("Unable to convert to Table as requested: includeObject: Invalid value: %q: must be 'Metadata', 'Object', 'None', or empty", v))
	}
	return nil
}

// writeConversionError is the error of a write whose object could not be converted for
// the answer: that of the conversion, without a reason.
func writeConversionError(err error) error {
	var failed *wire.ConversionError
	if errors.As(err, &failed) && !errors.Is(err, budget.ErrBusy) {
		return errBare(failed.Err)
	}
	return err
}

// readConversionError is the error of a read whose object could not be converted to the
// version that is wanted: that of an object that cannot be read.
func (s *scope) readConversionError(rec *store.Record, err error) error {
	var failed *wire.ConversionError
	if !errors.As(err, &failed) || errors.Is(err, budget.ErrBusy) {
		return err
	}
	return s.unreadableError(&store.Unreadable{Key: rec.Key, Revision: rec.Revision, Err: failed.Err})
}
