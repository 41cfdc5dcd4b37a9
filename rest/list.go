package rest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/store"
	"github.com/apikeel/kelson/trace"
	"github.com/apikeel/kelson/wire"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

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
	if n := len(s.leftOut); n > 0 {
		s.req.Warn(fmt.Sprintf("%d objects are left out since they cannot be read, %s first", n, s.h.shownKey(s.leftOut[0].Key)))
	}
	s.span.Event(aboutToWrite)
	defer s.span.Last(writingDone)
	return s.writeList(p)
}

// writeList answers with a list, in the format that is wanted.
func (s *scope) writeList(p *wire.Page) error {
	format := s.enc.Format
	if format.Shape == wire.ShapeMetadata && !format.List {
		return errWrongList(s, true)
	}
	if err := s.readInclude(); err != nil {
		return err
	}
	s.enc.Err = s.ctx().Err
	largest, whole := s.largest(p), format.IsRendered() && !p.IsLarger(wholeList)
	free, err := s.holdList(p, largest, whole)
	if err != nil {
		return err
	}
	defer free()
	if format.Media != wire.Protobuf { // which fails before the first byte anyhow
		if err := s.convertList(p); err != nil {
			return err
		}
	}
	s.auditList(p)
	if !whole {
		return s.streamList(p, largest)
	}
	body, err := s.enc.AppendList(nil, p)
	if err != nil {
		return err
	}
	return s.write(http.StatusOK, body)
}

// wholeList is up to how many stored bytes a list is rendered as a whole, so that an error comes
// before the first byte. What is longer is compressed for those who accept that.
const wholeList = 256 << 10

// largest returns how many stored bytes an object of a list has at most.
func (s *scope) largest(p *wire.Page) int {
	switch {
	case len(p.Records) == 0:
		return 0
	case s.objects == nil || len(p.Records) == 1:
		return p.Largest()
	}
	return s.objects.Largest()
}

// convertList finds what cannot be converted to the version that is wanted, before the
// first byte is sent.
func (s *scope) convertList(p *wire.Page) error {
	err := s.enc.Convert(p.Records)
	if s.served.Version.FromHubAll != nil {
		return writeConversionError(err)
	}
	return err
}

// streamList writes a list while it is encoded. An error after the first byte breaks the
// answer off: half of one must not look like a whole.
func (s *scope) streamList(p *wire.Page, largest int) error {
	compress := s.acceptsGzip() && p.WorthGzip()
	rendered := s.enc.Format.IsRendered()
	list, err := s.enc.PrepareList(p, compress && !rendered)
	if err != nil {
		return err
	}
	defer list.Release()
	s.w.Header().Set("Content-Type", s.enc.Format.ContentType())
	var to io.Writer = s.w
	var gzip *wire.GzipWriter
	if compress {
		gzip = beginGzip(s.w, http.StatusOK)
		to = gzip
	} else {
		s.w.WriteHeader(http.StatusOK)
	}
	var renderer io.WriteCloser
	if rendered {
		renderer = s.enc.Format.NewRenderer(to)
		to = renderer
	}
	w := wire.NewWriter(to)
	defer w.Free()
	if isLong(len(p.Records), largest) {
		s.nextTurn()
		w.Yield = s.nextTurn
	}
	breakOff := func(err error) {
		if s.ctx().Err() == nil { // else the client is gone, or out of time
			s.h.log().Error("list broken off", "resource", s.def.Resource, "error", err)
		}
		panic(http.ErrAbortHandler)
	}
	if err := list.WriteTo(w); err != nil {
		breakOff(err)
	}
	if s.enc.Format.Media == wire.JSON && !rendered {
		w.Buf = append(w.Buf, '\n')
	}
	s.releaseSeats(len(w.Buf))
	w.Flush()
	if rendered {
		if err := renderer.Close(); err != nil {
			breakOff(err)
		}
	}
	if gzip != nil {
		return gzip.Close()
	}
	return nil
}

// page reads what a list should show.
func (s *scope) page(o *listOptions) (*wire.Page, error) {
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
	limited := o.limit > 0
	snap, err := waitForRevision(s, read, func(ctx context.Context) (*store.Snapshot, error) {
		if limited && !o.selects() {
			return s.objects.SnapshotPage(ctx, prefix, start, o.most(), read)
		}
		return s.objects.SnapshotBelow(ctx, prefix, read)
	})
	if errors.As(err, new(store.UnreadableObjects)) && s.readsDirectly(o, read) {
		snap, err = s.listDirectly(o, prefix, start, read.Exact)
	}
	switch {
	case errors.Is(err, storage.ErrFutureRevision):
		return nil, errTooLargeRevision(read.Exact, s.objects.Revision())
	case errors.Is(err, storage.ErrCompacted) && o.continueToken != "":
		return nil, errContinueExpired(start, prefix)
	case err != nil:
		return nil, err
	}
	s.leftOut = snap.LeftOut(prefix)
	p := &wire.Page{Revision: snap.Revision, Selected: o.selects()}
	if o.shard != nil && s.enc.Format.Shape == wire.ShapeObject && !s.served.Unstructured {
		p.Shard = o.shard.String() // tables, metadata alone and maps have no place for it
	}
	match := s.match(o, prefix)
	if name, ok := o.fields.RequiresExactMatch("metadata.name"); ok && start == "" && (s.req.Namespace != "" || !s.def.Namespaced) {
		if rec, ok := snap.Get(s.objects.Key(s.req.Namespace, name)); ok && match(rec) {
			p.Records = append(p.Records, rec)
		}
		return p, nil
	}
	if !limited && !p.Selected && prefix == s.objects.Key("", "") {
		p.Records = make([]*store.Record, 0, snap.Len())
	}
	more, evaluated := false, 0
	ctx := s.ctx()
	each := func(rec *store.Record) bool {
		// A full page goes on if anything follows, whether it matches or not.
		if limited && int64(len(p.Records)) == o.limit {
			more = true
			return false
		}
		if evaluated++; evaluated == wire.LongList {
			s.req.TakeTurn()
		}
		if !p.Selected || match(rec) {
			p.Records = append(p.Records, rec)
		}
		return !p.Selected || ctx.Err() == nil // a selector may have a hundred thousand requirements
	}
	if wanted := o.equalities(s.def); s.objects.Select(snap, prefix, start, wanted, each) {
		if limited && int64(len(p.Records)) == o.limit && o.limit > 0 {
			last := p.Records[len(p.Records)-1].Key
			more = snap.Count(prefix, storage.NextKey(last)) > 0
		}
	} else {
		snap.Range(prefix, start, each)
		s.objects.Looked(snap, wanted, evaluated, len(p.Records))
	}
	if p.Selected && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	s.span.Event("Listed items from cache", trace.Int("count", int64(evaluated)))
	s.span.Event("Filtered items", trace.Int("count", int64(len(p.Records))))
	if s.h.Metrics != nil {
		s.h.Metrics.Listed(s.req.Group, s.req.Resource, evaluated, len(p.Records))
	}
	following, some := snap.Following()
	if more || some {
		last := p.Records[len(p.Records)-1].Key
		at := snap.Revision
		if inconsistent {
			at = -1
		} else {
			s.objects.Pin(snap)
		}
		p.Continue = encodeContinue(last, prefix, at)
		if !p.Selected {
			n := int64(snap.Count(prefix, storage.NextKey(last)) + following)
			p.Remaining = &n
		}
	}
	return p, nil
}

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
