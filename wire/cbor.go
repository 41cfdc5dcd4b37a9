package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math/rand/v2"
	"unicode/utf8"

	"github.com/apikeel/kelson/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
)

// The CBOR of a record is a map that is encoded once, with its resourceVersion. Clients
// must not rely on the order of keys, and kube-apiserver shuffles them. Here the bytes that
// are kept are in one order, and an answer begins with a random entry of its outermost maps.

// cborPrefix is the tag "self-described CBOR", with which every answer, event and stored
// object in CBOR begins.
const cborPrefix = "\xd9\xd9\xf7"

// Major types of CBOR, as the upper three bits of the first byte.
const (
	cborBytes = 2 << 5
	cborText  = 3 << 5
	cborArray = 4 << 5
	cborMap   = 5 << 5
	cborOf    = 6 << 5 // a tag
	cborNull  = 0xf6
	cborBreak = 0xff // the end of what has no length
)

// AppendCBOR appends any value in CBOR, as an answer of its own.
func AppendCBOR(dst []byte, v any) ([]byte, error) {
	body, err := direct.Marshal(v)
	if err != nil {
		return nil, err
	}
	return appendRotated(append(dst, cborPrefix...), body), nil
}

// IsCBOR reports whether data begins like stored objects in CBOR do.
func IsCBOR(data []byte) bool { return bytes.HasPrefix(data, []byte(cborPrefix)) }

// cborBody encodes an object of the hub version in the version given. Like JSONBody it
// leaves out kind and apiVersion of structs.
func cborBody(def *resource.Definition, version *resource.Version, obj resource.Object) ([]byte, error) {
	obj, err := fromHub(def, version, obj)
	if err != nil {
		return nil, err
	}
	if u, ok := obj.(*unstructured.Unstructured); ok {
		return direct.Marshal(u.Object)
	}
	kind := obj.GetObjectKind()
	if was := kind.GroupVersionKind(); !was.Empty() {
		kind.SetGroupVersionKind(schema.GroupVersionKind{})
		defer kind.SetGroupVersionKind(was)
	}
	return direct.Marshal(obj)
}

// recordCBOR returns the CBOR of a record, with its resourceVersion, without kind and
// apiVersion if the object is a struct.
func (e *Encoder) recordCBOR(rec *Record) ([]byte, error) {
	if !e.Served.IsHub() {
		rec.noteConverted()
	}
	return rec.Encoding(e.id(encodingCBOR), e.makeCBOR)
}

func (e *Encoder) makeCBOR(rec *Record) ([]byte, error) {
	def := e.Served.Definition
	if e.Served.Unstructured && !e.Served.IsHub() {
		// Convert has made the JSON of many records by one call of a webhook.
		body, err := e.recordJSON(rec)
		if err != nil {
			return nil, err
		}
		var u unstructured.Unstructured
		if err := decodeMap(body, &u); err != nil {
			return nil, err
		}
		return direct.Marshal(u.Object)
	}
	obj, err := DecodeRecord(def, rec)
	if err != nil {
		return nil, err
	}
	return cborBody(def, e.Served.Version, obj)
}

// metadataCBOR returns the metadata of a record in CBOR.
func (e *Encoder) metadataCBOR(rec *Record) ([]byte, error) {
	return rec.Encoding(e.id(encodingCBORMetadata), func(rec *Record) ([]byte, error) {
		body, err := e.recordJSON(rec)
		if err != nil {
			return nil, err
		}
		var obj metav1.PartialObjectMetadata
		if err := json.Unmarshal(body, &obj); err != nil {
			return nil, err
		}
		for _, name := range e.Served.Definition.FieldAnnotations {
			delete(obj.Annotations, name)
		}
		return direct.Marshal(&obj.ObjectMeta)
	})
}

// appendCBOR appends a record, or its metadata, as an answer of its own.
func (e *Encoder) appendCBOR(dst []byte, rec *Record) ([]byte, error) {
	if e.Format.Shape == ShapeMetadata {
		return e.appendCBORItem(append(dst, cborPrefix...), rec)
	}
	body, err := e.recordCBOR(rec)
	if err != nil {
		return nil, err
	}
	dst = append(dst, cborPrefix...)
	n, entries, ok := openCBORMap(body)
	if !ok || e.Served.Unstructured {
		return appendRotated(dst, body), nil
	}
	dst = appendCBORHead(dst, cborMap, n+2)
	kindFirst := rand.IntN(2) == 0
	if kindFirst {
		dst = e.appendCBORKind(dst)
	}
	dst = append(dst, entries...)
	if !kindFirst {
		dst = e.appendCBORKind(dst)
	}
	return dst, nil
}

func (e *Encoder) appendCBORKind(dst []byte) []byte {
	dst = appendCBORPair(dst, "kind", e.Served.Definition.Kind)
	return appendCBORPair(dst, "apiVersion", e.Served.APIVersion)
}

// appendCBORItem appends a record, or its metadata, as an item of a list.
func (e *Encoder) appendCBORItem(dst []byte, rec *Record) ([]byte, error) {
	if e.Format.Shape != ShapeMetadata {
		body, err := e.recordCBOR(rec)
		return append(dst, body...), err
	}
	meta, err := e.metadataCBOR(rec)
	if err != nil {
		return nil, err
	}
	dst = appendCBORHead(dst, cborMap, 3)
	dst = appendCBORPair(dst, "kind", "PartialObjectMetadata")
	dst = appendCBORPair(dst, "apiVersion", e.Format.MetaVersion())
	return append(appendCBORString(dst, "metadata"), meta...), nil
}

// writeCBOR writes a list.
func (l *List) writeCBOR(w *Writer) error {
	kind, apiVersion := l.kind()
	meta, err := l.page.cborMeta(l.e.Served.Unstructured && l.e.Format.Shape == ShapeObject)
	if err != nil {
		return err
	}
	entries := [4]func() error{
		func() error { w.Buf = appendCBORPair(w.Buf, "kind", kind); return nil },
		func() error { w.Buf = appendCBORPair(w.Buf, "apiVersion", apiVersion); return nil },
		func() error { w.Buf = append(appendCBORString(w.Buf, "metadata"), meta...); return nil },
		func() error { return l.writeCBORItems(w) },
	}
	w.Buf = append(w.Buf, cborPrefix...)
	w.Buf = appendCBORHead(w.Buf, cborMap, len(entries))
	first := rand.IntN(len(entries))
	for i := range entries {
		if err := entries[(first+i)%len(entries)](); err != nil {
			return err
		}
	}
	return nil
}

func (l *List) writeCBORItems(w *Writer) error {
	w.Buf = appendCBORString(w.Buf, "items")
	if l.e.Format.Shape == ShapeMetadata && len(l.page.Records) == 0 {
		w.Buf = append(w.Buf, cborNull)
		return nil
	}
	w.Buf = appendCBORHead(w.Buf, cborArray, len(l.page.Records))
	return l.writeItems(w, "", func(dst []byte, i int, _ bool) ([]byte, error) {
		return l.e.appendCBORItem(dst, l.ahead.Record(i))
	})
}

// cborMeta returns the metadata of a list; in that of a list of maps, continue is always
// there.
func (p *Page) cborMeta(ofMaps bool) ([]byte, error) {
	meta := p.meta()
	if !ofMaps {
		return direct.Marshal(meta)
	}
	fields := map[string]any{"continue": meta.Continue, "resourceVersion": RevisionString(p.Revision)}
	if p.Remaining != nil {
		fields["remainingItemCount"] = *p.Remaining
	}
	return direct.Marshal(fields)
}

// appendCBOREvent appends a WatchEvent; object appends its object.
func appendCBOREvent(dst []byte, event EventType, object func(dst []byte) ([]byte, error)) (_ []byte, err error) {
	dst = append(dst, cborPrefix...)
	dst = appendCBORHead(dst, cborMap, 2)
	typeFirst := rand.IntN(2) == 0
	if typeFirst {
		dst = appendCBORPair(dst, "type", string(event))
	}
	if dst, err = object(appendCBORString(dst, "object")); err != nil {
		return nil, err
	}
	if !typeFirst {
		dst = appendCBORPair(dst, "type", string(event))
	}
	return dst, nil
}

// appendCBORHead appends the head of an item: its major type, and a length or count.
func appendCBORHead(dst []byte, major byte, n int) []byte {
	switch {
	case n < 24:
		return append(dst, major|byte(n))
	case n <= 0xff:
		return append(dst, major|24, byte(n))
	case n <= 0xffff:
		return binary.BigEndian.AppendUint16(append(dst, major|25), uint16(n))
	case n <= 0xffffffff:
		return binary.BigEndian.AppendUint32(append(dst, major|26), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(dst, major|27), uint64(n))
}

// appendCBORString appends a string as Kubernetes encodes strings: as bytes, which need
// not be valid UTF-8.
func appendCBORString(dst []byte, s string) []byte {
	return append(appendCBORHead(dst, cborBytes, len(s)), s...)
}

func appendCBORPair(dst []byte, key, value string) []byte {
	return appendCBORString(appendCBORString(dst, key), value)
}

// readCBORHead reads the head of the item that begins at i, and returns where the head
// ends. ok is false at the end of the data, and for lengths that are not definite.
func readCBORHead(b []byte, i int) (major byte, n uint64, next int, ok bool) {
	if i >= len(b) {
		return 0, 0, 0, false
	}
	major, info := b[i]&0xe0, b[i]&0x1f
	i++
	if info < 24 {
		return major, uint64(info), i, true
	}
	if info > 27 {
		return 0, 0, 0, false
	}
	size := 1 << (info - 24)
	if size > len(b)-i {
		return 0, 0, 0, false
	}
	for _, c := range b[i : i+size] {
		n = n<<8 | uint64(c)
	}
	return major, n, i + size, true
}

// openCBORMap returns how many entries a map has, and their bytes.
func openCBORMap(b []byte) (n int, entries []byte, ok bool) {
	major, count, next, ok := readCBORHead(b, 0)
	if !ok || major != cborMap || count > uint64(len(b)) {
		return 0, nil, false
	}
	return int(count), b[next:], true
}

// skipCBOR returns where the items end that begin at i, -1 if they do not end. It reads
// what the encoder has written: lengths are definite.
func skipCBOR(b []byte, i int, items uint64) int {
	for ; items > 0; items-- {
		major, n, next, ok := readCBORHead(b, i)
		if !ok {
			return -1
		}
		i = next
		switch major {
		case cborBytes, cborText:
			if n > uint64(len(b)-i) {
				return -1
			}
			i += int(n)
		case cborArray, cborMap, cborOf:
			switch {
			case n > uint64(len(b)) && major != cborOf:
				return -1
			case major == cborArray:
				items += n
			case major == cborMap:
				items += 2 * n
			default:
				items++
			}
		}
	}
	return i
}

// IsTextCBOR reports whether all strings of a body in CBOR are UTF-8. The decoder looks at text
// only, and takes bytes for strings as they are, too: JSON would show others than are stored, and
// keys that differ would become one. Bytes that the decoder encodes, as base64 for example, may be
// any. A body that is not well-formed is left to the decoder.
func IsTextCBOR(body []byte) bool {
	encoded, inPieces := false, false
	for at := 0; at < len(body); {
		switch body[at] {
		case cborBytes | 31, cborText | 31:
			inPieces = true
			at++
			continue
		case cborArray | 31, cborMap | 31, cborBreak:
			encoded, inPieces = false, false
			at++
			continue
		}
		major, n, next, ok := readCBORHead(body, at)
		if !ok {
			return true
		}
		at = next
		switch major {
		case cborOf:
			encoded = encoded || n >= 21 && n <= 23
			continue
		case cborBytes, cborText:
			if n > uint64(len(body)-at) {
				return true
			}
			if major == cborBytes && !encoded && !utf8.Valid(body[at:at+int(n)]) {
				return false
			}
			at += int(n)
		}
		encoded = encoded && inPieces
	}
	return true
}

// appendRotated appends a map whose entries begin with a random one. Anything else is
// appended as it is.
func appendRotated(dst, body []byte) []byte {
	n, entries, ok := openCBORMap(body)
	if !ok || n < 2 {
		return append(dst, body...)
	}
	at := skipCBOR(entries, 0, 2*rand.Uint64N(uint64(n)))
	if at < 0 {
		return append(dst, body...)
	}
	dst = append(dst, body[:len(body)-len(entries)]...)
	return append(append(dst, entries[at:]...), entries[:at]...)
}

// decodeCBOR decodes a stored map. Built-in kinds are never stored in CBOR.
func decodeCBOR(def *resource.Definition, data []byte) (*resource.Version, resource.Object, error) {
	obj := def.HubVersion().New()
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return nil, nil, errNotStoredAsCBOR
	}
	u.Object = nil
	if err := direct.Unmarshal(data, &u.Object); err != nil {
		return nil, nil, err
	}
	if u.Object == nil {
		return nil, nil, errNotAnObject
	}
	version, err := storedVersion(def, []byte(u.GetAPIVersion()), []byte(u.GetKind()))
	return version, obj, err
}
