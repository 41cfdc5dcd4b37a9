// Package jsonpatched applies JSON patches (RFC 6902) whose author is not trusted: those of clients,
// of webhooks and of policies. Start at Apply. It knows nothing of objects or of who sent a patch.
//
// A few hundred bytes of a patch can double a document into gigabytes, or move the items of a list
// for minutes: what a patch may do has bounds.
package jsonpatched

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
)

const (
	// MaxOperations is how many operations a patch may have.
	MaxOperations = 10_000
	// MaxCopied is how many bytes the copy operations of a patch may add up to.
	MaxCopied = 3 << 20
	// maxMoved is how many items of lists a patch may move: a second of work, or two. To put an item
	// into the midst of a list, jsonpatch copies the list.
	maxMoved = 300_000_000
)

// ErrTooManyOperations and ErrMovesTooMuch are errors of Apply for patches that it does not begin with.
var (
	ErrTooManyOperations = errors.New("too many operations")
	ErrMovesTooMuch      = errors.New("the operations of the JSON patch move too many items of lists")
)

// limitCopies sets the library's limit, which is a variable of its package, the
// first time that a patch is applied.
var limitCopies = sync.OnceFunc(func() { jsonpatch.AccumulatedCopySizeLimit = MaxCopied })

// Apply applies a patch to a document. It guards against the library, which panics on some operations
// on documents that are not objects.
func Apply(document []byte, patch jsonpatch.Patch) (patched []byte, err error) {
	if len(patch) > MaxOperations {
		return nil, fmt.Errorf("%w: at most %d are allowed, got %d", ErrTooManyOperations, MaxOperations, len(patch))
	}
	if moved(patch, document) > maxMoved {
		return nil, ErrMovesTooMuch
	}
	limitCopies()
	defer func() {
		if p := recover(); p != nil {
			patched, err = nil, fmt.Errorf("cannot apply patch: %v", p)
		}
	}()
	return patch.Apply(document)
}

// moved returns how many items a patch moves at most, if that may be more than maxMoved.
func moved(patch jsonpatch.Patch, document []byte) (n int64) {
	growth := int(Growth(patch, len(document)))
	size := len(document) + growth
	for _, op := range patch {
		if value := op["value"]; value != nil {
			size += len(*value)
		}
	}
	if int64(len(patch))*int64(size) <= maxMoved {
		return 0
	}
	// Of a list, at most: an item that is copied has two bytes, with its comma.
	items := bytes.Count(document, []byte(",")) + len(patch) + growth/2
	for _, op := range patch {
		if value := op["value"]; value != nil {
			items += bytes.Count(*value, []byte(","))
		}
	}
	for _, op := range patch {
		path, err := op.Path()
		if err != nil {
			continue
		}
		switch last := path[strings.LastIndexByte(path, '/')+1:]; op.Kind() {
		case "add", "remove", "move", "copy":
			if op.Kind() == "move" || last != "" && last[0] >= '0' && last[0] <= '9' {
				n += int64(items)
			}
		}
	}
	return n
}

// Growth returns a bound of how many bytes the copies of a patch add to a document of size bytes: each
// can double it.
func Growth(patch jsonpatch.Patch, size int) int64 {
	copies := 0
	for _, op := range patch {
		if op.Kind() == "copy" {
			copies++
		}
	}
	return GrowthByCopies(copies, size)
}

// GrowthByCopies is Growth for a patch with so many copies.
func GrowthByCopies(copies, size int) int64 {
	if copies == 0 {
		return 0
	}
	return min(int64(size)<<min(copies, 30), MaxCopied)
}
