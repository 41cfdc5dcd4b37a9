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

	"github.com/apikeel/kelson/internal/jsonscan"
)

const (
	// MaxOperations is how many operations a patch may have.
	MaxOperations = 10_000
	// MaxCopied is how many bytes the copy operations of a patch may add up to.
	MaxCopied = 3 << 20
	// maxMoved is how many items of lists a patch may move: a second of work, or two. To put an item
	// into the midst of a list, jsonpatch copies the list.
	maxMoved = 300_000_000
	// maxExpanded is how many bytes a document may take when it is expanded: jsonpatch copies what is
	// below each level that a path goes through, or a test compares.
	maxExpanded = 96 << 20
)

// Errors of Apply for patches that it does not begin with.
var (
	ErrTooManyOperations = errors.New("too many operations")
	ErrMovesTooMuch      = errors.New("the operations of the JSON patch move too many items of lists")
	ErrTooDeep           = errors.New("the JSON patch makes, or is applied to, an object that is too deep for its size")
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
	size := len(document) + valueBytes(patch)
	if int64(levels(patch, document))*int64(size) > maxExpanded {
		return nil, ErrTooDeep
	}
	if moved(patch, document, size) > maxMoved {
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

// valueBytes returns how many bytes the values of a patch have.
func valueBytes(patch jsonpatch.Patch) (n int) {
	for _, op := range patch {
		if value := op["value"]; value != nil {
			n += len(*value)
		}
	}
	return n
}

// maxDepth is how many levels the decoder of JSON accepts.
const maxDepth = 10_000

// levels returns how many levels of a document are expanded at most while a patch is applied: those
// that its paths name, and that a test compares, as far as there are so many. Each move can put a part of
// the document below another, each copy can double what there is.
func levels(patch jsonpatch.Patch, document []byte) int {
	depth, named, moves, copies := jsonscan.Depth(document), 0, 0, 0
	deepest, tested := 0, false
	for _, op := range patch {
		for _, field := range []string{"path", "from"} {
			if text := op[field]; text != nil {
				named += bytes.Count(*text, []byte("/"))
			}
		}
		switch op.Kind() {
		case "move":
			moves++
		case "copy":
			copies++
		case "test":
			tested = true
		}
		if value := op["value"]; value != nil {
			deepest = max(deepest, jsonscan.Depth(*value))
		}
	}
	if tested {
		named += deepest
	}
	return min(named, maxDepth, (depth+deepest)*(moves+1)<<min(copies, 14))
}

// moved returns how many items a patch moves at most, if that may be more than maxMoved.
func moved(patch jsonpatch.Patch, document []byte, size int) (n int64) {
	growth := int(Growth(patch, len(document)))
	if int64(len(patch))*int64(size+growth) <= maxMoved {
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
			index := strings.TrimLeft(last, "+-") // as Atoi reads it
			if op.Kind() == "move" || index != "" && index[0] >= '0' && index[0] <= '9' {
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
	return GrowthByCopies(copies, size+valueBytes(patch))
}

// GrowthByCopies is Growth for a patch with so many copies.
func GrowthByCopies(copies, size int) int64 {
	if copies == 0 {
		return 0
	}
	return min(int64(size)<<min(copies, 30), MaxCopied)
}
