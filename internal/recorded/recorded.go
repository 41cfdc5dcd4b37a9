// Package recorded reads what is recorded for tests: compressed JSON, one value or many.
package recorded

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"testing"
)

// Read reads the values in a file, of which there is at least one.
func Read[T any](tb testing.TB, file string) (values []T) {
	tb.Helper()
	f, err := os.Open(file)
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	text, err := gzip.NewReader(f)
	if err != nil {
		tb.Fatalf("%s: %v", file, err)
	}
	for decoder := json.NewDecoder(text); ; {
		var value T
		switch err := decoder.Decode(&value); {
		case errors.Is(err, io.EOF) && len(values) > 0:
			return values
		case err != nil:
			tb.Fatalf("%s: value %d: %v", file, len(values)+1, err)
		}
		values = append(values, value)
	}
}

// ReadOne reads the first value in a file.
func ReadOne[T any](tb testing.TB, file string) T {
	tb.Helper()
	return Read[T](tb, file)[0]
}
