package rest

import (
	"context"
	"encoding/binary"
	"errors"
	"net/http"
	"slices"
	"strconv"

	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/store"
	"github.com/apikeel/kelson/trace"
	"github.com/apikeel/kelson/wire"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// page is what a list answers with.
type page struct {
	records   []*store.Record
	revision  int64
	next      string // continue token, "" at the end
	chosen    bool   // by selectors
	remaining *int64
}

// list answers with the objects of a resource.
func (s *scope) list() error {
	o, err := s.listOptions(false)
	if err != nil {
		return err
	}
	p, err := s.page(&o)
	if err != nil {
		return err
	}
	s.span.Event(aboutToWrite)
	defer s.span.Last(writingDone)
	return s.writeList(p)
}

// writeList answers with a list, in the form that is wanted.
func (s *scope) writeList(p *page) error {
	switch {
	case s.out.view == viewMetadata && !s.out.list:
		return errWrongList(s, true)
	case s.out.view == viewTable:
		return s.writeTable(p)
	}
	s.answeredList(func(s *scope, c *pieces) error { return s.jsonList(c, p) })
	if s.out.media == mediaProto {
		return s.writeProtoList(p)
	}
	return s.writeJSONList(p)
}

// page reads what a list should show.
func (s *scope) page(o *listOptions) (*page, error) {
	prefix := s.listPrefix()
	read, start := o.read(), ""
	inconsistent := false
	if o.continueToken != "" {
		var revision int64
		var err error
		if start, revision, err = decodeContinue(o.continueToken, prefix); err != nil {
			return nil, err
		}
		if o.revisionText != "" && o.revisionText != "0" {
			return nil, apierrors.NewBadRequest("specifying resource version is not allowed when using continue")
		}
		read = store.Read{Exact: revision}
		if revision < 0 {
			read, inconsistent = store.Read{}, true
		}
	}
	snap, err := fresh(s, read, func(ctx context.Context) (*store.Snapshot, error) { return s.objects.Snapshot(ctx, read) })
	switch {
	case errors.Is(err, storage.ErrFutureRevision):
		return nil, errTooLargeRevision(read.Exact, s.objects.Revision())
	case errors.Is(err, storage.ErrCompacted) && o.continueToken != "":
		return nil, errContinueExpired(start, prefix)
	case err != nil:
		return nil, err
	}
	p := &page{revision: snap.Revision, chosen: !o.labels.Empty() || !o.fields.Empty()}
	match := s.match(o, prefix)
	if name, ok := o.fields.RequiresExactMatch("metadata.name"); ok && start == "" && (s.req.Namespace != "" || !s.def.Namespaced) {
		if rec, ok := snap.Get(s.objects.Key(s.req.Namespace, name)); ok && match(rec) {
			p.records = append(p.records, rec)
		}
		return p, nil
	}
	limited := o.limit > 0 && !read.Any
	if !limited && !p.chosen && prefix == s.objects.Key("", "") {
		p.records = make([]*store.Record, 0, snap.Len())
	}
	more, evaluated := false, 0
	snap.Range(prefix, start, func(rec *store.Record) bool {
		// A full page goes on if anything follows, whether it matches or not.
		if limited && int64(len(p.records)) == o.limit {
			more = true
			return false
		}
		if evaluated++; evaluated == manyRecords {
			s.req.TakeTurn()
		}
		if !p.chosen || match(rec) {
			p.records = append(p.records, rec)
		}
		return true
	})
	s.span.Event("Listed items from cache", trace.Int("count", int64(evaluated)))
	s.span.Event("Filtered items", trace.Int("count", int64(len(p.records))))
	if s.h.Metrics != nil {
		s.h.Metrics.Listed(s.req.Group, s.req.Resource, evaluated, len(p.records))
	}
	if more {
		last := p.records[len(p.records)-1].Key
		at := snap.Revision
		if inconsistent {
			at = -1
		} else {
			s.objects.Pin(snap)
		}
		p.next = encodeContinue(last, prefix, at)
		if !p.chosen {
			var n int64
			snap.Range(prefix, storage.NextKey(last), func(*store.Record) bool { n++; return true })
			p.remaining = &n
		}
	}
	return p, nil
}

// manyRecords is how many records make a list that takes turns with others.
const manyRecords = 500

// listPrefix is the prefix of the keys that a list or watch is about.
func (s *scope) listPrefix() string { return s.objects.Key(s.req.Namespace, "") }

// errContinueExpired tells that the pages of a list cannot be consistent any
// more, with a token to go on all the same.
func errContinueExpired(start, prefix string) error {
	err := apierrors.NewResourceExpired("The provided continue parameter is too old to display a consistent list result. " +
		"You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. " +
		"Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.")
	key := start
	if n := len(key); n > 0 && key[n-1] == 0 {
		key = key[:n-1]
	}
	err.ErrStatus.ListMeta.Continue = encodeContinue(key, prefix, -1)
	return err
}

// listKind returns the kind and apiVersion of the list.
func (s *scope) listKind() (kind, apiVersion string) {
	if s.out.view == viewMetadata {
		return "PartialObjectMetadataList", s.out.metaVersion()
	}
	return s.def.ListKind, s.served.APIVersion
}

// writeJSONList streams a list in JSON: the bytes of each record as they are.
func (s *scope) writeJSONList(p *page) error {
	if err := s.convertible(p); err != nil {
		return err
	}
	return s.streamed(p, func(c *pieces) error { return s.jsonList(c, p) })
}

// convertible finds what cannot be shown in the version that is wanted, before
// the first byte is sent. What is in the cache can be shown as it was stored.
func (s *scope) convertible(p *page) error {
	if s.served.IsHub() {
		return nil
	}
	if s.served.Version.FromHubAll != nil {
		return s.convertAll(p)
	}
	for _, rec := range p.records {
		if _, err := s.jsonBody(rec); err != nil {
			return err
		}
	}
	return nil
}

// convertAtOnce is how many objects are converted by one call.
const convertAtOnce = 500

// convertAll makes the JSON of records in the version that is wanted, many at a
// time.
func (s *scope) convertAll(p *page) error {
	var todo []*store.Record
	for _, rec := range p.records {
		if !rec.HasEncoding(s.formID(formJSON)) {
			todo = append(todo, rec)
		}
	}
	for some := range slices.Chunk(todo, convertAtOnce) {
		objs := make([]resource.Object, len(some))
		for i, rec := range some {
			var err error
			if objs[i], err = wire.DecodeStored(s.def, rec.Stored); err != nil {
				return err
			}
		}
		converted, err := s.served.Version.FromHubAll(objs)
		if err != nil {
			return errBare(err)
		}
		for i, rec := range some {
			if _, err := rec.Encoding(s.formID(formJSON), func(rec *store.Record) ([]byte, error) {
				// It is encoded as it is, as if it were of the hub.
				body, err := wire.JSONBody(s.def, s.def.HubVersion(), converted[i])
				if err != nil {
					return nil, err
				}
				return wire.SpliceJSON(body, revisionString(rec.Revision)), nil
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

// streamed answers with what write writes, piece by piece. An error after the
// first byte breaks the answer off: half of one must not look like a whole.
func (s *scope) streamed(p *page, write func(c *pieces) error) error {
	if s.out.media == mediaYAML || s.out.media == mediaJSON && s.out.pretty {
		// These need the whole.
		var all buffer
		c := newPieces(&all)
		defer c.free()
		if err := write(c); err != nil {
			return err
		}
		c.flush()
		s.write(http.StatusOK, all.b)
		return nil
	}
	s.w.Header().Set("Content-Type", s.out.contentType())
	c := newPieces(s.w)
	defer c.free()
	if s.compressed(p) {
		c.zip = beginGzip(s.w, http.StatusOK)
		c.w = c.zip
	} else {
		s.w.WriteHeader(http.StatusOK)
	}
	if len(p.records) >= manyRecords {
		c.next = s.req.TakeTurn
	}
	if err := write(c); err != nil {
		s.h.log().Error("list broken off", "resource", s.def.Resource, "error", err)
		panic(http.ErrAbortHandler)
	}
	if s.out.media == mediaJSON {
		c.buf = append(c.buf, '\n')
	}
	c.flush()
	if c.zip != nil {
		return c.zip.Close()
	}
	return nil
}

// compressed reports whether a list will be long, and the client accepts it
// compressed.
func (s *scope) compressed(p *page) bool {
	if !acceptsGzip(s.r) {
		return false
	}
	size := 0
	for _, rec := range p.records {
		if size += len(rec.Stored); size >= gzipFrom {
			return true
		}
	}
	return false
}

func (s *scope) jsonList(c *pieces, p *page) error {
	kind, apiVersion := s.listKind()
	if s.served.Unstructured && s.out.view == viewObject {
		// Maps have their keys sorted.
		c.buf = append(c.buf, `{"apiVersion":`...)
		c.buf = strconv.AppendQuote(c.buf, apiVersion)
		c.buf = append(c.buf, `,"items":[`...)
		if err := s.jsonItems(c, p); err != nil {
			return err
		}
		c.buf = append(c.buf, `],"kind":`...)
		c.buf = strconv.AppendQuote(c.buf, kind)
		c.buf = append(c.buf, `,"metadata":`...)
		c.buf = append(p.appendMap(c.buf), '}')
		return nil
	}
	c.buf = append(c.buf, `{"kind":`...)
	c.buf = strconv.AppendQuote(c.buf, kind)
	c.buf = append(c.buf, `,"apiVersion":`...)
	c.buf = strconv.AppendQuote(c.buf, apiVersion)
	c.buf = append(c.buf, `,"metadata":`...)
	c.buf = p.appendMeta(c.buf)
	if s.out.view == viewMetadata && len(p.records) == 0 {
		c.buf = append(c.buf, `,"items":null}`...)
		return nil
	}
	c.buf = append(c.buf, `,"items":[`...)
	if err := s.jsonItems(c, p); err != nil {
		return err
	}
	c.buf = append(c.buf, "]}"...)
	return nil
}

func (s *scope) jsonItems(c *pieces, p *page) error {
	kind := formJSON
	item := func(dst []byte, i int) ([]byte, error) { return s.appendRecord(dst, p.records[i], true) }
	if s.out.view == viewMetadata {
		kind = formMetadata
		item = func(dst []byte, i int) ([]byte, error) { return s.appendMetadata(dst, p.records[i]) }
	}
	items := s.items(p, kind, c.zip != nil)
	defer items.release()
	return items.write(c, ",", item)
}

// appendMeta appends the metadata of the list.
func (p *page) appendMeta(dst []byte) []byte {
	if p.revision == 0 {
		return append(dst, "{}"...) // of what is not stored
	}
	dst = append(dst, `{"resourceVersion":"`...)
	dst = strconv.AppendInt(dst, p.revision, 10)
	dst = append(dst, '"')
	if p.next != "" {
		dst = append(dst, `,"continue":"`...)
		dst = append(dst, p.next...)
		dst = append(dst, '"')
	}
	if p.remaining != nil {
		dst = append(dst, `,"remainingItemCount":`...)
		dst = strconv.AppendInt(dst, *p.remaining, 10)
	}
	return append(dst, '}')
}

// appendMap appends the metadata of a list of maps: its keys are sorted, and
// continue is always there.
func (p *page) appendMap(dst []byte) []byte {
	dst = append(dst, `{"continue":"`...)
	dst = append(dst, p.next...)
	dst = append(dst, '"')
	if p.remaining != nil {
		dst = append(dst, `,"remainingItemCount":`...)
		dst = strconv.AppendInt(dst, *p.remaining, 10)
	}
	dst = append(dst, `,"resourceVersion":"`...)
	dst = strconv.AppendInt(dst, p.revision, 10)
	return append(dst, `"}`...)
}

func (p *page) meta() metav1.ListMeta {
	if p.revision == 0 {
		return metav1.ListMeta{}
	}
	return metav1.ListMeta{ResourceVersion: revisionString(p.revision), Continue: p.next, RemainingItemCount: p.remaining}
}

// writeProtoList streams a list in protobuf: its length is known before it is
// written.
func (s *scope) writeProtoList(p *page) error {
	meta := p.meta()
	rawMeta, err := meta.Marshal()
	if err != nil {
		return err
	}
	kind := formProto
	if s.out.view == viewMetadata {
		kind = formProtoMetadata
	}
	items := s.items(p, kind, s.compressed(p))
	defer items.release()
	size := len(appendField(nil, 1, rawMeta))
	var made []protoItem // of those that no run has
	for _, sp := range items.spans {
		if sp.run != nil {
			size += sp.run.size
			continue
		}
		if made == nil {
			made = make([]protoItem, len(p.records))
		}
		for i := sp.from; i < sp.to; i++ {
			if made[i], err = s.protoItem(p.records[i]); err != nil {
				return err
			}
			size += 1 + uvarintSize(made[i].size) + made[i].size
		}
	}
	listKind, apiVersion := s.listKind()
	return s.streamed(p, func(c *pieces) error {
		c.buf = appendField(wire.AppendEnvelopeHead(c.buf, apiVersion, listKind, size), 1, rawMeta)
		err := items.write(c, "", func(dst []byte, i int) ([]byte, error) {
			dst = append(dst, 2<<3|2)
			dst = binary.AppendUvarint(dst, uint64(made[i].size))
			return made[i].append(dst), nil
		})
		c.buf = append(c.buf, wire.EnvelopeTail...)
		return err
	})
}

func uvarintSize(n int) int {
	size := 1
	for n >= 0x80 {
		n >>= 7
		size++
	}
	return size
}

// buffer is an io.Writer into memory.
type buffer struct{ b []byte }

func (b *buffer) Write(p []byte) (int, error) {
	b.b = append(b.b, p...)
	return len(p), nil
}
