package rest

import (
	"time"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/trace"
)

// What is said before a write, when an answer begins, and when it ends.
const (
	auditRecorded = "Recorded the audit event"
	aboutToStore  = "About to store object in database"
	aboutToWrite  = "About to write a response"
	writingDone   = "Writing http response done"
)

// noteResult notes what came of something that was done with a number of bytes.
func (s *scope) noteResult(done, failed string, bytes int, err error) {
	if err != nil {
		s.span.Event(failed, trace.Int("len", int64(bytes)), trace.String("err", err.Error()))
		return
	}
	s.span.Event(done, trace.Int("len", int64(bytes)))
}

// noteStored notes what came of a write.
func (s *scope) noteStored(err error) {
	switch {
	case s.req.Verb != request.Patch:
		s.noteResult("Write to database call succeeded", "Write to database call failed", s.bodySize, err)
	case err == nil:
		s.span.Event("Object stored in database")
	}
}

// stopwatch tells the audit how long a part of the server works.
type stopwatch struct {
	req     *request.Request // nil if nobody wants to know
	began   time.Time
	storage time.Duration
}

func (s *scope) clock() stopwatch {
	if s.req.Audit == nil {
		return stopwatch{}
	}
	return stopwatch{s.req, time.Now(), s.req.Stored()}
}

// stop tells how long a part has worked, without what storage took of the time, and
// begins anew.
func (w *stopwatch) stop(part request.Part) {
	if w.req == nil {
		return
	}
	now, storage := time.Now(), w.req.Stored()
	w.req.Spent(part, now.Sub(w.began)-(storage-w.storage))
	w.began, w.storage = now, storage
}
