package wire

import (
	"encoding/binary"
	"errors"
	"strconv"

	"github.com/apikeel/kelson/internal/jsonvalue"
	"github.com/apikeel/kelson/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Page is what a list consists of.
type Page struct {
	Records []*Record
	// Revision is the resourceVersion of the list; 0 is none, of what is not stored.
	Revision int64
	// Continue is the token for the next page, "" at the end.
	Continue string
	// Remaining is how many items follow, nil if that is not known.
	Remaining *int64
	// Selected says that selectors chose the records: few other lists are of the same
	// ones, so their items are not kept as chunks.
	Selected bool
	// Shard is the shard selector that chose the records, shown in the metadata of the
	// list; "" is none.
	Shard string
}

// WorthGzip reports whether the list is large enough to be compressed.
func (p *Page) WorthGzip() bool { return p.IsLarger(MinGzip - 1) }

// passingList is from how many stored bytes on the items of a list are encoded for it alone.
const passingList = DefaultEncodingBytes / 4

// IsLarger reports whether the records have more bytes than so many, as they are stored.
func (p *Page) IsLarger(bytes int) bool {
	for _, rec := range p.Records {
		if bytes -= rec.StoredSize(); bytes < 0 {
			return true
		}
	}
	return false
}

// Largest returns the size of the largest record as it is stored.
func (p *Page) Largest() (size int) {
	for _, rec := range p.Records {
		size = max(size, rec.StoredSize())
	}
	return size
}

// StoredSize returns the size of all records as they are stored.
func (p *Page) StoredSize() (size int) {
	for _, rec := range p.Records {
		size += rec.StoredSize()
	}
	return size
}

// meta is the metadata of the list.
func (p *Page) meta() metav1.ListMeta {
	if p.Revision == 0 {
		return metav1.ListMeta{}
	}
	m := metav1.ListMeta{ResourceVersion: RevisionString(p.Revision), Continue: p.Continue, RemainingItemCount: p.Remaining}
	if p.Shard != "" {
		m.ShardInfo = &metav1.ShardInfo{Selector: p.Shard}
	}
	return m
}

// appendMeta appends the metadata of a list of structs, in JSON.
func (p *Page) appendMeta(dst []byte) []byte {
	if p.Revision == 0 {
		return append(dst, "{}"...)
	}
	dst = append(dst, `{"resourceVersion":"`...)
	dst = strconv.AppendInt(dst, p.Revision, 10)
	dst = append(dst, '"')
	if p.Continue != "" {
		dst = append(dst, `,"continue":"`...)
		dst = append(dst, p.Continue...)
		dst = append(dst, '"')
	}
	if p.Remaining != nil {
		dst = append(dst, `,"remainingItemCount":`...)
		dst = strconv.AppendInt(dst, *p.Remaining, 10)
	}
	if p.Shard != "" {
		dst = append(dst, `,"shardInfo":{"selector":`...)
		dst = append(jsonvalue.AppendString(dst, p.Shard), '}')
	}
	return append(dst, '}')
}

// appendMapMeta appends the metadata of a list of maps: its keys are sorted, and continue
// is always there.
func (p *Page) appendMapMeta(dst []byte) []byte {
	dst = append(dst, `{"continue":"`...)
	dst = append(dst, p.Continue...)
	dst = append(dst, '"')
	if p.Remaining != nil {
		dst = append(dst, `,"remainingItemCount":`...)
		dst = strconv.AppendInt(dst, *p.Remaining, 10)
	}
	dst = append(dst, `,"resourceVersion":"`...)
	dst = strconv.AppendInt(dst, p.Revision, 10)
	return append(dst, `"}`...)
}

// Convert finds out whether all records can be converted to the version of the encoder,
// before the first byte of a list is sent, and keeps what it has encoded. The error of
// a record that cannot be is a ConversionError. In the hub version there is nothing to
// do: what is in a cache can be read as it was stored.
func (e *Encoder) Convert(records []*Record) error {
	if e.Served.IsHub() {
		return nil
	}
	if e.Served.Version.FromHubAll != nil {
		return e.convertAll(records)
	}
	encode := e.recordJSON
	if e.Format.Media == CBOR && e.Format.Shape == ShapeObject {
		encode = e.recordCBOR
	}
	for _, rec := range records {
		if err := e.err(); err != nil {
			return err
		}
		if _, err := encode(rec); err != nil {
			return err
		}
	}
	return nil
}

const (
	// convertAtOnce is how many objects are converted by one call, and convertWeight what they weigh, if
	// they are several.
	convertAtOnce = 500
	convertWeight = 4 << 20
	// Converting is what the objects of one call take before and after it, and as its text.
	Converting = 3 * convertWeight
)

// convertAll makes the JSON of records, converting many by one call.
func (e *Encoder) convertAll(records []*Record) error {
	def, rows := e.Served.Definition, e.hasConvertedRows()
	var todo []*Record
	var positions []int // of the records in todo
	for i, rec := range records {
		if !rec.hasEncoding(e.id(encodingJSON)) || rows && !rec.hasEncoding(e.id(encodingRow)) {
			todo, positions = append(todo, rec), append(positions, i)
		}
	}
	for len(todo) > 0 {
		if err := e.err(); err != nil {
			return err
		}
		var objs []resource.Object
		for weight := int64(0); len(objs) < min(len(todo), convertAtOnce); {
			rec := todo[len(objs)]
			stored, err := rec.Stored()
			if err != nil {
				return err
			}
			if weight += int64(len(stored)) + Weigh(stored); weight > convertWeight && len(objs) > 0 {
				break
			}
			obj, err := rec.decode(def)
			if err != nil {
				return err
			}
			objs = append(objs, obj)
		}
		some, at := todo[:len(objs)], positions[:len(objs)]
		todo, positions = todo[len(objs):], positions[len(objs):]
		converted, err := e.Served.Version.FromHubAll(objs)
		if item := resource.ItemError(nil); errors.As(err, &item) {
			err = item.InList(func(index int) int { return at[index] })
		}
		if err != nil {
			return &ConversionError{Err: err}
		}
		if err := e.keepConverted(some, converted); err != nil {
			return err
		}
		if rows {
			if err := e.keepRows(some, objs, converted); err != nil {
				return err
			}
		}
	}
	return nil
}

// keepConverted makes the JSON of records of objects that were converted.
func (e *Encoder) keepConverted(records []*Record, converted []resource.Object) error {
	def := e.Served.Definition
	for i, rec := range records {
		if _, err := rec.Encoding(e.id(encodingJSON), func(rec *Record) ([]byte, error) {
			// It is encoded as it is, as if it were of the hub.
			body, err := JSONBody(def, def.HubVersion(), converted[i])
			if err != nil {
				return nil, err
			}
			return spliceJSON(body, RevisionString(rec.Revision)), nil
		}); err != nil {
			return err
		}
		rec.noteConverted()
	}
	return nil
}

// hasConvertedRows reports whether the answer is a table whose rows are made from converted objects, each
// on its own.
func (e *Encoder) hasConvertedRows() bool {
	return e.Format.Shape == ShapeTable && e.Served.Version.Cells != nil && e.Served.Definition.Arrange == nil
}

// keepRows makes the rows of records of objects that were converted.
func (e *Encoder) keepRows(records []*Record, objs, converted []resource.Object) error {
	for i, rec := range records {
		if _, err := rec.Encoding(e.id(encodingRow), func(*Record) ([]byte, error) {
			cells, err := e.Served.Version.Cells(converted[i])
			if err != nil {
				return nil, err
			}
			return e.rowOf(objs[i], cells)
		}); err != nil {
			return err
		}
	}
	return nil
}

// List is a page that is about to be written: which of its items are in chunks already,
// and how long it is going to be.
type List struct {
	e        *Encoder
	page     *Page
	format   chunkFormat
	sections []section

	// Of a list in protobuf, which says how long it is before it begins.
	meta []byte
	size int

	ahead *ReadAhead // of the page
	// passing says that the encodings of its items are not kept: they would take the place
	// of all others, and of each other.
	passing bool
}

// PrepareList prepares a page to be written, compressed or not. What can go wrong with
// protobuf goes wrong here, before the first byte; for other media types call Convert
// before. The list must be released.
func (e *Encoder) PrepareList(p *Page, gzip bool) (*List, error) {
	l := &List{e: e, page: p, ahead: e.ReadAhead(p), passing: p.IsLarger(passingList)}
	if e.Format.Shape == ShapeTable {
		return l, nil
	}
	l.format = chunkFormat{e.id(e.itemEncoding()), e.Format.Beta, gzip}
	if e.Chunks == nil || p.Selected || len(p.Records) < LongList {
		l.sections = []section{{to: len(p.Records)}}
	} else {
		l.sections = e.Chunks.split(p.Records, l.format)
	}
	if e.Format.Media == Protobuf {
		if err := l.measure(); err != nil {
			l.Release()
			return nil, err
		}
	}
	return l, nil
}

// itemEncoding is what the items of lists are encoded as.
func (e *Encoder) itemEncoding() encodingKind {
	switch {
	case e.Format.Media == Protobuf && e.Format.Shape == ShapeMetadata:
		return encodingProtoMetadata
	case e.Format.Media == Protobuf:
		return encodingProto
	case e.Format.Media == CBOR && e.Format.Shape == ShapeMetadata:
		return encodingCBORMetadata
	case e.Format.Media == CBOR:
		return encodingCBOR
	case e.Format.Shape == ShapeMetadata:
		return encodingMetadata
	}
	return encodingJSON
}

// Release must be called when the list is written, or will not be.
func (l *List) Release() {
	l.ahead.Done()
	if l.e.Chunks != nil {
		l.e.Chunks.release(l.sections)
	}
}

// WriteTo writes the list: JSON, also for YAML, protobuf or CBOR. An error is that of a record
// that cannot be encoded; those of the writer are kept there.
func (l *List) WriteTo(w *Writer) error {
	switch {
	case l.e.Format.Shape == ShapeTable:
		return l.writeTable(w)
	case l.e.Format.Media == Protobuf:
		return l.writeProto(w)
	case l.e.Format.Media == CBOR:
		return l.writeCBOR(w)
	}
	return l.writeJSON(w)
}

// AppendList appends a whole list, as WriteTo writes it.
func (e *Encoder) AppendList(dst []byte, p *Page) ([]byte, error) {
	l, err := e.PrepareList(p, false)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	out := appender{dst}
	w := NewWriter(&out)
	defer w.Free()
	if err := l.WriteTo(w); err != nil {
		return nil, err
	}
	w.Flush()
	return out.b, nil
}

// appender is an io.Writer into memory.
type appender struct{ b []byte }

func (a *appender) Write(p []byte) (int, error) {
	a.b = append(a.b, p...)
	return len(p), nil
}

// kind returns the kind and apiVersion of the list.
func (l *List) kind() (kind, apiVersion string) {
	if l.e.Format.Shape == ShapeMetadata {
		return "PartialObjectMetadataList", l.e.Format.MetaVersion()
	}
	return l.e.Served.Definition.ListKind, l.e.Served.APIVersion
}

func (l *List) writeJSON(w *Writer) error {
	e := l.e
	kind, apiVersion := l.kind()
	if e.Served.Unstructured && e.Format.Shape == ShapeObject {
		// Maps have their keys sorted.
		w.Buf = append(w.Buf, `{"apiVersion":`...)
		w.Buf = strconv.AppendQuote(w.Buf, apiVersion)
		w.Buf = append(w.Buf, `,"items":[`...)
		if err := l.writeJSONItems(w); err != nil {
			return err
		}
		w.Buf = append(w.Buf, `],"kind":`...)
		w.Buf = strconv.AppendQuote(w.Buf, kind)
		w.Buf = append(w.Buf, `,"metadata":`...)
		w.Buf = append(l.page.appendMapMeta(w.Buf), '}')
		return nil
	}
	w.Buf = append(w.Buf, `{"kind":`...)
	w.Buf = strconv.AppendQuote(w.Buf, kind)
	w.Buf = append(w.Buf, `,"apiVersion":`...)
	w.Buf = strconv.AppendQuote(w.Buf, apiVersion)
	w.Buf = append(w.Buf, `,"metadata":`...)
	w.Buf = l.page.appendMeta(w.Buf)
	if e.Format.Shape == ShapeMetadata && len(l.page.Records) == 0 {
		w.Buf = append(w.Buf, `,"items":null}`...)
		return nil
	}
	w.Buf = append(w.Buf, `,"items":[`...)
	if err := l.writeJSONItems(w); err != nil {
		return err
	}
	w.Buf = append(w.Buf, "]}"...)
	return nil
}

func (l *List) writeJSONItems(w *Writer) error {
	if l.e.Format.Shape == ShapeMetadata {
		return l.writeItems(w, ",", func(dst []byte, i int, keep bool) ([]byte, error) {
			return l.e.appendMetadata(dst, l.ahead.Record(i), keep)
		})
	}
	return l.writeItems(w, ",", func(dst []byte, i int, keep bool) ([]byte, error) {
		return l.e.appendJSON(dst, l.ahead.Record(i), true, keep)
	})
}

// The protobuf fields of lists.
const (
	listMetaField = 1
	listItemTag   = 2<<3 | 2
)

// measure finds out how long the list is in protobuf. It keeps no bytes: those of all
// records together may be more than there is memory for.
func (l *List) measure() (err error) {
	meta := l.page.meta()
	if l.meta, err = meta.Marshal(); err != nil {
		return err
	}
	l.size = len(appendField(nil, listMetaField, l.meta))
	for _, sec := range l.sections {
		if sec.chunk != nil {
			l.size += sec.chunk.size
			continue
		}
		for i := sec.from; i < sec.to; i++ {
			rec := l.page.Records[i]
			if rec.layout() == 0 || l.e.Format.Shape == ShapeMetadata {
				rec = l.ahead.Record(i)
			}
			size, err := l.e.protoItemSize(rec)
			if err != nil {
				return err
			}
			l.size += 1 + uvarintSize(size) + size
		}
	}
	return nil
}

func (l *List) writeProto(w *Writer) error {
	kind, apiVersion := l.kind()
	w.Buf = appendField(appendEnvelopeHead(w.Buf, apiVersion, kind, l.size), listMetaField, l.meta)
	err := l.writeItems(w, "", func(dst []byte, i int, _ bool) ([]byte, error) {
		it, err := l.e.protoItem(l.ahead.Record(i))
		if err != nil {
			return nil, err
		}
		dst = append(dst, listItemTag)
		dst = binary.AppendUvarint(dst, uint64(it.size))
		return it.append(dst), nil
	})
	w.Buf = append(w.Buf, envelopeTail...)
	return err
}

// writeItems writes the items, from chunks where there are some. add appends one, by its
// index, and may keep its encoding with the record if keep is set; separator goes between
// two.
func (l *List) writeItems(w *Writer, separator string, add func(dst []byte, i int, keep bool) ([]byte, error)) error {
	for at, sec := range l.sections {
		if sec.from > 0 {
			w.Buf = append(w.Buf, separator...)
		}
		if sec.chunk != nil {
			w.writeChunk(sec.chunk)
			continue
		}
		records := l.page.Records[sec.from:sec.to]
		compress := sec.keep && l.format.gzip // as a whole, and then write it
		if sec.keep && !compress {
			w.Flush()
			w.builder = l.e.Chunks.build(records, l.format)
		}
		// The same bytes are not kept twice, in a chunk and with their record, unless the chunk is
		// likely to be made again, or has no room.
		chunked := compress || w.builder != nil
		keep := !l.passing && (!chunked || sec.withRecords)
		begin := len(w.Buf)
		for i := sec.from; i < sec.to; i++ {
			if i > sec.from {
				w.Buf = append(w.Buf, separator...)
			}
			err := l.e.err()
			if err != nil {
				return err
			}
			if w.Buf, err = add(w.Buf, i, keep); err != nil {
				return err
			}
			if !compress {
				w.Spill()
			}
		}
		if compress {
			if c := l.e.Chunks.compress(records, l.format, w.Buf[begin:]); c != nil {
				l.sections[at].chunk = c // which Release gives back
				w.Buf = w.Buf[:begin]
				w.writeChunk(c)
			}
			w.Spill()
		}
		if w.builder != nil {
			w.Flush()
			w.builder.finish(true)
			w.builder = nil
		}
	}
	return nil
}
