// Package yamltext bounds the memory that YAML takes while it is read or written: 350 times the
// size of a text that is made for that, as each of its values becomes several objects. All
// conversions of a process together stay within a limit, whoever asks for them.
package yamltext

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/internal/jsonscan"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

const (
	// perValue is what a value takes, perByte what a byte of its text does.
	perValue, perByte = 850, 5
	// perLevel is what each level of nesting adds to a value: its line is indented, in a
	// buffer that grows by doubling.
	perLevel = 6
)

var (
	gate atomic.Pointer[budget.Gate] // nil until SetLimit
	// defaultGate is that of a process that sets no limit: a part of the memory that there is.
	defaultGate = sync.OnceValue(func() *budget.Gate { return budget.NewGate(budget.Default().YAML()) })
)

// SetLimit sets how many bytes the conversions of this process may take together. Those that
// are under way are not counted any more.
func SetLimit(bytes int64) { gate.Store(budget.NewGate(bytes)) }

// Hold waits until a YAML text may be read. The returned function must be called when it has
// been. The error is a Status if there are too many values in the text, and budget.ErrBusy if
// others take too long.
func Hold(text []byte) (release func(), err error) {
	return holdToRead(text)
}

var (
	errTooLargeToRead  = apierrors.NewRequestEntityTooLargeError("too many values for YAML with the memory of this server: send them as JSON")
	errTooLargeToWrite = &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable,
		Message: "too many values for YAML with the memory of this server: ask for JSON",
	}}
)

// IsRefusal reports whether an error of a conversion is about the memory that it needs, not
// about the text.
func IsRefusal(err error) bool {
	return errors.Is(err, budget.ErrBusy) || errors.Is(err, errTooLargeToRead) || errors.Is(err, errTooLargeToWrite)
}

// errAliases is what the YAML library says of many aliases. It does not count their bytes.
var errAliases = apierrors.NewBadRequest("error converting YAML to JSON: yaml: document contains excessive aliasing")

// current returns the gate of the process.
func current() *budget.Gate {
	if g := gate.Load(); g != nil {
		return g
	}
	return defaultGate()
}

func hold(bytes int64, tooLarge error) (release func(), err error) {
	g := current()
	if bytes > g.Limit() {
		return nil, tooLarge
	}
	return g.Acquire(context.Background(), bytes, false)
}

// holdToRead is hold for a YAML text that is to be read.
func holdToRead(text []byte) (release func(), err error) {
	bytes := memoryToRead(text)
	if hasAliases(text) {
		if release, err = hold(bytes, errTooLargeToRead); err != nil {
			return nil, err
		}
		aliased, err := aliasedMemory(text)
		release()
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		if aliased > current().Limit() {
			return nil, errAliases
		}
		bytes = max(bytes, aliased)
	}
	return hold(bytes, errTooLargeToRead)
}

// memoryToRead is how many bytes it takes at most to read a YAML text without aliases.
func memoryToRead(text []byte) int64 {
	values := 0
	for i, c := range text {
		switch c {
		case ',', ':', '[', '{', '\n':
			values++
		case '-':
			if i+1 < len(text) && text[i+1] == ' ' {
				values++
			}
		}
	}
	return int64(values)*perValue + int64(len(text))*perByte
}

// memoryToWrite is how many bytes it takes at most to write JSON as YAML.
func memoryToWrite(text []byte) int64 {
	bytes, depth := int64(len(text))*perByte, int64(0)
	for c := range jsonscan.Marks(text) {
		switch c {
		case '[', '{':
			depth++
			bytes += perValue + perLevel*depth
		case ']', '}':
			depth--
		case ',', ':':
			bytes += perValue + perLevel*depth
		}
	}
	return bytes
}

// FromJSON returns JSON as YAML.
func FromJSON(text []byte) ([]byte, error) {
	release, err := hold(memoryToWrite(text), errTooLargeToWrite)
	if err != nil {
		return nil, err
	}
	defer release()
	return yaml.JSONToYAML(text)
}

// ToJSON returns YAML as JSON.
func ToJSON(text []byte) ([]byte, error) {
	return read(text, yaml.YAMLToJSON)
}

// ToJSONStrict is ToJSON; it is an error if a field occurs twice.
func ToJSONStrict(text []byte) ([]byte, error) {
	return read(text, yaml.YAMLToJSONStrict)
}

func read(text []byte, to func([]byte) ([]byte, error)) ([]byte, error) {
	release, err := holdToRead(text)
	if err != nil {
		return nil, err
	}
	defer release()
	return to(text)
}
