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
	// ordinary is how many bytes of it nobody holds memory for.
	ordinary = 1 << 20
	// copyFactor is how many times the bytes that it copies a patch takes: in the patched document, as
	// text and decoded, in what is stored, and in the answer.
	copyFactor = 12
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
// on documents that are not objects. hold is called with how many bytes it may take, if they are many;
// nil holds nothing, and what hold returns is returned unchanged.
func Apply(document []byte, patch jsonpatch.Patch, hold func(bytes int64) error) (patched []byte, err error) {
	if len(patch) > MaxOperations {
		return nil, fmt.Errorf("%w: at most %d are allowed, got %d", ErrTooManyOperations, MaxOperations, len(patch))
	}
	size, growth := len(document)+valueBytes(patch), Growth(patch, len(document))
	expanded := int64(levels(patch, document)) * (int64(size) + growth)
	if expanded > maxExpanded {
		return nil, ErrTooDeep
	}
	if moved(patch, document, size+int(growth)) > maxMoved {
		return nil, ErrMovesTooMuch
	}
	if hold != nil && (growth > 0 || expanded > ordinary) {
		if err := hold(copyFactor*growth + expanded); err != nil {
			return nil, err
		}
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

// levels returns how many levels of a document are expanded one below the other at most while a patch is
// applied: those that its longest path names, and that a test compares, as far as there are so many. Each
// move can put a part of the document below another, each copy can double what there is.
func levels(patch jsonpatch.Patch, document []byte) int {
	depth, named, moves, copies := jsonscan.Depth(document), 0, 0, 0
	deepest, tested := 0, false
	for _, op := range patch {
		for _, read := range []func() (string, error){op.Path, op.From} {
			if path, err := read(); err == nil {
				named = max(named, strings.Count(path, "/"))
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
	named *= moves + 1
	if tested {
		named += deepest
	}
	return min(named, maxDepth, (depth+deepest)*(moves+1)<<min(copies, 14))
}

// moved returns how many items a patch moves at most, if that may be more than maxMoved. size is what the
// document has at most.
func moved(patch jsonpatch.Patch, document []byte, size int) (n int64) {
	if int64(len(patch))*int64(size) <= maxMoved {
		return 0
	}
	growth := int(Growth(patch, len(document)))
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
	if copies == 0 {
		return 0
	}
	return min(int64(size+valueBytes(patch))<<min(copies, 30), MaxCopied)
}
