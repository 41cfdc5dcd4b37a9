// Package wire turns the record of an object into the bytes that a client or the storage
// gets: of this media type, this version and this shape. It is the one place in which
// bytes of objects are made.
//
// Start at Encoder, which makes the bytes of an answer, and at Record, which is what it
// makes them of. store keeps Records and writes what EncodeStored returns; rest negotiates
// a Format, fills in an Encoder and adds the HTTP around its bytes.
//
// The package must never know who asks: no requests, no HTTP, no routes, no store. Status
// codes, headers and the errors that clients read are the business of rest.
//
// # What is kept
//
//	record.go     Record: stored bytes, labels, selectable fields
//	encodings.go  the encodings of a record that somebody has asked for, and their budget
//	stored.go     EncodeStored, DecodeStored: what kube-apiserver keeps in etcd
//	body.go       one version's JSON or protobuf, the part that all answers share
//	envelope.go   the protobuf envelope that names a kind
//	cbor.go       the same in CBOR
//	splice.go     set metadata.resourceVersion in encoded bytes, find the metadata in them
//	metaorder.go  metadata of maps in the order that structs have
//
// # A get
//
// Encoder.AppendObject (encoder.go) looks for the encoding of its version among those of
// the record. If there is none, it decodes the stored bytes, converts the object, encodes
// it, sets the resourceVersion, and keeps the result with the record. Stored bytes that are
// what the client gets, but for the resourceVersion, are not decoded a second time and not
// kept twice: the resourceVersion is spliced in while they are copied. proto.go does the
// same for protobuf, cbor.go for CBOR, table.go for the rows of tables. Format.Render (format.go) makes YAML
// or indented JSON of it.
//
// # A list
//
// Encoder.Convert finds out what cannot be converted, before the first byte.
// Encoder.PrepareList (list.go) asks the ChunkCache (chunks.go) which of the records are in
// chunks that an earlier list has encoded, and for protobuf adds up how long the list is.
// List.WriteTo appends the head, the chunks and the other items to a Writer (writer.go),
// which gathers them into large writes; what it writes of records that came a second time
// becomes a chunk. Under a GzipWriter (gzip.go) chunks are kept compressed, and passed on
// as they are.
//
// # A watch event
//
// EventEncoder.AppendEvent (event.go) appends the frame and, in it, what AppendObject
// appends: the encoding is kept with the record, so it is made once for all watchers.
// AppendBookmark and AppendError append events that are about no record.
package wire
