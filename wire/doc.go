// Package wire turns records into bytes of a media type, version and shape.
package wire
